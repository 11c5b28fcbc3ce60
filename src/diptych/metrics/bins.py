"""Latencies of more requests than anybody keeps, as counts per bin: quantiles within 0.55 %, sums and the longest exact."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from diptych.metrics.gaps import LEAST, MIDDLE, PER_DOUBLING
from diptych.metrics.measurements import Floats
from diptych.metrics.summary import QUANTILES, Spread

DOUBLINGS = 40  # s: bins end at about 10⁶ s, and the last one holds what is longer
_EDGES = np.concatenate([[0.0], LEAST * 2.0 ** (np.arange(PER_DOUBLING * DOUBLINGS + 1) / PER_DOUBLING)])


class Binned:
    """Values of one latency (s), counted. Bins are 1.1 % wide; what takes no time has one of its own."""

    __slots__ = ("counts", "longest", "total")

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(len(_EDGES), np.int64)
        self.total = self.longest = 0.0

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def add(self, values: Floats) -> None:
        """Take values in; NaN is none."""
        values = values[~np.isnan(values)]
        if not len(values):
            return
        self.total += float(values.sum())
        self.longest = max(self.longest, float(values.max()))
        place = np.ceil(np.log2(np.maximum(values, LEAST) / LEAST) * PER_DOUBLING).astype(np.int64) + 1
        place = np.where(values > 0, np.minimum(place, len(_EDGES) - 1), 0)
        self.counts += np.bincount(place, minlength=len(_EDGES))

    def quantiles(self, shares: Iterable[float]) -> list[float]:
        """Seconds that each share of the values does not exceed: the geometric middle of its bin. NaN without values."""
        reached = np.cumsum(self.counts)
        if not reached[-1]:
            return [float("nan") for _ in shares]
        places = [int(np.searchsorted(reached, share * reached[-1], side="left")) for share in shares]
        return [min(float(_EDGES[place]) * MIDDLE, self.longest) for place in places]

    def spread(self) -> Spread:
        """As of all the values."""
        if not self.count:
            return Spread.of(np.empty(0))
        p50, p90, p95, p99 = self.quantiles(QUANTILES)
        return Spread(self.total / self.count, p50, p90, p95, p99, self.longest)
