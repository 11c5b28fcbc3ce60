"""The KV handoff: offer → reserve → transfer → validate → commit → release. Push and pull are two orders of it.

Who holds what, and who may free it:

| state     | source blocks           | target blocks     | duty                                                     |
|-----------|-------------------------|-------------------|----------------------------------------------------------|
| OPEN      | none                    | none              | gateway                                                  |
| PRODUCING | prefill writes them     | none              | source                                                   |
| ROOMY     | prefill writes them     | reserved          | source; the reservation dies with it                     |
| OFFERED   | pinned under a lease    | none              | source; if the target dies another one is chosen         |
| MOVING    | pinned under a lease    | reserved, filling | source: no part of a filling target can be decoded       |
| COMMITTED | pinned until the ack    | live              | target                                                   |
| RELEASED  | free                    | live              | target                                                   |
| REVOKED   | free                    | free              | nobody: the fallback decides                             |

Push reserves, then produces: prefill may write layer by layer, and a full target holds prefill back. Pull produces, then
reserves: prefill never waits, and a full target lets sources pile up. Either way nothing waits for room that only another
waiting one could free. Every event carries the epoch of the handoff it means: one of another epoch, or one that the state does
not expect (an ack twice, a reservation after the end), changes nothing and asks for nothing, except that room granted too late
is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from diptych.design.boundary import Ownership
from diptych.serving import request
from diptych.serving.effects import Effect

Effects = tuple[Effect, ...]


class State(IntEnum):
    """Where a handoff is."""

    OPEN = 0
    PRODUCING = 1
    ROOMY = 2
    OFFERED = 3
    MOVING = 4
    COMMITTED = 5
    RELEASED = 6
    REVOKED = 7


class Event(IntEnum):
    """What can happen to a handoff."""

    ROUTED = 0  # both workers are chosen
    PRODUCED = 1  # prefill is done
    ROOM = 2  # the target has reserved its blocks
    ARRIVED = 3  # all bytes are there and validated
    CORRUPT = 4  # validation refused them, for good
    ACKNOWLEDGED = 5
    SOURCE_LOST = 6
    TARGET_LOST = 7
    EXPIRED = 8  # the source's lease ran out, or a wait its limit
    CANCELLED = 9
    DAMAGED = 10  # validation refused them, and they may be sent again


_E, _S, _V = Effect, State, Event
_Table = dict[State, dict[Event, tuple[State, Effects]]]

_COMMON: _Table = {
    _S.OFFERED: {
        _V.ROOM: (_S.MOVING, (_E.START_TRANSFER,)),
        _V.SOURCE_LOST: (_S.REVOKED, (_E.FALL_BACK,)),
        _V.TARGET_LOST: (_S.OFFERED, (_E.CHOOSE_TARGET,)),
        _V.EXPIRED: (_S.REVOKED, (_E.FREE_SOURCE, _E.FALL_BACK)),
        _V.CANCELLED: (_S.REVOKED, (_E.FREE_SOURCE,)),
    },
    _S.MOVING: {
        _V.ARRIVED: (_S.COMMITTED, (_E.COMMIT, _E.ACKNOWLEDGE)),
        _V.CORRUPT: (_S.REVOKED, (_E.FREE_TARGET, _E.FREE_SOURCE, _E.FALL_BACK)),
        _V.DAMAGED: (_S.MOVING, (_E.START_TRANSFER,)),
        _V.SOURCE_LOST: (_S.REVOKED, (_E.STOP_TRANSFER, _E.FREE_TARGET, _E.FALL_BACK)),
        _V.TARGET_LOST: (_S.OFFERED, (_E.STOP_TRANSFER, _E.CHOOSE_TARGET)),
        _V.EXPIRED: (_S.REVOKED, (_E.STOP_TRANSFER, _E.FREE_TARGET, _E.FREE_SOURCE, _E.FALL_BACK)),
        _V.CANCELLED: (_S.REVOKED, (_E.STOP_TRANSFER, _E.FREE_TARGET, _E.FREE_SOURCE)),
    },
    _S.COMMITTED: {
        _V.ACKNOWLEDGED: (_S.RELEASED, (_E.FREE_SOURCE,)),
        _V.SOURCE_LOST: (_S.RELEASED, ()),
        _V.TARGET_LOST: (_S.REVOKED, (_E.FREE_SOURCE,)),  # the decode side reports its own losses
        _V.EXPIRED: (_S.RELEASED, (_E.FREE_SOURCE,)),  # the ack was lost
        _V.CANCELLED: (_S.RELEASED, (_E.FREE_SOURCE,)),
    },
    _S.RELEASED: {_V.ROOM: (_S.RELEASED, (_E.FREE_TARGET,))},
    _S.REVOKED: {_V.ROOM: (_S.REVOKED, (_E.FREE_TARGET,))},
}

_PUSH: _Table = {
    _S.OPEN: {
        _V.ROUTED: (_S.OPEN, (_E.ASK_ROOM,)),
        _V.ROOM: (_S.ROOMY, (_E.PREFILL,)),
        _V.SOURCE_LOST: (_S.REVOKED, (_E.FALL_BACK,)),
        _V.TARGET_LOST: (_S.OPEN, (_E.CHOOSE_TARGET,)),
        _V.EXPIRED: (_S.REVOKED, (_E.FALL_BACK,)),
        _V.CANCELLED: (_S.REVOKED, ()),
    },
    _S.PRODUCING: {  # the first target was lost
        _V.ROOM: (_S.ROOMY, ()),
        _V.PRODUCED: (_S.OFFERED, ()),
        _V.SOURCE_LOST: (_S.REVOKED, (_E.FALL_BACK,)),
        _V.TARGET_LOST: (_S.PRODUCING, (_E.CHOOSE_TARGET,)),
        _V.CANCELLED: (_S.REVOKED, ()),
    },
    _S.ROOMY: {
        _V.PRODUCED: (_S.MOVING, (_E.START_TRANSFER,)),
        _V.SOURCE_LOST: (_S.REVOKED, (_E.FREE_TARGET, _E.FALL_BACK)),
        _V.TARGET_LOST: (_S.PRODUCING, (_E.CHOOSE_TARGET,)),
        _V.CANCELLED: (_S.REVOKED, (_E.FREE_TARGET,)),
    },
    **_COMMON,
}

_PULL: _Table = {
    _S.OPEN: {_V.ROUTED: (_S.PRODUCING, (_E.PREFILL,))},
    _S.PRODUCING: {
        _V.PRODUCED: (_S.OFFERED, (_E.ASK_ROOM,)),
        _V.SOURCE_LOST: (_S.REVOKED, (_E.FALL_BACK,)),
        _V.TARGET_LOST: (_S.PRODUCING, ()),  # not asked yet; another one is chosen when it is time to ask
        _V.CANCELLED: (_S.REVOKED, ()),
    },
    **_COMMON,
}

_TABLES: dict[Ownership, _Table] = {Ownership.PUSH: _PUSH, Ownership.PULL: _PULL}
_OPEN: Final = State.OPEN
Carry = Callable[..., Any]
Moves = tuple[tuple[tuple[State, tuple[Carry, ...]] | None, ...], ...]


def step(ownership: Ownership, state: State, event: Event) -> tuple[State, Effects] | None:
    """Where an event leads from a state and what must be done then; None when the state does not expect it."""
    return _TABLES[ownership].get(state, {}).get(event)


def bind(ownership: Ownership, carry: Sequence[Carry], at_once: Mapping[Effect, Event]) -> Moves:
    """The table for a driver with one function per effect: by state and event, the next state and what to call.

    `at_once` names effects that the driver answers with an event in the same instant (an acknowledgement that takes no time):
    the two moves become one.
    """
    return tuple(
        tuple(_bound(ownership, step(ownership, state, event), carry, at_once) for event in Event) for state in State
    )


def _bound(
    ownership: Ownership, move: tuple[State, Effects] | None, carry: Sequence[Carry], at_once: Mapping[Effect, Event]
) -> tuple[State, tuple[Carry, ...]] | None:
    if move is None:
        return None
    state, effects = move
    if effects and effects[-1] in at_once:
        then = step(ownership, state, at_once[effects[-1]])
        assert then is not None, f"{effects[-1]!r} is not answered in {state!r}"
        state, effects = then[0], effects[:-1] + then[1]
    return state, tuple(carry[effect] for effect in effects)


class Portable(request.Sequence):
    """A sequence whose KV can change hands: its handoff from `source` to `target`, fenced by its epoch.

    `pinned` is what the source holds for it and `room` what the target does (a batch's `Holding`).
    """

    __slots__ = ("pinned", "room", "source", "state", "target")

    def __init__(self, id: int, prompt: int, osl: int, blocks: tuple[Any, ...] = ()) -> None:
        super().__init__(id, prompt, osl, blocks)
        self.hand(None, None)

    def hand(self, source: Any, target: Any) -> None:
        """A new handoff begins."""
        self.source, self.target, self.state = source, target, _OPEN
        self.pinned: Any = None
        self.room: Any = None

    def on(self, ownership: Ownership, event: Event, epoch: int) -> Effects:
        """Take an event meant for `epoch`; late or unexpected ones ask for nothing, except that room granted late goes back."""
        if epoch != self.epoch:
            return (_E.FREE_TARGET,) if event is _V.ROOM else ()
        move = step(ownership, self.state, event)
        if move is None:
            return ()
        self.state = move[0]
        return move[1]
