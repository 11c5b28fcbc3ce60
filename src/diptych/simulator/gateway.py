"""Where requests enter and leave: routes them, carries out what handoffs ask for, and writes down what happened."""

from __future__ import annotations

from array import array
from typing import Any

from diptych.design.axes import Role
from diptych.serving.effects import Effect
from diptych.serving.handoff import Event, Handoff, bind
from diptych.serving.request import Stage
from diptych.simulator.request import Request

FIELDS = 13
HANDING_OFF = Stage.HANDING_OFF  # members looked up once: a class attribute of an enum is slow to reach
ROUTED, PRODUCED, ROOM, ARRIVED, ACKNOWLEDGED = (
    Event.ROUTED, Event.PRODUCED, Event.ROOM, Event.ARRIVED, Event.ACKNOWLEDGED
)


class Gateway:
    """The driver of one simulated fleet."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.clock = cluster.clock
        self.records = []
        carry: list[Any] = [None] * len(Effect)
        carry[Effect.PREFILL] = self._prefill
        carry[Effect.ASK_ROOM] = self._ask_room
        carry[Effect.START_TRANSFER] = self._start_transfer
        carry[Effect.COMMIT] = self._commit
        carry[Effect.ACKNOWLEDGE] = self._acknowledge
        carry[Effect.FREE_SOURCE] = self._free_source
        self.moves = bind(cluster.boundary.ownership, carry) if cluster.boundary else ()

    def arrive(self, request: Request, now: int) -> None:
        cluster = self.cluster
        if cluster.boundary is None:
            worker = cluster.router.pick(cluster.colocated, request)
            request.worker = worker
            worker.load += request.todo
            worker.batch.add(request)
            worker.poke(now)
            return
        source = cluster.prefill_router.pick(cluster.prefill, request)
        target = cluster.decode_router.pick(cluster.decode, request)
        request.hands_off = True
        source.load += request.todo
        target.load += request.todo
        request.worker = source
        handoff = Handoff(request, source, target)
        request.handoff = handoff
        self._on(handoff, ROUTED, now)

    def _on(self, handoff: Handoff, event: Event, now: int) -> None:
        """Move a handoff and do what it asks for."""
        move = self.moves[handoff.state][event]
        if move is not None:
            handoff.state = move[0]
            for carry in move[1]:
                carry(handoff, now)

    def _prefill(self, handoff: Handoff, now: int) -> None:
        source = handoff.source
        source.batch.add(handoff.sequence)
        source.poke(now)

    def _ask_room(self, handoff: Handoff, now: int) -> None:
        target = handoff.target
        if target.asking or not self._reserve(handoff, now):
            target.asking.append(handoff)
        else:
            self._on(handoff, ROOM, now)

    def _reserve(self, handoff: Handoff, now: int) -> bool:
        target = handoff.target
        batch = target.batch
        room = batch.reserve(handoff.sequence, max(target.stretch - 1, 0))
        if room is None and target.stretch > 1:
            room = batch.reserve(handoff.sequence, target.passed(now))
            if room is not None:
                target.cut(now)
        handoff.room = room
        return room is not None

    def _start_transfer(self, handoff: Handoff, now: int) -> None:
        cluster = self.cluster
        tokens = handoff.sequence.todo
        crossing = cluster.crossing
        cluster.network.send(cluster.route(handoff.source, handoff.target), crossing.bytes[tokens], handoff, now, crossing.fixed[tokens])

    def arrived(self, handoff: Handoff, now: int) -> None:
        self._on(handoff, ARRIVED, now)

    def _commit(self, handoff: Handoff, now: int) -> None:
        request, target = handoff.sequence, handoff.target
        request.moved = now
        request.worker = target
        request.hands_off = False
        target.batch.join(request, handoff.room)
        target.poke(now)

    def _acknowledge(self, handoff: Handoff, now: int) -> None:
        self._on(handoff, ACKNOWLEDGED, now)

    def _free_source(self, handoff: Handoff, now: int) -> None:
        source = handoff.source
        source.batch.free(handoff.pinned)
        if source.batch.waiting:
            source.poke(now)

    def done(self, worker: Any, now: int) -> None:
        """A worker's step ended for some requests."""
        batch = worker.batch
        for request in batch.prefilled:
            if request.first < 0:
                request.first = now
            if request.stage is HANDING_OFF:
                handoff = request.handoff
                handoff.pinned = batch.detach(request)
                worker.load -= request.todo
                self._on(handoff, PRODUCED, now)
        for request in batch.finished:
            worker.load -= request.prompt
            self._record(request, now)
        while worker.asking:
            handoff = worker.asking[0]
            if not self._reserve(handoff, now):
                break
            worker.asking.popleft()
            self._on(handoff, ROOM, now)

    def _record(self, r: Request, now: int) -> None:
        self.records.append((r.id, r.started, r.first, r.moved, r.decoding, now, r.retries))
