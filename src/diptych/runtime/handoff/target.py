"""The receiving side: it reserves, is filled, counts, takes over, and tells the source; heartbeats keep the source's lease.

A handoff begins only when both halves are known, the gateway's (`expect`) and the source's (`reserve` or `offer`), in either
order. One that has ended is remembered by its epoch, so that what arrives late (a reservation after the end, blocks of an
earlier life) is refused and leaves nothing behind. Times are milliseconds of this process's monotonic clock.

| state     | has                              | until                              | then                    |
|-----------|----------------------------------|------------------------------------|-------------------------|
| EXPECTED  | the gateway's half               | the wait limit                     | report                  |
| CALLED    | the source's half                | the wait limit                     | reject                  |
| WAITING   | both; no blocks yet              | the wait limit                     | reject, report          |
| FILLING   | reserved blocks                  | heartbeats, at most the wait limit | abort, report, free     |
| COUNTING  | `done` was said                  | the same                           | the same                |

After that the KV is the batch's, and nothing of the handoff is left here.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum

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
from diptych.runtime.handoff.deeds import Activate, Count, Deed, FreeTarget, MakeRoom, Report, Say

BEATS = 6
"""Heartbeats in one lease, as vLLM's NIXL connector has it."""
REMEMBERED = 65536
"""Handoffs that ended, by id with their last epoch, so that the late are known."""


class Phase(IntEnum):
    """Where a handoff is at the target."""

    EXPECTED = 0
    CALLED = 1
    WAITING = 2
    FILLING = 3
    COUNTING = 4


@dataclass(slots=True)
class _Arrival:
    epoch: int
    peer: str
    phase: Phase
    until: int
    call: Reserve | Offer | None = None
    next_beat: int = 0
    first_token: int = 0


