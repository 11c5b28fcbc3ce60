"""What a probe asks: never more than a worker can hold, always enough for a fit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from diptych.runtime.probe.plan import STEPS, Plan


@given(st.integers(STEPS + 3, 1 << 20), st.integers(STEPS + 3, 1 << 20), st.integers(1, 1024))
def test_every_point_fits_the_worker_and_some_are_fitted(most: int, room: int, sequences: int) -> None:
    plan = Plan(most, room, sequences)
    assert any(fitted for _, fitted in plan.prompts)
    assert any(fitted for *_, fitted in plan.decodes)
    assert all(tokens + STEPS < min(most, room) for tokens, _ in plan.prompts)
    assert all(tokens + past + STEPS < min(most, room) for tokens, past, _ in plan.pasts)
    assert all(batch * (tokens + STEPS) <= room and batch <= sequences for batch, tokens, _ in plan.decodes)


def test_a_roomy_worker_is_asked_everything() -> None:
    plan = Plan(8192, 50_000, 256)
    assert len(plan.prompts) == 11
    assert len(plan.decodes) == 10
    assert [held for *_, held in plan.pasts] == [True, False, True]
