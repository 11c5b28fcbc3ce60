"""The producing side: it computes, pins under a lease, sends, and frees when the target has taken over or can no longer.

It follows `serving.handoff`'s table by the same events; what the table asks of the target becomes a message. Times are
milliseconds of this process's monotonic clock; a lease runs from when its message is read, so clocks are never compared.

| state     | waits for                     | until          | then               |
|-----------|-------------------------------|----------------|--------------------|
| OPEN      | push: `accept` of a `reserve` | the wait limit | report             |
| PRODUCING | prefill                       | (the engine)   |                    |
| ROOMY     | prefill                       | (the engine)   |                    |
| OFFERED   | pull: `accept` of an `offer`  | the lease      | report, free       |
| MOVING    | `validated`                   | the lease      | abort, report, free|
| COMMITTED | `release`                     | the lease      | free               |
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from diptych.boundary.messages import (
    Abort,
    Accept,
    Commit,
    Done,
    Message,
    Offer,
    Reason,
    Reject,
    Release,
    Renew,
    Reserve,
    Validated,
    Verdict,
)
from diptych.design.boundary import Ownership
from diptych.runtime.handoff.deeds import Deed, FreeSource, Handed, Prefill, Report, Say, Send
from diptych.serving.effects import Effect
from diptych.serving.handoff import Event, State, step

DAMAGED_AGAIN = 3
"""Times that damaged blocks are sent again before the handoff is given up."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is to be handed over: the half as the gateway gave it, and what this worker makes of it."""

    id: bytes
    epoch: int
    peer: str
    ownership: Ownership
    tokens: int
    total_bytes: int
    state: bytes
    lease_ms: int
    wait_ms: int


@dataclass(slots=True)
class _Handoff:
    parcel: Parcel
    state: State
    until: int
    damaged: int = 0
    held_blocks: int = 0
    first_token: int = 0


