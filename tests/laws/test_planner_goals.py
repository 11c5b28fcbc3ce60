"""Budgets and inventories: more never carries less, and what is promised is kept by the queues."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_spaces import Draw, draws, question

from diptych.planner.budget import STEP, most_goodput
from diptych.planner.found import Found
from diptych.planner.goodput import fleet_of
from diptych.planner.mixed import Columns, Mixture
from diptych.planner.plan import Answer
from diptych.planner.planning import Search

FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def goodput(draw: Draw, budget: float, kind: Answer) -> float:
    searching = Search.of(question(draw, rate=None, budget=budget))

    def at(rate: float, ceiling: float, kinds: frozenset[Answer]) -> Found:
        return searching.at(rate, ceiling, runners_up=0, kinds=kinds)

    held = most_goodput(at, budget, kind, 1.0)
    if held is None:
        return 0.0
    assert held[0].usd_per_hour <= budget * (1 + 1e-9)
    assert fleet_of(held[0]).keeps(held[1] * (1 - 1e-6))
    return held[1]


@FEW
@given(draws, st.floats(2.0, 20.0), st.floats(1.0, 2.0), st.sampled_from(list(Answer)))
def test_a_larger_budget_never_carries_less(draw: Draw, budget: float, more: float, kind: Answer) -> None:
    small, large = goodput(draw, budget, kind), goodput(draw, budget * more, kind)
    assert large >= small * (1 - 2 * STEP)


def mixture(draw: Draw, inventory: dict[str, int]) -> Mixture | None:
    searching = Search.of(question(draw, rate=None, prices=None, inventory=inventory))
    return Columns.of(searching.tables, searching.boundaries, searching.spaces).best(inventory)


def promised(found: Mixture | None) -> float:
    """Requests/s of the integer program: what lone workers carry."""
    if found is None:
        return 0.0
    handed = [sum(s.column.knee * s.workers for s in pool) for pool in (found.prefill, found.decode)]
    return min(handed) + sum(s.column.knee * s.workers for s in found.together)


@FEW
@given(draws, st.integers(1, 6), st.integers(0, 3), st.integers(0, 3))
def test_owning_more_never_carries_less(draw: Draw, some: int, more: int, other: int) -> None:
    before = mixture(draw, {"toy0": some})
    after = mixture(draw, {"toy0": some + more, **({"toy1": other} if other else {})})
    if not other:  # a second kind may change which path the worst handoff takes
        assert promised(after) >= promised(before) * (1 - 1e-6)
    for found in (before, after):
        if found is not None:
            used = dict.fromkeys(("toy0", "toy1"), 0)
            for share in found.shares:
                used[share.column.accelerator] += share.workers * share.column.candidate.worker.accelerators
            assert used["toy0"] <= some + (more if found is after else 0)
            assert used["toy1"] <= other


@FEW
@given(draws, st.integers(2, 6))
def test_pools_carry_what_lone_workers_promise(draw: Draw, count: int) -> None:
    found = mixture(replace(draw, cv=1.0), {"toy0": count, "toy1": count})
    if found is not None and not found.prefill:
        assert found.keeps(promised(found) * (1 - 1e-3))
