"""Where requests enter and leave: routes them, does what handoffs ask for, and writes down what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from diptych.design.axes import Role
from diptych.design.boundary import Codec, Ownership, Placement
from diptych.metrics.record import Outcome
from diptych.serving.effects import Effect
from diptych.serving.fallback import Way
from diptych.serving.handoff import Event, State, bind
from diptych.serving.ownership import Heartbeats, Leases
from diptych.serving.request import Stage
from diptych.serving.router import Router
from diptych.simulator.clock import FAULT, MESSAGE, ps
from diptych.simulator.cluster import Cluster
from diptych.simulator.outlook import PredictedOutlook
from diptych.simulator.request import Request
from diptych.simulator.tiering import Tiering
from diptych.simulator.wire import Wire
from diptych.simulator.worker import VirtualWorker

# Members looked up once: a class attribute of an enum is slow to reach.
HANDING_OFF: Final = Stage.HANDING_OFF
DECODING: Final = Stage.DECODING
ROUTED: Final = Event.ROUTED
PRODUCED: Final = Event.PRODUCED
ROOM: Final = Event.ROOM
ARRIVED: Final = Event.ARRIVED
EXPIRED: Final = Event.EXPIRED
OPEN: Final = State.OPEN
PRODUCING: Final = State.PRODUCING
OFFERED: Final = State.OFFERED
RELEASED: Final = State.RELEASED
FINISHED: Final = Outcome.FINISHED

Row = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
Sink = Callable[[Row], None]


class LeaseEnds:
    """The end of the lease of a source whose target has not renewed it, because it has no room yet."""

    __slots__ = ("epoch", "gateway", "request")

    def __init__(self, gateway: Gateway, request: Request) -> None:
        self.gateway, self.request, self.epoch = gateway, request, request.epoch

    def fire(self, now: int, number: int) -> None:
        """The source may free what nobody took."""
        if self.awaits(number):
            self.gateway.expire(self.request, now, "leases ran out")

    def awaits(self, number: int) -> bool:
        """Whether the request is still on offer."""
        return self.request.state is OFFERED and self.request.epoch == self.epoch


class Gateway:
    """The driver of one simulated fleet. `record` takes a row per request that ended; `ended` is told of each, if set."""

    def __init__(self, cluster: Cluster, record: Sink) -> None:
        self.cluster, self.record, self.clock = cluster, record, cluster.clock
        self.live: dict[int, Request] = {}
        self.held: list[Request] = []  # nobody can run them now
        self.ended: Callable[[int], None] | None = None
        self.entered: Callable[[Request, int], None] | None = None  # told of each request that came in
        self.dying: Callable[[VirtualWorker], None] | None = None  # told of each worker before it is lost
        self.now = 0  # when a request is being routed
        self.latest = 0  # when something happened to a request last
        policy, boundary = cluster.policy, cluster.boundary
        self.policy, self.boundary = policy, boundary
        self.prefill_router = Router(policy.prefill_routing, self._overlap)
        self.decode_router = Router(policy.decode_routing, self._overlap)
        self.prefill, self.decode = cluster.pools[Role.PREFILL], cluster.pools[Role.DECODE]
        self.colocated = cluster.pools[Role.COLOCATED]
        self.detection, self.round_trip = max(ps(policy.detection), 1), max(ps(policy.round_trip), 1)
        self.entry = ps(policy.entry)
        self.leases = Leases(ps(policy.lease))
        self.given_up: set[int] = set()  # requests whose clients are gone while a step still holds them
        self.counts: dict[str, int] = {}  # how often what happened beside the ordinary
        self.local_below = boundary.local_below if boundary and boundary.placement is Placement.CONDITIONAL else 0
        form = boundary.representation if boundary else None
        self.converts = form is not None and form.codec is not Codec.RAW  # somewhere
        self.judges = policy.admission is not None
        self.pulls = boundary is not None and boundary.ownership is Ownership.PULL
        self.longest = self._longest()
        self.tiering = Tiering(cluster)
        self.wire = Wire(cluster, self.complete)
        self.bind()

    def bind(self, **instead: Any) -> None:
        """The handoff's table with a function for each effect, or one `instead` of it; an acknowledgement takes no time here."""
        self.moves: Any = ()
        if self.boundary is None:
            return
        carry: list[Any] = [None] * len(Effect)
        carry[Effect.PREFILL] = self._prefill
        carry[Effect.ASK_ROOM] = self._ask_later if self.pulls else self._ask_room
        if self.pulls and self.policy.heartbeat_from is Heartbeats.ADMISSION:
            carry[Effect.ASK_ROOM] = self._ask_under_lease
        carry[Effect.START_TRANSFER] = self.wire.start
        carry[Effect.STOP_TRANSFER] = self.wire.stop
        carry[Effect.COMMIT] = self._commit
        carry[Effect.ACKNOWLEDGE] = None
        carry[Effect.FREE_SOURCE] = self.free_source
        carry[Effect.FREE_TARGET] = self.free_target
        carry[Effect.FALL_BACK] = self._fall_back
        carry[Effect.CHOOSE_TARGET] = self._choose_later
        for name, function in instead.items():
            carry[Effect[name]] = function
        self.moves = bind(self.boundary.ownership, carry, {Effect.ACKNOWLEDGE: Event.ACKNOWLEDGED})

    def _longest(self) -> int:
        """Tokens of the longest request that every pool has a worker for."""
        pools = (self.prefill, self.decode) if self.boundary else (self.colocated,)
        return min(max((worker.pool.capacity * worker.pool.size for worker in pool), default=0) for pool in pools) - 1

    # --- the way in -------------------------------------------------------------------------------------------------

    def arrive(self, request: Request, now: int) -> None:
        """A request enters, or will when it has come in."""
        if self.entry:
            self.clock.at(now + self.entry, MESSAGE, self._enter, request)
        else:
            self._enter(now, request)

    def _enter(self, now: int, request: Request) -> None:
        self.live[request.id] = request
        self.latest = now
        if request.prompt + request.osl > self.longest:
            self.refuse(request, Outcome.TOO_LONG, now)
        else:
            self.route(request, now)
        if self.entered is not None:
            self.entered(request, now)

    def route(self, request: Request, now: int) -> None:
        """Choose its workers and begin its handoff, or find another way."""
        self.now = now
        if self.boundary is None:
            self._run_whole(request, self.decode_router.pick(self.colocated, request), now)
            return
        target: VirtualWorker | None = self.decode_router.pick(self.decode, request)
        request.target = target
        if target is not None and self.local_below and request.todo - self._overlap(target, request) < self.local_below:
            self._run_whole(request, target, now)
            return
        source: VirtualWorker | None = self.prefill_router.pick(self.prefill, request)
        request.source = source
        if source is None or target is None:
            self._another_way(request, source, target, now)
            return
        if self.judges and not self._admits(request, now):
            self.refuse(request, Outcome.REJECTED, now)
            return
        source.load += request.prompt
        target.load += request.prompt
        request.hands_off = True
        request.state = OPEN
        self.on(request, ROUTED, now)

    def _overlap(self, worker: VirtualWorker, request: Request) -> int:
        """Prompt tokens that a worker's cache holds now."""
        cache = worker.pool.cache
        if cache is None or not request.blocks:
            return 0
        worker.settle_at(self.now)
        return cache.match(request.blocks) * worker.pool.hash_tokens

    def _run_whole(self, request: Request, worker: VirtualWorker | None, now: int) -> None:
        """One worker does both jobs."""
        if worker is None:
            self._another_way(request, None, None, now)
            return
        request.source, request.target, request.state = None, worker, RELEASED
        if self.judges and not self._admits(request, now):
            self.refuse(request, Outcome.REJECTED, now)
            return
        worker.load += request.prompt
        self.tiering.queue(request, worker, now)

    def _another_way(
        self, request: Request, source: VirtualWorker | None, target: VirtualWorker | None, now: int
    ) -> None:
        """A pool is gone."""
        request.source = request.target = None
        way = self.policy.fallback.way(source is not None, target is not None, request.retries)
        if way is Way.ON_DECODE and target is not None and self._fits(request, target):
            self._run_whole(request, target, now)
        elif way is Way.ON_PREFILL and source is not None and self._fits(request, source):
            self._run_whole(request, source, now)
        elif way is Way.REFUSE or not self.policy.fallback.hold:
            self.refuse(request, Outcome.LOST, now)
        else:
            request.state = RELEASED
            self.held.append(request)

    @staticmethod
    def _fits(request: Request, worker: VirtualWorker) -> bool:
        return request.prompt + request.osl < worker.pool.capacity * worker.pool.size

    def _admits(self, request: Request, now: int) -> bool:
        assert self.policy.admission is not None
        return PredictedOutlook(self.cluster, request, now).admitted(self.policy.admission)

    # --- the handoff ------------------------------------------------------------------------------------------------

    def on(self, request: Request, event: Event, now: int) -> None:
        """Move a handoff and do what it asks for."""
        move = self.moves[request.state][event]
        if move is not None:
            request.state = move[0]
            for carry in move[1]:
                carry(request, now)

    def _prefill(self, request: Request, now: int) -> None:
        source: VirtualWorker = request.source
        if not source.up:
            return  # its loss is about to be told to this request too
        if request.blocks:
            self.tiering.queue(request, source, now)
        else:
            source.take(request, now)

    def _ask_room(self, request: Request, now: int) -> None:
        target: VirtualWorker = request.target
        if target.asking or not target.ask(request, now):
            target.asking.append(request)
        else:
            self.on(request, ROOM, now)

    def _ask_later(self, request: Request, now: int) -> None:
        """A pull: prefill's answer goes through the gateway to the decode worker."""
        self.clock.at(now + self.round_trip, MESSAGE, self._asked, (request, request.epoch))

    def _asked(self, now: int, about: tuple[Request, int]) -> None:
        request, epoch = about
        if request.epoch != epoch or request.state is not OFFERED:
            return
        if request.target is None:
            self._choose(now, about)
        elif request not in request.target.asking:  # a target chosen meanwhile was asked then
            self._ask_room(request, now)

    def _ask_under_lease(self, request: Request, now: int) -> None:
        """A pull whose source nobody keeps alive until there is room: its lease runs from now on."""
        self._ask_later(request, now)
        self.clock.put(now + self.leases.term, FAULT, LeaseEnds(self, request))

    def complete(self, request: Request, now: int) -> None:
        """All of a request's KV is there."""
        self.on(request, ARRIVED, now)

    def _commit(self, request: Request, now: int) -> None:
        target: VirtualWorker = request.target
        request.moved = now
        request.hands_off = False
        request.order = 0
        request.sent = 0
        if self.converts:
            crossing = self.cluster.between(request.source, target)[1]
            if crossing.converts:
                target.owe(crossing.after[request.todo])
        target.receive(request, request.room, now)

    def free_source(self, request: Request, now: int) -> None:
        """The source's copy is no longer needed."""
        source: VirtualWorker = request.source
        source.give_back(request.pinned, now)
        request.pinned = None
        if source.waiting:
            source.poke(now)

    # --- steps done -------------------------------------------------------------------------------------------------

    def done(self, worker: VirtualWorker, now: int) -> None:
        """A worker's step was the last one for some requests."""
        for request in worker.finished:
            if request.first < 0:
                request.first = now
            if request.hands_off:  # one token: nothing to hand over
                self._whole_at_source(request, now)
            worker.load -= request.prompt
            self._leave(request, FINISHED, now)
        for request in worker.prefilled:
            if request.first < 0:
                request.first = now
            if request.stage is HANDING_OFF:
                request.pinned = worker.detach(request)
                worker.load -= request.prompt
                self.on(request, PRODUCED, now)
                if request.target is None:
                    self.clock.at(now + 1, MESSAGE, self._choose, (request, request.epoch))
            elif request.stage is DECODING and request.decoding < 0:
                request.decoding = now
        if worker.asking:
            self.grant(worker, now)

    def _whole_at_source(self, request: Request, now: int) -> None:
        """An answer of one token ends with its prefill: the target's room goes back."""
        target = request.target
        if target is not None:
            if request.flights:
                self.wire.stop(request, now)
            target.load -= request.prompt
            self.free_target(request, now)

    def grant(self, worker: VirtualWorker, now: int) -> None:
        """Room for those who asked, first come first served."""
        while worker.asking and worker.ask(worker.asking[0], now):
            self.on(worker.asking.popleft(), ROOM, now)

    def relieved(self, worker: VirtualWorker, now: int) -> None:
        """Blocks came free on a worker."""
        self.grant(worker, now)
        if worker.waiting:
            worker.poke(now)

    def refuse(self, request: Request, outcome: Outcome, now: int) -> None:
        """A request leaves without an answer."""
        request.stage = Stage.REFUSED
        self._leave(request, outcome, now)

    def _leave(self, request: Request, outcome: Outcome, now: int) -> None:
        del self.live[request.id]
        self.latest = now
        request.state = RELEASED
        source, target = request.source, request.target
        self.record((
            request.id, request.arrival, request.started, request.first, request.moved, request.decoding, now,
            request.prompt, request.osl, request.retries, outcome,
            -1 if source is None else source.index, -1 if target is None else target.index,
        ))  # fmt: skip
        if self.ended is not None:
            self.ended(now)

    # --- losses -----------------------------------------------------------------------------------------------------

    def lose(self, worker: VirtualWorker, now: int) -> None:
        """A worker dies with everything in its memory."""
        self.latest = now
        if self.dying is not None:
            self.dying(worker)
        worker.die(now)
        for request in list(self.live.values()):
            computes, takes = request.source is worker, request.target is worker
            if request.state >= RELEASED:
                if takes:
                    self._begin_again(request, now)
            elif computes:
                self.on(request, Event.SOURCE_LOST, now)
            elif takes:
                self.on(request, Event.TARGET_LOST, now)
                if request.target is worker:  # a pull has not asked it yet
                    request.target = None
        station = self.cluster.stations[worker.index]
        if station.residency is not None:
            station.residency.clear()
            self.tiering.lose(worker)

    def back(self, now: int) -> None:
        """Somebody is up again: those who were held, and handoffs without a target, try once more."""
        self.latest = now
        held, self.held = self.held, []
        for request in held:
            self.route(request, now)
        for request in list(self.live.values()):
            if request.target is None and request.state in (OPEN, PRODUCING, OFFERED):
                self._choose(now, (request, request.epoch))

    def expire(self, request: Request, now: int, why: str) -> None:
        """A source's lease ran out, or a transfer took too long."""
        self.latest = now
        self.count(why)
        self.on(request, EXPIRED, now)

    def abandon(self) -> None:
        """Nothing will happen any more: who is still here has lost."""
        for request in list(self.live.values()):
            self.refuse(request, Outcome.LOST, self.latest)

    def gone(self, request: Request, now: int) -> None:
        """A request leaves because its client did."""
        request.epoch += 1
        self.given_up.discard(request.id)
        self.refuse(request, Outcome.CANCELLED, now)

    def count(self, what: str) -> None:
        """One more of something that went wrong."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def free_target(self, request: Request, now: int) -> None:
        """The target's reservation goes back, to others who asked and to those who wait."""
        target, room = request.target, request.room
        if room is not None:
            request.room = None
            target.give_back(room, now)
            self.relieved(target, now)

    def _fall_back(self, request: Request, now: int) -> None:
        """The handoff is over and its KV with it."""
        source, target = request.source, request.target
        if request.flights:
            self.wire.stop(request, now)
        if source.up and request.stage is not HANDING_OFF:
            source.load -= request.prompt
        if target is not None:
            if request in target.asking:
                target.asking.remove(request)
            target.load -= request.prompt
        self._begin_again(request, now)

    def _begin_again(self, request: Request, now: int) -> None:
        """Compute it again, once the gateway has noticed."""
        request.lose()
        request.retries += 1
        request.source = request.target = request.pinned = request.room = None
        request.sent = request.flights = 0
        request.state = State.REVOKED
        if request.id in self.given_up:
            self.gone(request, now)
            return
        self.clock.at(now + self.detection, MESSAGE, self._again, (request, request.epoch))

    def _again(self, now: int, about: tuple[Request, int]) -> None:
        request, epoch = about
        if request.epoch != epoch:
            return
        if request.retries > self.policy.fallback.retries:
            self.refuse(request, Outcome.LOST, now)
        else:
            self.route(request, now)

    def _choose_later(self, request: Request, now: int) -> None:
        """The target died and the source still has the KV: another target, once the gateway has noticed."""
        if request.flights:
            self.wire.stop(request, now)
        request.target = request.room = None
        request.sent = request.flights = 0
        self.clock.at(now + self.detection, MESSAGE, self._choose, (request, request.epoch))

    def _choose(self, now: int, about: tuple[Request, int]) -> None:
        request, epoch = about
        if request.epoch != epoch or request.target is not None or request.state not in (OPEN, PRODUCING, OFFERED):
            return
        self.now = now
        target = self.decode_router.pick(self.decode, request)
        if target is None or not self._fits(request, target):
            self.on(request, EXPIRED, now)  # nobody will take it; while it is being computed somebody may come back
            return
        request.target = target
        target.load += request.prompt
        self._ask_room(request, now)
