"""The handoff's table: the two orders, what each loss asks for, and how late or strange messages end."""

from __future__ import annotations

import pytest

from diptych.design.boundary import Ownership
from diptych.serving.effects import Effect
from diptych.serving.handoff import Event, Portable, State, bind, step

PUSH, PULL = Ownership.PUSH, Ownership.PULL


def go(ownership: Ownership, *events: Event) -> tuple[State, list[Effect]]:
    """The state after `events`, and everything asked for on the way."""
    handoff, asked = Portable(1, 100, 10), []
    for event in events:
        asked += handoff.on(ownership, event, 0)
    return handoff.state, asked


def test_push_reserves_before_it_produces() -> None:
    state, asked = go(PUSH, Event.ROUTED, Event.ROOM, Event.PRODUCED, Event.ARRIVED, Event.ACKNOWLEDGED)
    assert state is State.RELEASED
    assert asked == [
        Effect.ASK_ROOM, Effect.PREFILL, Effect.START_TRANSFER, Effect.COMMIT, Effect.ACKNOWLEDGE, Effect.FREE_SOURCE,
    ]  # fmt: skip


def test_pull_produces_before_it_reserves() -> None:
    state, asked = go(PULL, Event.ROUTED, Event.PRODUCED, Event.ROOM, Event.ARRIVED, Event.ACKNOWLEDGED)
    assert state is State.RELEASED
    assert asked == [
        Effect.PREFILL, Effect.ASK_ROOM, Effect.START_TRANSFER, Effect.COMMIT, Effect.ACKNOWLEDGE, Effect.FREE_SOURCE,
    ]  # fmt: skip


@pytest.mark.parametrize("ownership", Ownership)
def test_the_source_is_held_until_the_acknowledgement(ownership: Ownership) -> None:
    order = (Event.ROOM, Event.PRODUCED) if ownership is PUSH else (Event.PRODUCED, Event.ROOM)
    state, asked = go(ownership, Event.ROUTED, *order, Event.ARRIVED)
    assert state is State.COMMITTED
    assert Effect.FREE_SOURCE not in asked


@pytest.mark.parametrize("ownership", Ownership)
@pytest.mark.parametrize("event", [Event.SOURCE_LOST, Event.CORRUPT, Event.EXPIRED])
def test_a_transfer_that_fails_gives_the_target_back_and_never_commits(ownership: Ownership, event: Event) -> None:
    order = (Event.ROOM, Event.PRODUCED) if ownership is PUSH else (Event.PRODUCED, Event.ROOM)
    state, asked = go(ownership, Event.ROUTED, *order, event)
    assert state is State.REVOKED
    assert Effect.FREE_TARGET in asked
    assert asked[-1] is Effect.FALL_BACK
    assert Effect.COMMIT not in asked
    assert (Effect.FREE_SOURCE in asked) == (event is not Event.SOURCE_LOST), "the dead free nothing"


def test_losing_the_target_keeps_the_source_and_chooses_again() -> None:
    state, asked = go(PUSH, Event.ROUTED, Event.ROOM, Event.PRODUCED, Event.TARGET_LOST)
    assert state is State.OFFERED
    assert asked[-2:] == [Effect.STOP_TRANSFER, Effect.CHOOSE_TARGET]
    assert Effect.FREE_SOURCE not in asked


@pytest.mark.parametrize("state", [State.RELEASED, State.REVOKED])
def test_room_granted_after_the_end_goes_back(state: State) -> None:
    assert step(PUSH, state, Event.ROOM) == (state, (Effect.FREE_TARGET,))


def test_another_epoch_changes_nothing() -> None:
    handoff = Portable(1, 100, 10)
    handoff.epoch = 2
    for event in Event:
        asked = handoff.on(PUSH, event, 1)
        assert asked == ((Effect.FREE_TARGET,) if event is Event.ROOM else ())
        assert handoff.state is State.OPEN


@pytest.mark.parametrize("ownership", Ownership)
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_no_transition_forgets_a_side(ownership: Ownership, state: State, event: Event) -> None:
    """Whoever holds blocks before an end is told to free them, unless the event says that he is dead."""
    move = step(ownership, state, event)
    if move is None or move[0] is not State.REVOKED or state in (State.REVOKED, State.COMMITTED):
        return
    holds_source, holds_target = state in (State.OFFERED, State.MOVING), state in (State.ROOMY, State.MOVING)
    assert (Effect.FREE_SOURCE in move[1]) == (holds_source and event is not Event.SOURCE_LOST)
    assert (Effect.FREE_TARGET in move[1]) == (holds_target and event is not Event.TARGET_LOST)


def test_what_a_driver_answers_at_once_becomes_one_move() -> None:
    names = [effect.name for effect in Effect]
    moves = bind(PUSH, [lambda name=name: name for name in names], {Effect.ACKNOWLEDGE: Event.ACKNOWLEDGED})
    move = moves[State.MOVING][Event.ARRIVED]
    assert move is not None
    assert move[0] is State.RELEASED
    assert [carry() for carry in move[1]] == ["COMMIT", "FREE_SOURCE"]
