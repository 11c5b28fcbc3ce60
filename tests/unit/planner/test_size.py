"""Integer sizing, against counting up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.planner.size import MOST_WORKERS, fewest, fluid


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_fewest_is_the_first_count_that_keeps(threshold: int, start: int) -> None:
    assert fewest(lambda n: n >= threshold, start) == max(threshold, start)


def test_fewest_says_none_when_nothing_keeps() -> None:
    assert fewest(lambda n: n >= 50, 1, most=40) is None
    assert fewest(lambda n: n > 0, MOST_WORKERS + 1) is None


def test_fewest_asks_in_bulk() -> None:
    asked: list[int] = []

    def keeps(counts: np.ndarray) -> np.ndarray:
        asked.append(len(counts))
        return counts >= 700

    assert fewest(keeps, 1) == 700
    assert len(asked) < 25


@pytest.mark.parametrize(("rate", "capacity", "count"), [(10.0, 5.0, 2), (10.1, 5.0, 3), (1.0, 8.0, 1)])
def test_fluid_counts(rate: float, capacity: float, count: int) -> None:
    assert fluid(rate, capacity) == count


def test_a_stage_without_capacity_needs_more_than_there_are() -> None:
    assert fluid(1.0, 0.0) > MOST_WORKERS
