"""The exact non-dominated set of sized fleets in cost, TTFT, TPOT and goodput."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diptych.planner.plan import Option, ParetoPoint


def undominated(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows of `costs` (n, m), less being better in each column, no other row beats.

    A row is beaten when another is no worse everywhere and better somewhere; of equal rows the first is kept. Exact, O(n²·m).
    """
    keep = np.ones(len(costs), dtype=bool)
    for index, row in enumerate(costs):
        no_worse, better = np.all(costs <= row, axis=1), np.any(costs < row, axis=1)
        twin = np.all(costs[:index] == row, axis=1).any()
        keep[index] = not (np.any(no_worse & better) or twin)
    return keep


def pareto(options: list[Option], rate: float) -> tuple[ParetoPoint, ...]:
    """The front of `options`, cheapest first."""
    if not options:
        return ()
    costs = np.array([[o.usd_per_hour, o.ttft.p90, o.tpot.p90, -o.goodput] for o in options])
    front = [option for option, kept in zip(options, undominated(costs), strict=True) if kept]
    return tuple(_point(option, rate) for option in sorted(front, key=lambda o: (o.usd_per_hour, o.label)))


def _point(option: Option, rate: float) -> ParetoPoint:
    return ParetoPoint(
        label=option.label,
        placement=option.placement,
        heterogeneous=option.heterogeneous,
        usd_per_hour=option.usd_per_hour,
        usd_per_mtok_total=option.usd_per_mtok_total,
        ttft=option.ttft.p90,
        tpot=option.tpot.p90,
        goodput=option.goodput,
        meets_slo=option.goodput >= rate * (1 - 1e-3),
    )
