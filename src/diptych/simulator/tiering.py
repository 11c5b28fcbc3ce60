"""Prompts whose blocks lie in lower tiers: fetched before they queue, when that is faster than computing them."""

from __future__ import annotations

from diptych.simulator.clock import MESSAGE
from diptych.simulator.cluster import Cluster
from diptych.simulator.request import Request
from diptych.simulator.worker import VirtualWorker


class Tiering:
    """Carries out residency: promotion takes the time of its tier, demotion goes on beside the engine."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

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
        free = list(station.tier_free)
        ready = max(self.cluster.tier_ps(station, tier, places.count(tier), now) for tier in sorted(set(places)))
        if ready - now >= compute:
            station.tier_free[:] = free
            return now
        station.residency.promote(below[: len(places)])
        cache.keep(below[: len(places)])
        self.demote(worker, now)
        return ready

    def demote(self, worker: VirtualWorker, now: int) -> None:
        """Blocks that device memory gave up go to the tiers below."""
        pool, station = worker.pool, self.cluster.stations[worker.index]
        worker.settle_at(now)
        if pool.evicted and station.residency is not None:
            station.residency.demote(pool.evicted)
        pool.evicted.clear()

    def _fetched(self, now: int, about: tuple[Request, int, VirtualWorker]) -> None:
        request, epoch, worker = about
        if request.epoch == epoch:
            worker.take(request, now)
