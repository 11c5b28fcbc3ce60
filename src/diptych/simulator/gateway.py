"""Where requests enter and leave: routes them, carries out what handoffs ask for, and writes down what happened."""

from __future__ import annotations

from typing import Any

from diptych.design.axes import Role
from diptych.serving.effects import Effect
from diptych.serving.handoff import Event, bind
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
        carry[Effect.FREE_SOURCE] = self._free_source
        boundary = cluster.boundary
        self.moves = bind(boundary.ownership, carry, {Effect.ACKNOWLEDGE: Event.ACKNOWLEDGED}) if boundary else ()

    def arrive(self, request: Request, now: int) -> None:
        """A request enters: choose its workers."""
        cluster = self.cluster
        if cluster.boundary is None:
            worker = cluster.router.pick(cluster.colocated, request)
            worker.load += request.prompt
            worker.take(request, now)
            return
        request.source = source = cluster.prefill_router.pick(cluster.prefill, request)
        request.target = target = cluster.decode_router.pick(cluster.decode, request)
        source.load += request.prompt
        target.load += request.prompt
        request.hands_off = True
        self.on(request, ROUTED, now)

    def on(self, request: Request, event: Event, now: int) -> None:
        """Move a handoff and do what it asks for."""
        move = self.moves[request.state][event]
        if move is not None:
            request.state = move[0]
            for carry in move[1]:
                carry(request, now)

    def _prefill(self, request: Request, now: int) -> None:
        request.source.take(request, now)

    def _ask_room(self, request: Request, now: int) -> None:
        target = request.target
        if target.asking or not target.ask(request, now):
            target.asking.append(request)
        else:
            self.on(request, ROOM, now)

    def _start_transfer(self, request: Request, now: int) -> None:
        cluster = self.cluster
        tokens, crossing = request.todo, cluster.crossing
        cluster.network.send(cluster.route(request.source, request.target), crossing.bytes[tokens], crossing.fixed[tokens], request, now)

    def arrived(self, request: Request, now: int) -> None:
        """A transfer is complete."""
        self.on(request, ARRIVED, now)

    def _commit(self, request: Request, now: int) -> None:
        request.moved = now
        request.hands_off = False
        request.target.receive(request, request.room, now)

    def _free_source(self, request: Request, now: int) -> None:
        source = request.source
        source.free(request.pinned)
        if source.waiting:
            source.poke(now)

    def done(self, worker: Any, now: int) -> None:
        """A worker's step was the last one for some requests."""
        for request in worker.finished:
            worker.load -= request.prompt
            self.records.append((request.id, request.started, request.first, request.moved, request.decoding, now, request.retries))
        for request in worker.prefilled:
            if request.first < 0:
                request.first = now
            if request.stage == HANDING_OFF:
                request.pinned = worker.detach(request)
                worker.load -= request.prompt
                self.on(request, PRODUCED, now)
        if worker.asking:
            self._grant(worker, now)

    def _grant(self, worker: Any, now: int) -> None:
        """Room for those who asked, first come first served."""
        while worker.asking and worker.ask(worker.asking[0], now):
            self.on(worker.asking.popleft(), ROOM, now)
