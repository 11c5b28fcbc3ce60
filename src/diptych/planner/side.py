"""One role of a pair under search: what its candidates cost alone, from floors to exact counts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from diptych.design.axes import Role
from diptych.perf.estimate import Array
from diptych.planner.enumerate import Candidate
from diptych.planner.size import MOST_WORKERS
from diptych.planner.tables import Tables


class Side:
    """The candidates of one accelerator, role and place: bounds on what each costs alone, sharpened on demand."""

    def __init__(self, role: Role, candidates: list[Candidate], tables: Tables, rate: float) -> None:
        self.role, self.candidates, self.tables, self.rate = role, candidates, tables, rate
        self.exact = np.zeros(len(candidates), dtype=bool)
        self._best: dict[tuple[object, ...], list[Any]] = defaultdict(list)
        self.counts = [self.tables.floor(role, c.worker, rate) for c in candidates]
        self.costs = np.array([self._cost(i, whole=True) for i in range(len(candidates))], dtype=float)
        self.shares = np.array([self._cost(i, whole=False) for i in range(len(candidates))], dtype=float)

    def _cost(self, index: int, whole: bool) -> float:
        """The bill on instances of its own, or its share of full ones where the other pool may fill the rest."""
        count, candidate = self.counts[index], self.candidates[index]
        if count is None or count > MOST_WORKERS:
            return math.inf
        return candidate.usd_per_hour(count) if whole else candidate.share_per_hour(count)

    def sharpen(self, index: int) -> None:
        """Replace a floor by the count the stage table needs; a worker that another is never slower than needs no look."""
        self.counts[index] = None if self._beaten(index) else self._least(index)
        self.costs[index], self.shares[index] = self._cost(index, whole=True), self._cost(index, whole=False)
        self.exact[index] = True

    def _least(self, index: int) -> int | None:
        return self.tables.least(self.role, self.candidates[index].worker, self.rate)

    def _beaten(self, index: int) -> bool:
        """Whether a worker that was looked at before serves every fleet of this one no later, at the same bill.

        It is alike in all that the bill, the handoff and the rules see, so that no boundary and no other side tells them apart.
        """
        candidate = self.candidates[index]
        stage: Any = self.tables.stage(self.role, candidate.worker)
        peers = self._best[self.tables.alike(candidate)]
        if any(peer.never_slower(stage) for peer in peers):
            return True
        peers.append(stage)
        return False

    def bounds(self, shared: bool) -> Array:
        """What each candidate costs at least beside the other pool."""
        return self.shares if shared else self.costs


def sides_of(
    role: Role, candidates: Iterable[Candidate], tables: Tables, rate: float
) -> dict[tuple[str, str, str], Side]:
    grouped: dict[tuple[str, str, str], list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        grouped[candidate.worker.accelerator.name, *candidate.site].append(candidate)
    return {key: Side(role, group, tables, rate) for key, group in grouped.items()}
