"""Prompts whose blocks lie in lower tiers: fetched before they queue, when that is faster than computing them.

A block is written to the nearest tier when it is computed (write-through, as HiCache and vLLM's offloading do), one write after
another at the tier's bandwidth, beside the engine. So it costs nothing when device memory gives it up, and it can't be fetched
before it is written: with a tier slower than prefill the writes fall behind, and blocks are computed again meanwhile. Blocks
that a full tier passes on take the writes of the next one and reads of its own; until they are there they are read where they
were. What is fetched leaves its tier, so it is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from diptych.simulator.clock import MESSAGE
from diptych.simulator.cluster import Cluster, Station
from diptych.simulator.request import Request
from diptych.simulator.worker import VirtualWorker

_FEW = 1 << 16  # written blocks remembered before the forgotten ones are looked for


class Tiering:
    """Carries out residency. `written` tells, by worker and block, from when on its copy below can be read."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.written: dict[int, dict[Any, int]] = {}

    def after(self, done: Callable[[VirtualWorker, int], None]) -> Callable[[VirtualWorker, int], None]:
        """`done`, and before it the writes of what was computed."""

        def write_then(worker: VirtualWorker, now: int) -> None:
            station = self.cluster.stations[worker.index]
            if station.residency is not None:
                for request in worker.prefilled:
                    self.write(station, request.blocks[: request.prompt // worker.pool.hash_tokens], now)
            done(worker, now)

        return write_then

    def queue(self, request: Request, worker: VirtualWorker, now: int) -> None:
        """Into a worker's queue, after what its lower tiers hold of the prompt is fetched if that is faster than computing it."""
        if request.blocks:
            station = self.cluster.stations[worker.index]
            if station.residency is not None:
                ready = self.fetch(request, worker, now)
                if ready > now:
                    self.cluster.clock.at(ready, MESSAGE, self._fetched, (request, request.epoch, worker))
                    return
        worker.take(request, now)

    def fetch(self, request: Request, worker: VirtualWorker, now: int) -> int:
        """Promote a prompt's blocks from lower tiers; when they are here, or `now` when computing them is no slower."""
        station, cache = self.cluster.stations[worker.index], worker.pool.cache
        assert station.residency is not None
        assert cache is not None
        self.demote(worker, now)
        here = cache.match(request.blocks)
        below = request.blocks[here : request.prompt // worker.pool.hash_tokens]
        places = station.residency.locate(below)
        if not places:
            return now
        tokens = len(places) * worker.pool.hash_tokens
        past = here * worker.pool.hash_tokens
        compute = worker.table.prompt_ps(
            min(tokens, worker.rules.budget), min(tokens, worker.rules.budget) * (2 * past + tokens)
        )
        compute = compute * tokens // min(tokens, worker.rules.budget)
        free, written = list(station.reads), self.written.get(worker.index, {})
        start = max(now, *(written.get(key, now) for key in below[: len(places)]))
        ready = max(self.cluster.read(station, tier, places.count(tier), start) for tier in sorted(set(places)))
        if ready - now >= compute:
            station.reads[:] = free
            return now
        station.residency.promote(below[: len(places)])
        cache.keep(below[: len(places)])
        for key in below[: len(places)]:
            written.pop(key, None)
        self.write(station, below[: len(places)], ready)
        self.demote(worker, now)
        return ready

    def write(self, station: Station, keys: Iterable[Any], now: int) -> None:
        """Copy blocks to the nearest tier, as far as they are worth keeping and have no copy there."""
        assert station.residency is not None
        written = self.written.setdefault(station.worker.index, {})
        new = [key for key in keys if key not in written and station.residency.keeps(key)]
        if new:
            end = self.cluster.write(station, 0, len(new), now)
            written.update(dict.fromkeys(new, end))

    def demote(self, worker: VirtualWorker, now: int) -> None:
        """Blocks that device memory gave up are from now on below only."""
        pool, station = worker.pool, self.cluster.stations[worker.index]
        worker.settle_at(now)
        if pool.evicted and station.residency is not None:
            self.write(station, pool.evicted, now)  # what came over a link was not computed here
            for move in station.residency.demote(pool.evicted):
                if move.tier:
                    self.cluster.read(station, move.tier - 1, move.blocks, now)
                    self.cluster.write(station, move.tier, move.blocks, now)
            self._forget(station)
        pool.evicted.clear()

    def _forget(self, station: Station) -> None:
        """Drop what is written of blocks that are nowhere any more, when it has become much."""
        written = self.written.get(station.worker.index, {})
        cache, residency = station.worker.pool.cache, station.residency
        assert cache is not None
        assert residency is not None
        here = len(cache.idle) + len(cache.live) + sum(len(tier.blocks) for tier in residency.tiers)
        if len(written) > _FEW + 2 * here:
            known = set(cache.idle) | set(cache.live)
            known.update(*(tier.blocks for tier in residency.tiers))
            for key in [key for key in written if key not in known]:
                del written[key]

    def lose(self, worker: VirtualWorker) -> None:
        """What lay under a worker is lost with it."""
        self.written.pop(worker.index, None)

    def _fetched(self, now: int, about: tuple[Request, int, VirtualWorker]) -> None:
        request, epoch, worker = about
        if request.epoch == epoch:
            worker.take(request, now)
