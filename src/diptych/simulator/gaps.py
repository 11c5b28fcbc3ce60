"""Gaps between tokens, collected from runs of steps: a run of n steps of a batch gives each of its sequences n gaps at once."""

from __future__ import annotations

import numpy as np

from diptych.metrics.gaps import EDGES, TokenGaps
from diptych.simulator.clock import PS

Run = tuple[int, int, int, int]  # ps of the first step, by how much each is longer than the last, steps, sequences
_EDGES = np.rint(EDGES * PS).astype(np.int64)


class GapHistogram:
    """Counts of gaps by length. Integers all through, so that the order in which runs come does not matter."""

    __slots__ = ("counts", "longest", "total")

    def __init__(self) -> None:
        self.counts = np.zeros(len(EDGES), np.int64)
        self.total = self.longest = 0

    def add(self, runs: list[Run]) -> None:
        """Take runs in."""
        if not runs:
            return
        first, longer, steps, size = (np.array(column, dtype=np.int64) for column in zip(*runs, strict=True))
        last = first + longer * (steps - 1)
        self.longest = max(self.longest, int(last.max()))
        self.total += sum(b * (n * t + d * (n * (n - 1) >> 1)) for t, d, n, b in runs)
        low, high = _bin(first), _bin(last)
        same = low == high
        np.add.at(self.counts, low[same], (steps * size)[same])
        for row in np.flatnonzero(~same):
            self._spread(*runs[row], int(low[row]), int(high[row]))

    def _spread(self, first: int, longer: int, steps: int, size: int, low: int, high: int) -> None:
        """A run over several bins: how many of its steps end below each edge."""
        before = 0
        for place in range(low, high):
            until = (int(_EDGES[place]) - first) // longer + 1
            self.counts[place] += (until - before) * size
            before = until
        self.counts[high] += (steps - before) * size

    def seen(self) -> TokenGaps:
        """What was collected."""
        return TokenGaps(self.counts, self.total / PS, self.longest / PS)


def _bin(times: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = np.minimum(np.searchsorted(_EDGES, times), len(EDGES) - 1)
    return found
