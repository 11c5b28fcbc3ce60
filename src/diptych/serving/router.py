"""Which worker takes a request: filter → score → pick. Ties go to the lowest index: the same requests meet the same workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Protocol


class Routing(StrEnum):
    """How a worker is picked."""

    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"
    PREFIX_AWARE = "prefix-aware"


class Candidate(Protocol):
    """What a router may ask of a worker."""

    up: bool
    load: int  # tokens routed to it and not done


class Router:
    """Routes one role. `overlap(worker, request)` gives the prompt tokens that a worker's cache holds, for PREFIX_AWARE.

    PREFIX_AWARE scores load plus the prompt tokens left to compute, as KV-aware routers do.
    """

    __slots__ = ("overlap", "routing", "turn")

    def __init__(self, routing: Routing, overlap: Callable[[Any, Any], int] | None = None) -> None:
        self.routing, self.overlap, self.turn = routing, overlap, 0

    def pick(self, workers: Sequence[Any], request: Any) -> Any:
        """The worker for `request`, None when none is up."""
        if len(workers) == 1:
            return workers[0] if workers[0].up else None
        able = [worker for worker in workers if worker.up]
        if not able:
            return None
        if self.routing is Routing.ROUND_ROBIN:
            self.turn += 1
            return able[(self.turn - 1) % len(able)]
        if self.routing is Routing.PREFIX_AWARE and self.overlap is not None and request.blocks:
            prompt, overlap = request.todo, self.overlap
            return min(able, key=lambda worker: (worker.load + prompt - overlap(worker, request), worker.index))
        best = able[0]
        for worker in able:
            if worker.load < best.load:
                best = worker
        return best
