"""What the planner asks of a stock engine piece by piece is what the whole rules say: a piece never refuses what they accept."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_rules import CATALOG, designs

from diptych.design.ruling import Pair
from diptych.engines.objections import objections
from diptych.planner.stock import Stock

STOCKS = tuple(map(Stock.parse, ("vllm@0.33", "sglang@0.5", "vllm@0.20")))


def test_a_series_stands_for_the_release_that_was_read() -> None:
    assert [str(stock) for stock in STOCKS] == ["vllm 0.33.0", "sglang 0.5.23", "vllm 0.20.0"]


@given(designs(), st.sampled_from(STOCKS))
@settings(max_examples=200, deadline=None)
def test_a_part_refuses_nothing_that_the_whole_accepts(design, stock) -> None:
    prefill, decode = (pool.members[0].worker for pool in design.pools)
    boundary = design.boundary
    whole = next(objections(prefill, decode, boundary, stock.engine, stock.version), None)
    fresh = Stock(stock.engine, stock.version)
    parts = fresh.accelerators(prefill, decode, boundary), fresh.shapes(prefill, decode, boundary)
    assert (fresh.pair(Pair(prefill, decode, boundary)) is None) == (whole is None)
    assert whole is not None or parts == (None, None), (parts, CATALOG)


@given(designs(), designs(), st.sampled_from(STOCKS))
@settings(max_examples=100, deadline=None)
def test_what_is_remembered_is_what_the_rules_say(first, second, stock) -> None:
    """One memory for a whole question: a key that left out what a rule looks at would answer for another pair."""
    for design in (first, second):
        prefill, decode = (pool.members[0].worker for pool in design.pools)
        if prefill.model != first.pools[0].members[0].worker.model:
            return
        known = Stock(stock.engine, stock.version)
        known.pair(Pair(*(pool.members[0].worker for pool in first.pools), first.boundary))
        whole = next(objections(prefill, decode, design.boundary, stock.engine, stock.version), None)
        assert (known.pair(Pair(prefill, decode, design.boundary)) is None) == (whole is None)
