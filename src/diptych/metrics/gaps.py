"""The gaps between tokens (ITL) as a histogram: as many of them as there are tokens, in memory that does not grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PER_DOUBLING = 64
"""Bins of 1.1 % width: a quantile is at most 0.55 % off."""
LEAST, DOUBLINGS = 1e-6, 30  # s: the first bin holds what is shorter, the last what is longer than 1,000 s
EDGES: NDArray[np.float64] = LEAST * 2.0 ** (np.arange(PER_DOUBLING * DOUBLINGS + 1) / PER_DOUBLING)
"""Upper edges of the bins in seconds."""
MIDDLE: float = 2.0 ** (-0.5 / PER_DOUBLING)


@dataclass(frozen=True, slots=True, eq=False)
class TokenGaps:
    """`counts` of gaps by bin, shape (len(EDGES),); their sum and the longest in seconds."""

    counts: NDArray[np.int64]
    total: float
    longest: float

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Seconds; exact. NaN without gaps."""
        return self.total / self.count if self.count else float("nan")

    def to_json(self) -> dict[str, Any]:
        """The bins that are not empty, by their place, and what a reader asks for first."""
        filled = np.flatnonzero(self.counts)
        shown = {"mean_s": self.mean, "max_s": self.longest} | {
            f"p{100 * q:.0f}_s": self.quantile(q) for q in (0.5, 0.9, 0.99)
        }
        return {
            "count": self.count,
            **{name: value if value == value else None for name, value in shown.items()},
            "bins": {int(place): int(self.counts[place]) for place in filled},
        }

    def quantile(self, q: float) -> float:
        """Seconds that a share `q` of the gaps does not exceed: the geometric middle of the bin that holds it."""
        if not self.count:
            return float("nan")
        reached = np.cumsum(self.counts)
        place = int(np.searchsorted(reached, q * reached[-1], side="left"))
        return min(float(EDGES[place]) * MIDDLE, self.longest)
