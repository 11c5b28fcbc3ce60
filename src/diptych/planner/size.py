"""Integer sizing: the fewest workers that keep a promise which never breaks when workers are added."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_WORKERS = 20_000
_FIRST = 8


def fewest(keeps: Callable[[NDArray[np.float64]], Any], start: int, most: int = MOST_WORKERS) -> int | None:
    """The smallest count from `start` for which `keeps` is true; None when none up to `most` is.

    `keeps` takes an array of counts and must be monotone: once true, true for every larger count. The first few counts are tried
    together, since a fluid bound usually starts at the answer or next to it; beyond them counts double, then halve.
    """
    start = max(start, 1)
    if start > most:
        return None
    counts = np.arange(start, min(start + _FIRST, most + 1), dtype=float)
    met = np.asarray(keeps(counts))
    if met.any():
        return int(counts[int(np.argmax(met))])
    low = int(counts[-1])
    high = low
    while high < most:
        high = min(high * 2, most)
        if bool(np.asarray(keeps(np.array([float(high)])))[0]):
            return _between(keeps, low, high)
        low = high
    return None


def _between(keeps: Callable[[NDArray[np.float64]], Any], low: int, high: int) -> int:
    """The smallest count in (low, high] that keeps, given that low does not and high does."""
    while high - low > 1:
        counts = np.unique(np.linspace(low + 1, high, 6).astype(int))
        met = np.asarray(keeps(counts.astype(float)))
        first = int(np.argmax(met))
        high, low = int(counts[first]), int(counts[first - 1]) if first else low
    return high


def fluid(rate: float, capacity: float) -> int:
    """The fewest workers that could carry `rate` if nothing ever queued: no smaller count is worth trying."""
    if capacity <= 0:
        return MOST_WORKERS + 1
    return max(1, math.ceil(rate / capacity * (1 - 1e-12)))
