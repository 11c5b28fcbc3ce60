"""What a sized fleet carries: how far inside its promises it is at any rate, and the most requests/s that keep them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from diptych.planner.found import Pooled
from diptych.planner.meeting import Sized
from diptych.planner.stages import DecodeStage, Margins, PrefillStage, kept


@dataclass(frozen=True, eq=False)
class Fleet:
    """A sized fleet seen from outside: what it costs, and how far inside its promises it is at any rate."""

    usd_per_hour: float
    margins: Callable[[float], Margins]

    def keeps(self, rate: float) -> bool:
        return bool(np.all(kept(self.margins(rate))))

    def goodput(self, rate: float) -> float:
        """The most requests/s it carries inside the SLO, to 1e-4; `rate` is where to start looking."""
        return most(self.keeps, rate)

    def binding(self, rate: float) -> str:
        """The promise or capacity that breaks first just above `rate`."""
        margins = self.margins(rate * 1.001)
        return min(margins, key=lambda name: float(np.min(margins[name])))


def fleet_of(sized: Sized | Pooled) -> Fleet:
    """A disaggregated or colocated fleet by the same questions."""
    if isinstance(sized, Pooled):
        stage, workers = sized.stage, float(sized.workers)
        return Fleet(sized.usd_per_hour, lambda rate: stage.margins(rate, workers))
    return Fleet(sized.usd_per_hour, sized.margins)


def stage_keeps(stage: PrefillStage | DecodeStage, rate: float, workers: float) -> bool:
    """Whether a pool alone, with a free handoff, keeps its promises."""
    if isinstance(stage, DecodeStage):
        return bool(np.all(kept(stage.margins(rate, workers))))
    return bool(stage.keeps(rate, workers))


def most(keeps: Callable[[float], bool], start: float, tolerance: float = 1e-4) -> float:
    """The largest value that `keeps` accepts, given that it accepts all smaller ones."""
    low, high = 0.0, start
    while keeps(high) and high < start * 1e6:
        low, high = high, high * 2
    for _ in range(60):
        if high - low <= tolerance * high:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low