class Source:
    """Every handoff that this worker is the source of. Nothing is kept of one that has ended but its epoch's end."""

    def __init__(self) -> None:
        self._open: dict[bytes, _Handoff] = {}

    # --- what it holds ----------------------------------------------------------------------------------------------

    @property
    def pins(self) -> int:
        """Prompts whose blocks are pinned: produced and not freed."""
        pinned = (State.OFFERED, State.MOVING, State.COMMITTED)
        return sum(each.state in pinned for each in self._open.values())

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def transfers(self) -> int:
        return sum(each.state is State.MOVING for each in self._open.values())

    def held_blocks(self, id: bytes) -> int:
        """Leading blocks of every layer that the target has already."""
        return self._open[id].held_blocks if id in self._open else 0

    def has_room(self, id: bytes) -> bool:
        """Whether its target has room for it."""
        return id in self._open and self._open[id].state not in (State.OPEN, State.OFFERED)

    # --- events -----------------------------------------------------------------------------------------------------

    def submit(self, parcel: Parcel, now: int) -> list[Deed]:
        """The gateway gives this half. A newer epoch ends an older one; an older or equal one is ignored."""
        deeds: list[Deed] = []
        standing = self._open.get(parcel.id)
        if standing is not None:
            if standing.parcel.epoch >= parcel.epoch:
                return deeds
            deeds += self._event(standing, Event.CANCELLED, now)
        handoff = self._open[parcel.id] = _Handoff(parcel, State.OPEN, now + parcel.wait_ms)
        return deeds + self._event(handoff, Event.ROUTED, now)

    def produced(self, id: bytes, epoch: int, first_token: int, now: int) -> list[Deed]:
        """Prefill is done and has chosen the first token; the blocks are pinned from here on."""
        handoff = self._current(id, epoch)
        if handoff is None:
            return []
        handoff.until, handoff.first_token = now + handoff.parcel.lease_ms, first_token
        return self._event(handoff, Event.PRODUCED, now)

    def failed(self, id: bytes, epoch: int, now: int) -> list[Deed]:
        """The engine could not compute it."""
        handoff = self._current(id, epoch)
        if handoff is None:
            return []
        return [*self._event(handoff, Event.CANCELLED, now), Report(id, epoch, "engine fault", retry=True)]

    def sent(self, id: bytes, epoch: int, frames: int, total_bytes: int) -> list[Deed]:
        """The last frame is out."""
        handoff = self._current(id, epoch)
        if handoff is None or handoff.state is not State.MOVING:
            return []
        return [Say(id, epoch, handoff.parcel.peer, Done(frames, total_bytes, handoff.first_token))]

    def heard(self, peer: str, id: bytes, epoch: int, message: Message, now: int) -> list[Deed]:
        """A message from the target. From anyone else, or about another epoch, it changes nothing."""
        handoff = self._current(id, epoch)
        if handoff is None or handoff.parcel.peer != peer:
            return []
        match message:
            case Accept():
                handoff.held_blocks = message.held_blocks
                return self._event(handoff, Event.ROOM, now)
            case Reject():
                return self._rejected(handoff, message, now)
            case Validated():
                return self._validated(handoff, message, now)
            case Commit():
                return self._event(handoff, Event.ARRIVED, now)
            case Release():  # a commit that was lost on the way is implied
                return self._event(handoff, Event.ARRIVED, now) + self._event(handoff, Event.ACKNOWLEDGED, now)
            case Renew():
                handoff.until = max(handoff.until, now + min(message.lease_ms, handoff.parcel.lease_ms))
            case Abort():
                return self._aborted(handoff, message, now)
        return []

    def cancelled(self, id: bytes, epoch: int, now: int) -> list[Deed]:
        """Nobody waits for the answer any more. The target is told as well, in case the gateway cannot."""
        handoff = self._current(id, epoch)
        return [] if handoff is None else self._event(handoff, Event.CANCELLED, now)

    def lost(self, peer: str, now: int, only: Container[bytes] | None = None) -> list[Deed]:
        """The connection to a target is gone: what was on the way there is reported, what is committed there is freed here.

        `only`: the handoffs that used this connection, where others use another one by now.
        """
        deeds: list[Deed] = []
        for handoff in [each for each in self._open.values() if each.parcel.peer == peer]:
            if only is None or handoff.parcel.id in only:
                deeds += self._event(handoff, Event.TARGET_LOST, now)
        return deeds

    def tick(self, now: int) -> list[Deed]:
        """Whatever ran out. Every one is looked at: renewals break any order by time."""
        deeds: list[Deed] = []
        for handoff in [each for each in self._open.values() if each.until <= now]:
            if handoff.state not in (State.PRODUCING, State.ROOMY):  # the engine's own time
                deeds += self._event(handoff, Event.EXPIRED, now)
        return deeds

    # --- the table --------------------------------------------------------------------------------------------------

    def _current(self, id: bytes, epoch: int) -> _Handoff | None:
        handoff = self._open.get(id)
        return handoff if handoff is not None and handoff.parcel.epoch == epoch else None

    def _rejected(self, handoff: _Handoff, message: Reject, now: int) -> list[Deed]:
        """No room there: the gateway may ask again, here or elsewhere."""
        if handoff.state not in (State.OPEN, State.OFFERED):
            return []
        parcel = handoff.parcel
        report = Report(
            parcel.id, parcel.epoch, str(message.reason), message.detail, message.retry_ms > 0, message.retry_ms
        )
        return [*self._event(handoff, Event.CANCELLED, now, tell=False), report]

    def _validated(self, handoff: _Handoff, message: Validated, now: int) -> list[Deed]:
        if message.verdict is Verdict.ARRIVED:
            return self._event(handoff, Event.ARRIVED, now)
        handoff.damaged += 1
        if message.verdict is Verdict.DAMAGED and handoff.damaged <= DAMAGED_AGAIN:
            return self._event(handoff, Event.DAMAGED, now)
        return self._event(handoff, Event.CORRUPT, now)

    def _aborted(self, handoff: _Handoff, message: Abort, now: int) -> list[Deed]:
        """The target gave it up and holds nothing."""
        if handoff.state is State.COMMITTED:
            return self._event(handoff, Event.ACKNOWLEDGED, now)
        parcel = handoff.parcel
        report = Report(parcel.id, parcel.epoch, str(message.reason), message.detail)
        return [*self._event(handoff, Event.CANCELLED, now, tell=False), report]

    def _event(self, handoff: _Handoff, event: Event, now: int, tell: bool = True) -> list[Deed]:
        """Take a step of the table; what it asks becomes deeds. A handoff that has ended is forgotten."""
        move = step(handoff.parcel.ownership, handoff.state, event)
        if move is None:
            return []
        before, (handoff.state, effects) = handoff.state, move
        if handoff.state in (State.RELEASED, State.REVOKED) or Effect.CHOOSE_TARGET in effects:
            return self._end(handoff, event, before, tell)
        return [deed for effect in effects for deed in self._deeds(handoff.parcel, effect)]

    def _deeds(self, parcel: Parcel, effect: Effect) -> Iterator[Deed]:
        id, epoch, peer = parcel.id, parcel.epoch, parcel.peer
        match effect:
            case Effect.ASK_ROOM:
                kind = Reserve if parcel.ownership is Ownership.PUSH else Offer
                yield Say(id, epoch, peer, kind(parcel.state, parcel.tokens, parcel.total_bytes, parcel.lease_ms))
            case Effect.PREFILL:
                yield Prefill(id, epoch)
            case Effect.START_TRANSFER:
                yield Send(id, epoch, peer)

    def _end(self, handoff: _Handoff, event: Event, before: State, tell: bool) -> list[Deed]:
        """Free what is held here, and tell whoever may still count on it: the target, unless it said so; the gateway.

        A lost target is not replaced here: the gateway routes, and what was computed stays in the prefix cache.
        """
        parcel = handoff.parcel
        id, epoch = parcel.id, parcel.epoch
        del self._open[id]
        deeds: list[Deed] = [FreeSource(id, epoch)]
        if before is State.COMMITTED:
            return [*deeds, Handed(id, epoch)]
        reason = _REASONS[event]
        if tell and event is not Event.TARGET_LOST:
            deeds.append(Say(id, epoch, parcel.peer, Abort(reason)))
        if event is not Event.CANCELLED:
            deeds.append(Report(id, epoch, str(reason)))
        return deeds


_REASONS = {
    Event.EXPIRED: Reason.EXPIRED,
    Event.CORRUPT: Reason.CORRUPT,
    Event.TARGET_LOST: Reason.TARGET_LOST,
    Event.CANCELLED: Reason.SOURCE_LOST,
}