class Target:
    """Every handoff that this worker is the target of, until the KV is its own or nothing is left."""

    def __init__(self, wait_ms: int = 60_000) -> None:
        self.wait_ms = wait_ms
        self._open: dict[bytes, _Arrival] = {}
        self._ended: OrderedDict[bytes, int] = OrderedDict()

    # --- what it holds ----------------------------------------------------------------------------------------------

    @property
    def reservations(self) -> int:
        """Handoffs with blocks reserved that are not the batch's yet."""
        return sum(each.phase in (Phase.FILLING, Phase.COUNTING) for each in self._open.values())

    @property
    def open(self) -> int:
        return len(self._open)

    def phase(self, id: bytes) -> Phase | None:
        return self._open[id].phase if id in self._open else None

    def is_made(self, id: bytes) -> bool:
        """Whether its KV exists already, so that it waits for nothing but room here."""
        return id in self._open and isinstance(self._open[id].call, Offer)

    def unreserved(self) -> list[tuple[bytes, int]]:
        """Handoffs that have no blocks here yet, by id and epoch."""
        return [(id, each.epoch) for id, each in self._open.items() if each.phase < Phase.FILLING]

    # --- events -----------------------------------------------------------------------------------------------------

    def expect(self, id: bytes, epoch: int, peer: str, now: int) -> list[Deed]:
        """The gateway's half: `peer` will hand this over."""
        if self._is_late(id, epoch):
            return [Report(id, epoch, str(Reason.STALE_EPOCH), retry=False)]
        deeds, arrival = self._newest(id, epoch)
        if arrival is None:
            self._open[id] = _Arrival(epoch, peer, Phase.EXPECTED, now + self.wait_ms)
        elif arrival.phase is Phase.CALLED and arrival.peer == peer:
            deeds += self._both(id, arrival, now)
        elif arrival.phase is Phase.CALLED:  # another worker called: the gateway's word counts
            deeds.append(Say(id, epoch, arrival.peer, Reject(Reason.UNKNOWN)))
            self._open[id] = _Arrival(epoch, peer, Phase.EXPECTED, now + self.wait_ms)
        return deeds

    def heard(self, peer: str, id: bytes, epoch: int, message: Message, now: int) -> list[Deed]:
        """A message from a source."""
        if isinstance(message, Reserve | Offer):
            return self._called(peer, id, epoch, message, now)
        arrival = self._current(id, epoch, peer)
        if arrival is None:
            return []
        if isinstance(message, Done) and arrival.phase is Phase.FILLING:
            arrival.phase, arrival.first_token = Phase.COUNTING, message.first_token
            return [Count(id, epoch)]
        if isinstance(message, Abort):
            return self._end(id, arrival, str(message.reason), report=True)
        return []

    def room(self, id: bytes, epoch: int, held_blocks: int, total_bytes: int, now: int) -> list[Deed]:
        """Blocks are reserved. When nobody wants them any more they go straight back."""
        arrival = self._open.get(id)
        if arrival is None or arrival.epoch != epoch or arrival.phase is not Phase.WAITING:
            return [FreeTarget(id, epoch)]
        assert arrival.call is not None
        arrival.phase = Phase.FILLING
        arrival.until = now + self.wait_ms
        return [Say(id, epoch, arrival.peer, Accept(total_bytes, held_blocks)), *self._beat(id, arrival, now)]

    def no_room(self, id: bytes, epoch: int, reason: Reason, retry_ms: int, detail: str = "") -> list[Deed]:
        """There never will be room for this one here, or not soon enough."""
        arrival = self._open.get(id)
        if arrival is None or arrival.epoch != epoch or arrival.phase is not Phase.WAITING:
            return []
        self._forget(id, epoch)
        return [
            Say(id, epoch, arrival.peer, Reject(reason, retry_ms, detail)),
            Report(id, epoch, str(reason), detail, retry_ms > 0, retry_ms),
        ]

    def counted(self, id: bytes, epoch: int, arrived: int, missing: int, corrupt: bool = False) -> list[Deed]:
        """What is here after `done`: all of it, some (ask again), or what must not be used."""
        arrival = self._open.get(id)
        if arrival is None or arrival.epoch != epoch or arrival.phase is not Phase.COUNTING:
            return []
        if corrupt:
            told = Say(id, epoch, arrival.peer, Validated(Verdict.CORRUPT, arrived, missing))
            return [told, *self._end(id, arrival, str(Reason.CORRUPT), report=True)]
        if missing:
            arrival.phase = Phase.FILLING
            return [Say(id, epoch, arrival.peer, Validated(Verdict.DAMAGED, arrived, missing))]
        self._forget(id, epoch)
        said = (Validated(Verdict.ARRIVED, arrived, 0), Commit(), Release())
        return [Activate(id, epoch, arrival.first_token), *(Say(id, epoch, arrival.peer, message) for message in said)]

    def cancelled(self, id: bytes, epoch: int) -> list[Deed]:
        """Nobody waits for the answer any more, up to and including this epoch."""
        arrival = self._open.get(id)
        if arrival is None or arrival.epoch > epoch:
            self._remember(id, epoch)
            return []
        told = [Say(id, arrival.epoch, arrival.peer, Abort(Reason.TARGET_LOST))] if arrival.call is not None else []
        self._remember(id, epoch)
        return [*told, *self._end(id, arrival, "", report=False)]

    def lost(self, peer: str) -> list[Deed]:
        """The connection to a source is gone: nothing that is not whole can be used."""
        deeds: list[Deed] = []
        for id, arrival in [(id, each) for id, each in self._open.items() if each.peer == peer]:
            if arrival.phase is not Phase.EXPECTED:
                deeds += self._end(id, arrival, str(Reason.SOURCE_LOST), report=arrival.phase is not Phase.CALLED)
        return deeds

    def tick(self, now: int) -> list[Deed]:
        """Heartbeats that are due, and waits that are over."""
        deeds: list[Deed] = []
        for id, arrival in list(self._open.items()):
            if arrival.until <= now:
                deeds += self._overdue(id, arrival)
            elif arrival.call is not None and arrival.phase is not Phase.CALLED and arrival.next_beat <= now:
                deeds += self._beat(id, arrival, now)
        return deeds

    # --- within -----------------------------------------------------------------------------------------------------

    def _called(self, peer: str, id: bytes, epoch: int, call: Reserve | Offer, now: int) -> list[Deed]:
        if self._is_late(id, epoch):
            return [Say(id, epoch, peer, Reject(Reason.STALE_EPOCH))]
        deeds, arrival = self._newest(id, epoch)
        if arrival is None:
            self._open[id] = _Arrival(epoch, peer, Phase.CALLED, now + self.wait_ms, call)
            return deeds
        if arrival.phase is not Phase.EXPECTED or arrival.peer != peer:
            return deeds if arrival.peer == peer else [*deeds, Say(id, epoch, peer, Reject(Reason.UNKNOWN))]
        arrival.call = call
        return deeds + self._both(id, arrival, now)

    def _both(self, id: bytes, arrival: _Arrival, now: int) -> list[Deed]:
        """Both halves are known: ask for blocks, and keep the lease while waiting for them."""
        call = arrival.call
        assert call is not None
        arrival.phase = Phase.WAITING
        arrival.until = now + self.wait_ms
        room = MakeRoom(id, arrival.epoch, call.tokens, call.total_bytes, call.state)
        return [room, *self._beat(id, arrival, now)]

    def _beat(self, id: bytes, arrival: _Arrival, now: int) -> list[Deed]:
        assert arrival.call is not None
        lease = arrival.call.lease_ms
        arrival.next_beat = now + max(lease // BEATS, 1)
        return [Say(id, arrival.epoch, arrival.peer, Renew(lease))]

    def _overdue(self, id: bytes, arrival: _Arrival) -> list[Deed]:
        if arrival.phase in (Phase.CALLED, Phase.WAITING):
            self._forget(id, arrival.epoch)
            told: list[Deed] = [Say(id, arrival.epoch, arrival.peer, Reject(Reason.EXPIRED))]
            return told if arrival.phase is Phase.CALLED else [*told, Report(id, arrival.epoch, str(Reason.EXPIRED))]
        told = [Say(id, arrival.epoch, arrival.peer, Abort(Reason.EXPIRED))] if arrival.call is not None else []
        return [*told, *self._end(id, arrival, str(Reason.EXPIRED), report=True)]

    def _newest(self, id: bytes, epoch: int) -> tuple[list[Deed], _Arrival | None]:
        """The arrival of this epoch; one of an older epoch ends here."""
        arrival = self._open.get(id)
        if arrival is None or arrival.epoch == epoch:
            return [], arrival
        told = [Say(id, arrival.epoch, arrival.peer, Abort(Reason.STALE_EPOCH))] if arrival.call is not None else []
        return [*told, *self._end(id, arrival, "", report=False)], None

    def _current(self, id: bytes, epoch: int, peer: str) -> _Arrival | None:
        arrival = self._open.get(id)
        return arrival if arrival is not None and (arrival.epoch, arrival.peer) == (epoch, peer) else None

    def _is_late(self, id: bytes, epoch: int) -> bool:
        arrival = self._open.get(id)
        return epoch <= self._ended.get(id, -1) or (arrival is not None and arrival.epoch > epoch)

    def _end(self, id: bytes, arrival: _Arrival, reason: str, report: bool) -> list[Deed]:
        self._forget(id, arrival.epoch)
        deeds: list[Deed] = []
        if arrival.phase >= Phase.WAITING:  # blocks may be on their way to it
            deeds.append(FreeTarget(id, arrival.epoch))
        if report:
            deeds.append(Report(id, arrival.epoch, reason))
        return deeds

    def _forget(self, id: bytes, epoch: int) -> None:
        del self._open[id]
        self._remember(id, epoch)

    def _remember(self, id: bytes, epoch: int) -> None:
        self._ended[id] = max(epoch, self._ended.pop(id, -1))
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
