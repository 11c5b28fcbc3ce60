"""The most goodput for a budget: the largest rate at which some fleet still costs no more.

The cheapest bill never falls as the rate rises, so the answer is where it passes the budget. Every fleet found on the way lifts
the lower end to its own goodput, and the last failed search proves that no fleet under the budget carries `STEP` more.
"""

from __future__ import annotations

from collections.abc import Callable

from diptych.planner.found import Found, Pooled
from diptych.planner.goodput import fleet_of
from diptych.planner.meeting import Sized
from diptych.planner.plan import Answer

STEP = 1e-3
Searching = Callable[[float, float, frozenset[Answer]], Found]
"""(rate, ceiling in USD/h, kinds) → what a search finds."""


def most_goodput(at: Searching, budget: float, kind: Answer, guess: float) -> tuple[Sized | Pooled, float] | None:
    """The fleet of `kind` with the most goodput under `budget` USD/h, and that goodput; None when none runs at all."""
    ceiling, kinds = budget * (1 + 1e-9), frozenset({kind})

    def best(rate: float) -> tuple[Sized | Pooled, float] | None:
        found = at(rate, ceiling, kinds)
        fleets: list[Sized | Pooled] = [*found.apart.values(), *found.together.values()]
        rated = [(fleet, fleet_of(fleet).goodput(rate)) for fleet in fleets]
        return max(rated, key=lambda entry: entry[1], default=None)

    rate = max(guess, 1e-3)
    held = best(rate)
    while held is None:
        rate /= 8
        if rate < 1e-4:
            return None
        held = best(rate)
    high = held[1] * 2
    while (more := best(high)) is not None:
        held, high = more, more[1] * 2
    while high > held[1] * (1 + STEP):
        middle = max((held[1] * high) ** 0.5, held[1] * (1 + STEP / 2))
        more = best(middle)
        if more is None:
            high = middle
        else:
            held = more
    return held
