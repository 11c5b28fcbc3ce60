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

from enum import IntEnum
from typing import Any

from diptych.design.boundary import Ownership
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
    CORRUPT = 4  # validation refused them
    ACKNOWLEDGED = 5
    SOURCE_LOST = 6
    TARGET_LOST = 7
    EXPIRED = 8  # the source's lease ran out, or a wait its limit
    CANCELLED = 9


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

_NOTHING: Effects = ()
_Row = tuple[tuple[State, Effects] | None, ...]


def _rows(table: _Table) -> tuple[_Row, ...]:
    """The table as tuples, indexed by state and event: a look-up is two steps."""
    return tuple(tuple(table.get(state, {}).get(event) for event in Event) for state in State)


ORDERS: dict[Ownership, tuple[_Row, ...]] = {Ownership.PUSH: _rows(_PUSH), Ownership.PULL: _rows(_PULL)}


class Handoff:
    """One handoff of one sequence from `source` to `target`. `on(event, epoch)` moves it and says what the driver must do."""

    __slots__ = ("epoch", "order", "pinned", "room", "sequence", "source", "state", "target")

    def __init__(self, order: tuple[_Row, ...], sequence: Any, source: Any, target: Any, epoch: int) -> None:
        self.order, self.sequence, self.source, self.target, self.epoch = order, sequence, source, target, epoch
        self.state = _S.OPEN
        self.pinned: Any = None  # what the source holds for it
        self.room: Any = None  # what the target holds for it

    def on(self, event: Event, epoch: int) -> Effects:
        """Take an event meant for `epoch`; late or unexpected ones ask for nothing."""
        if epoch != self.epoch:
            return (_E.FREE_TARGET,) if event is _V.ROOM else _NOTHING
        step = self.order[self.state][event]
        if step is None:
            return _NOTHING
        self.state = step[0]
        return step[1]
