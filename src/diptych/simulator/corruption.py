"""Transfers whose bytes arrive damaged. Drawn per transfer from the seed, so that nothing depends on the order of events."""

from __future__ import annotations

from diptych.design.axes import Role
from diptych.serving.handoff import Event
from diptych.simulator.chance import chance
from diptych.simulator.clock import ps
from diptych.simulator.faults import LinkCorrupts
from diptych.simulator.gateway import Gateway
from diptych.simulator.request import Request

_DAMAGED = 2  # no other draw is about it


class Corruption:
    """Stands before a gateway's `complete` and decides which transfers validation refuses."""

    def __init__(self, gateway: Gateway, seed: int) -> None:
        self.gateway, self.seed = gateway, seed
        self.faults: list[LinkCorrupts] = []
        self.sent: dict[tuple[int, int], int] = {}  # (request, epoch) → transfers so far
        self.through = gateway.complete
        gateway.wire.complete = self.complete

    def complete(self, request: Request, now: int) -> None:
        """All bytes are there: damaged ones are sent again while the source may, or the handoff is over."""
        key = request.id, request.epoch
        attempt = self.sent[key] = self.sent.get(key, 0) + 1
        if not self.damaged(request, attempt):
            del self.sent[key]
            self.through(request, now)
            return
        gateway = self.gateway
        gateway.count("transfers refused by validation")
        if gateway.policy.fallback.sends_again(attempt):
            gateway.count("transfers sent again")
            request.sent = 0
            gateway.on(request, Event.DAMAGED, now)
        else:
            del self.sent[key]
            gateway.on(request, Event.CORRUPT, now)

    def damaged(self, request: Request, attempt: int) -> bool:
        """Whether this transfer of a request arrives damaged, by the faults of now."""
        return any(
            self._passes(fault, request)
            and chance(self.seed, _DAMAGED, request.id, request.epoch, attempt, ps(fault.at)) < fault.share
            for fault in self.faults
        )

    def _passes(self, fault: LinkCorrupts, request: Request) -> bool:
        pools = self.gateway.cluster.pools
        return all(
            index is None or (index < len(pools[role]) and pools[role][index] is worker)
            for index, role, worker in (
                (fault.prefill, Role.PREFILL, request.source),
                (fault.decode, Role.DECODE, request.target),
            )
        )
