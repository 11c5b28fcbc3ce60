"""A fleet watched while it runs: the laws of blocks, owners, time and work, checked at every event or every so often."""

from __future__ import annotations

from heapq import heappop
from typing import Any

from sim_worlds import PERF, World

from diptych.serving.handoff import State
from diptych.serving.request import Stage
from diptych.simulator.clock import LOOK, NEVER, Clock
from diptych.simulator.simulate import Run
from diptych.simulator.worker import VirtualWorker


class WatchedClock(Clock):
    """A clock that lets somebody look after every event."""

    __slots__ = ()
    by: Watched

    def run_before(self, time: int) -> None:
        self.by.watch(time)


class Watched(Run):
    """A run whose every event is followed by a look at the whole fleet."""

    def __init__(self, world: World, skip: bool = True) -> None:
        super().__init__(
            world.design, world.requests, PERF, world.policy, 1, world.faults, skip, None, None, None, None
        )
        self.refused: set[int] = set()  # requests whose last transfer arrived damaged
        if self.operations.corruption is not None:
            self.gateway.wire.complete = self._validated
        self.last = 0
        self.events = 0

    def run(self) -> Watched:
        clock = self.cluster.clock
        clock.__class__ = WatchedClock
        WatchedClock.by = self
        self.open_loop(None)
        return self

    def _validated(self, request: Any, now: int) -> None:
        corruption = self.operations.corruption
        assert corruption is not None
        attempt = corruption.sent.get((request.id, request.epoch), 0) + 1
        (self.refused.add if corruption.damaged(request, attempt) else self.refused.discard)(request.id)
        corruption.complete(request, now)

    def watch(self, time: int) -> None:
        """Events before `time`, each followed by a look."""
        heap = self.cluster.clock.heap
        while heap[0][0] < time:
            now, rank, number, target = heappop(heap)
            assert now >= self.last, f"time went back from {self.last} to {now}"
            self.last = now
            target.fire(now, number)
            self.events += 1
            if rank < LOOK:
                self.check(now)

    def check(self, now: int) -> None:
        """Every law that holds between two events."""
        holders: dict[int, list[str]] = {}
        for station in self.cluster.stations:
            self._worker(station.worker, holders)
            if station.residency is not None:
                self._tiers(station)
        for request in self.gateway.live.values():
            live = [place for place in holders.get(request.id, ()) if place == "live"]
            assert len(live) <= 1, f"request {request.id} lives on {len(live)} workers"
            if self.operations.corruption is not None and live and request.moved >= 0:
                assert request.id not in self.refused, f"request {request.id} is live on damaged KV"
            if request.state in (State.OFFERED, State.MOVING):
                assert not live, f"request {request.id} is live before its handoff committed"
                assert request.pinned is not None, "a source that is not held until released"
            if request.state is State.RELEASED:
                assert request.pinned is None, "a source held after its release"
        for route in self.cluster.network.routes:
            assert {route.rank in port.active for port in route.ports} == {bool(route.transfers)}
        for station in self.cluster.stations:
            for port in (station.out, station.into, *station.shared):
                used = sum(route.rate * len(route.transfers) for route in port.active.values())
                assert used <= port.capacity, f"{port.name} carries {used} of {port.capacity} bytes/s"

    def _worker(self, worker: VirtualWorker, holders: dict[int, list[str]]) -> None:
        pool = worker.pool
        running = [sequence for _, _, sequence in worker.running]
        assert len(running) == worker.batch
        context = [sequence.prompt + sequence.osl - sequence.finish + worker.step for sequence in running]
        assert sum(context) == worker.context, "the batch's context is the sum of its sequences'"
        if not worker.reserves:
            blocks = sum(-(-(c - s.shared) // pool.size) for c, s in zip(context, running, strict=True))
            assert blocks == worker.growing(), f"{worker.growing()} blocks by phase, {blocks} by sequence"
        mine = [s for s in self.gateway.live.values() if s.source is worker and s.pinned is not None]
        rooms = [
            s for s in self.gateway.live.values()
            if s.target is worker and s.room is not None and s.state in (State.ROOMY, State.MOVING)
        ]  # fmt: skip
        here = [*worker.waiting, *worker.ready, *worker.partial, *running]
        clients = self.operations.clients
        left = [half[1] for half in clients.halves.held.values() if half[0] is worker] if clients else []
        private = sum(s.held for s in here) + sum(s.pinned[0] for s in mine) + sum(s.room[0] for s in rooms)
        private += sum(holding[0] for holding in left)
        shared = len(pool.cache.live) * pool.per_hash if pool.cache else 0
        assert pool.held == private + shared, f"{pool.held} blocks held, {private} + {shared} accounted for"
        assert pool.held + worker.growing() <= pool.capacity + worker.batch, "more blocks than there are"
        if pool.cache is not None:
            taken = [key for s in here for key in s.taken]
            taken += [key for s in mine for key in s.pinned[1]] + [key for s in rooms for key in s.room[1]]
            taken += [key for holding in left for key in holding[1]]
            counted: dict[Any, int] = {}
            for key in taken:
                counted[key] = counted.get(key, 0) + 1
            assert counted == pool.cache.live, "reference counts are not the references"
            assert not set(pool.cache.live) & set(pool.cache.idle)
        for sequence in here:
            holders.setdefault(sequence.id, []).append("live" if not sequence.hands_off else "source")
        self._works(worker)

    @staticmethod
    def _works(worker: VirtualWorker) -> None:
        """Work conservation: an idle worker has nothing that it could run."""
        if worker.active or not worker.up or getattr(worker, "flights", ()):
            return
        assert not worker.batch, "a batch and no step"
        assert not worker.partial
        assert not worker.ready
        if worker.waiting:
            first, pool = worker.waiting[0], worker.pool
            budget = worker.rules.budget if worker.rules.chunks else first.todo
            if first.hands_off or not worker.rules.mixes:
                kept = first.todo
            else:
                kept = first.todo + first.osl - first.generated if worker.reserves else min(first.todo, budget)
            live = []
            if pool.cache is not None:
                most = min(pool.cache.match(first.blocks), (first.todo - 1) // pool.hash_tokens)
                live = [key for key in first.blocks[:most] if key in pool.cache.live]
                if not worker.rules.mixes or first.hands_off or worker.reserves:
                    kept = max(kept, most * pool.hash_tokens)
                else:
                    past = most * pool.hash_tokens
                    kept = past + min(first.todo - past, budget)
            need = -(-kept // pool.size) - len(live) * pool.per_hash
            assert pool.held + need > pool.capacity, f"idle beside a request of {need} blocks, {pool.held} held"

    @staticmethod
    def _tiers(station: Any) -> None:
        tiers = station.residency.tiers
        seen: set[Any] = set()
        for tier in tiers:
            assert len(tier.blocks) <= max(tier.capacity, 0), "a tier holds more than it can"
            assert not seen & set(tier.blocks), "a block in two tiers"
            seen |= set(tier.blocks)

    def close(self) -> None:
        """What must be true when everything is over."""
        assert self.cluster.clock.heap[0][0] == NEVER
        assert not self.gateway.live
        for station in self.cluster.stations:
            worker = station.worker
            assert worker.pool.held == 0, f"worker {worker.index} leaks {worker.pool.held} blocks"
            assert worker.load == 0, f"worker {worker.index} is owed {worker.load} tokens"
            assert not worker.batch
            assert not worker.asking
            assert not any(worker.phases)
            for port in (station.out, station.into, *station.shared):
                assert not port.active, "a link that does not give back what it took"
        assert not self.cluster.network.pending
        assert Stage.FINISHED == 4
