"""What a search keeps: the best fleets of each class."""

from __future__ import annotations

from dataclasses import dataclass, field

from diptych.planner.enumerate import Candidate
from diptych.planner.meeting import Sized
from diptych.planner.stages import ColocatedStage


@dataclass(frozen=True, slots=True)
class Pooled:
    """A colocated pool, sized."""

    candidate: Candidate
    stage: ColocatedStage
    workers: int
    usd_per_hour: float


@dataclass
class Found:
    """What a search keeps: the best of every pair of accelerators, and how many designs it sized."""

    apart: dict[tuple[str, str], Sized] = field(default_factory=dict)
    together: dict[str, Pooled] = field(default_factory=dict)
    sized: int = 0

    def best_apart(self, heterogeneous: bool | None = None) -> Sized | None:
        """The cheapest disaggregated fleet, of one kind of accelerator or of two."""
        fleets = [s for (p, d), s in self.apart.items() if heterogeneous is None or heterogeneous == (p != d)]
        return min(fleets, key=lambda sized: sized.usd_per_hour, default=None)

    @property
    def best_together(self) -> Pooled | None:
        return min(self.together.values(), key=lambda pooled: pooled.usd_per_hour, default=None)
