"""KV on the wire: what of a prompt leaves when, and when all of it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from diptych.design.boundary import Overlap
from diptych.serving.handoff import State
from diptych.simulator.clock import MESSAGE
from diptych.simulator.cluster import Cluster
from diptych.simulator.request import Request

ROOMY: Final = State.ROOMY


class Wire:
    """Transfers of handoffs, whole or in parts. `complete(request, now)` is told when a request's KV is all there."""

    def __init__(self, cluster: Cluster, complete: Callable[[Request, int], None]) -> None:
        self.cluster, self.complete = cluster, complete
        boundary = cluster.boundary
        self.layerwise = boundary is not None and boundary.overlap is Overlap.LAYERWISE

    def start(self, request: Request, now: int) -> None:
        route, crossing = self.cluster.between(request.source, request.target)
        tokens = self._missing(request)
        if tokens >= len(crossing.bytes):
            crossing.grow(tokens)
        size, fixed = crossing.bytes[tokens], crossing.fixed[tokens]
        if request.sent:
            size -= request.sent
            fixed = crossing.fixed[max(1, tokens * size // crossing.bytes[tokens])]
            request.flights += 1
        self.cluster.network.send(route, size, fixed, request, now)

    @staticmethod
    def _missing(request: Request) -> int:
        """Prompt tokens that the target does not hold."""
        shared = request.room[1]
        return request.todo - len(shared) * request.target.pool.hash_tokens if shared else request.todo

    def stream(self, request: Request, tokens: int, now: int, took: int) -> None:
        """A chunk of a prompt is being computed: what of it can leave before the prompt is done, and when.

        Layer by layer, all but the last layer's share leaves from the end of the first layer on; else the chunk leaves whole
        when it is computed, unless it is the last.
        """
        if request.state is not ROOMY:
            return
        crossing = self.cluster.between(request.source, request.target)[1]
        total = self._missing(request)
        if total >= len(crossing.bytes):
            crossing.grow(total)
        share = crossing.bytes[total] * tokens // request.todo
        layers = request.source.member.model.num_layers
        last = request.computed + tokens >= request.todo
        if self.layerwise:
            self._part(request, share * (layers - 1) // layers, now + took // layers)
        elif not last:
            self._part(request, share, now + took)

    def _part(self, request: Request, size: int, start: int) -> None:
        if size > 0:
            self.cluster.clock.at(start, MESSAGE, self._send_part, (request, request.epoch, size))

    def _send_part(self, now: int, about: tuple[Request, int, int]) -> None:
        request, epoch, size = about
        if request.epoch != epoch or request.state is not ROOMY:
            return
        request.sent += size
        request.flights += 1
        route, crossing = self.cluster.between(request.source, request.target)
        fixed = crossing.fixed[max(1, request.todo * size // crossing.bytes[self._missing(request)])]
        self.cluster.network.send(route, size, fixed, request, now)

    def stop(self, request: Request, now: int) -> None:
        self.cluster.network.stop(self.cluster.between(request.source, request.target)[0], request, now)

    def arrived(self, request: Request, now: int) -> None:
        """A transfer, or a part of one, is complete."""
        if request.flights:
            request.flights -= 1
            if request.flights or request.state is ROOMY:
                return
        self.complete(request, now)
