"""One look at a fleet answers for every fleet that is larger and carries less, or smaller and carries more."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from diptych.planner.seen import Point, Seen

points = st.tuples(*(st.integers(1, 9).map(float),) * 3)


def truth(point: Point) -> bool:
    """Some monotone fact: enough of both for what is carried."""
    return point[0] >= point[2] and point[1] >= point[2] / 2


@given(st.lists(points), points)
def test_what_follows_is_true(looks: list[Point], asked: Point) -> None:
    seen = Seen()
    for look in looks:
        seen.note(look, truth(look))
    assert seen.says(asked) in (None, truth(asked))
    assert all(seen.says(look) is truth(look) for look in looks)


def test_endless_workers_answer_for_any() -> None:
    seen = Seen()
    seen.note((math.inf, math.inf, 5.0), keeps=False)
    assert seen.says((3.0, 4.0, 5.0)) is False
    assert seen.says((3.0, 4.0, 4.0)) is None
