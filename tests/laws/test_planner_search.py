"""The search is exact for its own model: trying everything finds nothing cheaper, and more choice never costs more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_spaces import Draw, draws, question

from diptych.planner.ask import Ask
from diptych.planner.brute_force import brute_force
from diptych.planner.found import Found
from diptych.planner.planning import Search

MOST = 5
FEW = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def both(asked: Ask, most: int = MOST) -> tuple[Found, Found]:
    """(search, brute force) for one question."""
    searching = Search.of(asked)
    assert asked.rate is not None
    dull = brute_force(
        asked, searching.tables, searching.boundaries.axes, dict(searching.spaces), searching.setting, asked.rate, most
    )
    return searching.at(asked.rate, runners_up=3), dull


def small(found: Found, most: int = MOST) -> bool:
    """Whether the search stayed inside what brute force tried."""
    pools = [n for s in found.apart.values() for n in (s.prefill_workers, s.decode_workers, s.nodes)]
    return all(n <= most for n in (*pools, *(p.workers for p in found.together.values())))


@FEW
@given(draws)
def test_trying_everything_finds_nothing_cheaper(draw: Draw) -> None:
    found, dull = both(question(draw))
    for kind in (None, True, False):
        mine, theirs = found.best_apart(kind), dull.best_apart(kind)
        if theirs is not None:
            assert mine is not None
            assert mine.usd_per_hour <= theirs.usd_per_hour * (1 + 1e-9)
        if mine is not None and small(found):
            assert theirs is not None
            assert mine.usd_per_hour == pytest.approx(theirs.usd_per_hour)
    mine_pool, their_pool = found.best_together, dull.best_together
    if their_pool is not None:
        assert mine_pool is not None
        assert mine_pool.usd_per_hour <= their_pool.usd_per_hour * (1 + 1e-9)
    if mine_pool is not None and small(found):
        assert their_pool is not None
        assert mine_pool.usd_per_hour == pytest.approx(their_pool.usd_per_hour)


@FEW
@given(draws)
def test_what_the_search_returns_keeps_the_slo(draw: Draw) -> None:
    asked = question(draw)
    found = Search.of(asked).at(draw.rate)
    for sized in found.apart.values():
        assert sized.keeps(draw.rate)
    for pooled in found.together.values():
        margins = pooled.stage.margins(draw.rate, float(pooled.workers))
        assert all(float(value) >= 0 for value in margins.values()), margins


@FEW
@given(draws, st.integers(0, 2))
def test_another_offer_never_costs_more(draw: Draw, dropped: int) -> None:
    fewer = replace(draw, prices=tuple(p for i, p in enumerate(draw.prices) if i != dropped) or draw.prices)
    some, more = (Search.of(question(d)).at(d.rate) for d in (fewer, draw))
    for kind in (None, True, False):
        before, after = some.best_apart(kind), more.best_apart(kind)
        if before is not None:
            assert after is not None
            assert after.usd_per_hour <= before.usd_per_hour * (1 + 1e-9)


@FEW
@given(draws, st.floats(0.2, 1.0))
def test_less_load_never_costs_more(draw: Draw, share: float) -> None:
    searching = Search.of(question(draw))
    full, less = searching.at(draw.rate), searching.at(draw.rate * share)
    for kind in (None, True, False):
        before, after = full.best_apart(kind), less.best_apart(kind)
        if before is not None:
            assert after is not None
            assert after.usd_per_hour <= before.usd_per_hour * (1 + 1e-9)
