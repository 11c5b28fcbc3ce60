"""The front, against the definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from diptych.planner.pareto import undominated

tables = st.integers(1, 25).flatmap(lambda n: arrays(float, (n, 4), elements=st.integers(0, 4).map(float)))


@given(tables)
def test_the_front_is_exactly_what_nothing_beats(costs: np.ndarray) -> None:
    kept = undominated(costs)
    for row, keep in zip(costs, kept, strict=True):
        beaten = any(np.all(other <= row) and np.any(other < row) for other in costs)
        if keep:
            assert not beaten
        elif not beaten:
            assert any(np.array_equal(row, other) for other in costs[kept])


def test_equal_rows_leave_one() -> None:
    assert undominated(np.ones((3, 2))).tolist() == [True, False, False]
