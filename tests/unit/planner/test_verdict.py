"""The reason given is true and says what differs, whatever was asked and pinned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from diptych.design.axes import Role
from diptych.design.boundary import Placement
from diptych.planner.plan import Answer, Goal
from diptych.planner.verdict import preference, reason, simplest_equal, why_not

COLOCATED, HOMOGENEOUS, MIXED = Answer.DO_NOT_DISAGGREGATE, Answer.HOMOGENEOUS_DISAGGREGATED, Answer.HETEROGENEOUS


def option(
    usd: float,
    *kit: tuple[str, float],
    placement: Placement = Placement.DISAGGREGATED,
    mixed: bool = False,
    goodput: float = 10.0,
    headroom: float = 0.1,
    accelerators: int = 8,
) -> Any:
    """What a verdict looks at: pools are (label of the only member, bill)."""
    roles = (Role.COLOCATED,) if len(kit) == 1 else (Role.PREFILL, Role.DECODE)
    pools = tuple(
        SimpleNamespace(role=role, usd_per_hour=bill, members=(SimpleNamespace(label=label, accelerator=label),))
        for role, (label, bill) in zip(roles, kit, strict=True)
    )
    boundary = SimpleNamespace(wire_bytes_mean=1e8, bandwidth=1e10, exposed_p90=0.01) if len(kit) > 1 else None
    return SimpleNamespace(
        usd_per_hour=usd, pools=pools, placement=placement, heterogeneous=mixed, goodput=goodput, headroom=headroom,
        accelerators=accelerators, binding="tpot_p90", label=" → ".join(label for label, _ in kit), boundary=boundary,
    )  # fmt: skip


def together(usd: float, **more: Any) -> Any:
    return option(usd, ("4 × B tp1", usd), placement=Placement.COLOCATED, **more)


APART = option(10, ("2 × A tp2", 4), ("3 × A tp2", 6))
MIX = option(8, ("2 × A tp2", 4), ("3 × B tp1", 4), mixed=True)

CASES = {
    "a dearer kind": (Goal.RATE, MIX, {HOMOGENEOUS: APART}, {},
        ["homogeneous disaggregated fleet costs 10.00 USD/h, 2.00 more", "decode takes 3 × B tp1 at 4.00 USD/h here, 3 × A tp2"]),
    "equal pools are not listed": (Goal.RATE, MIX, {HOMOGENEOUS: APART}, {}, ["!prefill"]),
    "the same bill, more parts": (Goal.RATE, together(8), {MIXED: MIX}, {}, ["costs as much and has more parts"]),
    "the same bill, as many parts": (Goal.RATE, APART, {MIXED: option(10, ("2 × A tp2", 4), ("5 × B", 6), mixed=True)}, {},
        ["costs as much and mixes accelerators"]),
    "a far cheaper kind that pins rule out": (Goal.RATE, MIX, {COLOCATED: together(2)}, {COLOCATED: "--prefill and --decode"},
        ["the best colocated fleet, ruled out by --prefill and --decode, would cost 2.00 USD/h, 6.00 less",
         "no homogeneous disaggregated fleet keeps the SLO", "!as much"]),
    "a dearer kind that pins rule out is no rival": (Goal.RATE, MIX, {COLOCATED: together(20)}, {COLOCATED: "--placement"},
        ["!20.00"]),
    "pins leave one kind": (Goal.RATE, MIX, {}, {COLOCATED: "--placement", HOMOGENEOUS: "--prefill and --decode"},
        ["--placement and --prefill and --decode leave no other kind", "time per output token (p90) binds", "!keeps the SLO"]),
    "nothing else keeps it": (Goal.RATE, MIX, {}, {}, ["no homogeneous disaggregated or colocated fleet keeps the SLO"]),
    "most goodput": (Goal.BUDGET, MIX, {COLOCATED: together(8, goodput=7.0)}, {},
        ["colocated fleet carries 7 requests/s against 10", "4 × B tp1 at 8.00 USD/h there"]),
    "as much goodput": (Goal.INVENTORY, together(0), {MIXED: MIX}, {}, ["carries as much and has more parts"]),
    "more goodput that pins rule out": (Goal.INVENTORY, MIX, {COLOCATED: together(0, goodput=20.0)}, {COLOCATED: "--placement"},
        ["ruled out by --placement, would carry 20 requests/s against 10"]),
    "fewer accelerators apart": (Goal.RATE, option(6, ("2 × A", 3), ("1 × A", 3), accelerators=3), {COLOCATED: together(8)}, {},
        ["binds at 8 accelerators where 3 do apart"]),
    "one is counted as one": (Goal.RATE, together(2, accelerators=1), {MIXED: MIX}, {},
        ["share 1 accelerator, apart they take 8", "hand over 100 MB per request"]),
    "as many accelerators apart": (Goal.RATE, MIX, {COLOCATED: together(9)}, {},
        ["!where 8 do apart", "4 × B tp1 at 9.00 USD/h"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_reason_says(name: str) -> None:
    goal, best, others, ruled, says = CASES[name]
    told = reason(goal, best, others, ruled)
    for words in says:
        assert (words.lstrip("!") in told) != words.startswith("!"), told


def test_equal_bills_go_to_fewer_parts_then_more_headroom() -> None:
    one, roomy = option(10, ("1 × A", 5), ("1 × A", 5)), option(10, ("2 × A", 5), ("1 × A", 5), headroom=0.5)
    order = sorted([MIX, one, roomy, together(10)], key=lambda o: preference(Goal.RATE, o))
    assert order == [MIX, together(10), roomy, one]
    assert simplest_equal(one, [roomy, MIX]) is roomy
    assert simplest_equal(None, [roomy]) is None


def test_a_runner_up_that_carries_less() -> None:
    assert "30.0% less" in why_not(Goal.BUDGET, MIX, together(8, goodput=7.0))[0]
    assert "carries as much and has more parts" in why_not(Goal.BUDGET, together(8), MIX)[0]
