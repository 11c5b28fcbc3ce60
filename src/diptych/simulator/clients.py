"""Clients that give up: who does and when, and how their requests leave at every stage, with all that they hold on both sides."""

from __future__ import annotations

from collections.abc import Sequence

from diptych.serving.handoff import Event, State
from diptych.serving.request import Stage
from diptych.simulator.chance import chance
from diptych.simulator.clock import ARRIVAL, MESSAGE, ps
from diptych.simulator.faults import Cancels
from diptych.simulator.gateway import Gateway
from diptych.simulator.halves import SOURCE, TARGET, Halves
from diptych.simulator.request import Request
from diptych.simulator.worker import VirtualWorker

_WHO, _WHEN = 0, 1  # no other draw is about them
_FAR = 1e12  # s: later than any run
PREFILLS = (State.OPEN, State.PRODUCING, State.ROOMY)
"""A request belongs to its source's engine."""


class GivesUp:
    """The moment at which one client goes; means nothing once its request has ended."""

    __slots__ = ("clients", "id")

    def __init__(self, clients: Clients, id: int) -> None:
        self.clients, self.id = clients, id

    def fire(self, now: int, number: int) -> None:
        """The client goes."""
        request = self.clients.gateway.live.get(self.id)
        if request is not None:
            self.clients.cancel(request, now)

    def awaits(self, number: int) -> bool:
        """Whether the request is still here."""
        return self.id in self.clients.gateway.live


class Clients:
    """Stands before a gateway that some clients leave. A run in which none does never comes here."""

    def __init__(self, gateway: Gateway, faults: Sequence[Cancels], seed: int) -> None:
        self.gateway, self.clock, self.seed = gateway, gateway.clock, seed
        self.spans = [(ps(fault.at), ps(min(fault.at + fault.seconds, _FAR)), fault) for fault in faults]
        self.twin = gateway.policy.cancel_twin
        self.halves = Halves(self.clock, ps(gateway.policy.handoff_timeout), gateway.relieved)
        gateway.entered = self.entered
        if not self.twin:
            gateway.dying = self.halves.lose
            gateway.bind(FREE_SOURCE=self.free_source, FREE_TARGET=self.free_target)

    def entered(self, request: Request, now: int) -> None:
        """A request came in, and with it the patience of its client."""
        for index, (start, end, fault) in enumerate(self.spans):
            if start <= now < end and chance(self.seed, _WHO, index, request.id) < fault.share:
                wait = ps(fault.within * chance(self.seed, _WHEN, index, request.id))
                self.clock.put(now + max(wait, 1), ARRIVAL, GivesUp(self, request.id))
                return

    # --- the way out ------------------------------------------------------------------------------------------------

    def cancel(self, request: Request, now: int) -> None:
        """A client is gone: its request leaves as soon as no step holds it."""
        gateway = self.gateway
        worker: VirtualWorker | None = request.source if request.state in PREFILLS else None
        if request.state is State.RELEASED:
            worker = request.target
        if worker is None or not worker.up:
            self._leaves(now, request)
            return
        gateway.given_up.add(request.id)
        worker.withdrawn = self.withdrawn
        worker.withdraw(request, now)

    def withdrawn(self, request: Request, now: int) -> None:
        """Between two steps of the engine that has it. The other side of a handoff hears of it a moment later."""
        if request.id not in self.gateway.live:
            return  # that step was its last
        if request.state in PREFILLS:
            request.source.remove(request)
        if request.state is not State.RELEASED:
            self.clock.at(now + 1, MESSAGE, self._leaves, request)
            return
        target: VirtualWorker = request.target
        target.remove(request)
        target.load -= request.prompt
        if request.decoding >= now:
            request.decoding = -1  # it had been moved on into a batch that never ran
        self.gateway.gone(request, now)
        self.gateway.relieved(target, now)

    def _leaves(self, now: int, request: Request) -> None:
        """No step holds it: what it holds for a handoff goes back, on both sides or on the one that is told."""
        gateway = self.gateway
        if request.id not in gateway.live:
            return
        if request in gateway.held:
            gateway.held.remove(request)
        if request.state < State.RELEASED:
            self._end(request, now)
        gateway.gone(request, now)

    def _end(self, request: Request, now: int) -> None:
        """End a handoff."""
        gateway, source, target = self.gateway, request.source, request.target
        asked = request.state not in PREFILLS
        told = target is not None and (self.twin or asked or gateway.pulls)
        if not self.twin and (asked or not told):
            self.halves.forsake(SOURCE if asked else TARGET, request.id, now)
        if source.up and request.stage != Stage.HANDING_OFF:
            source.load -= request.prompt
        if request.flights and request.state is State.ROOMY:
            gateway.wire.stop(request, now)
        if told:
            target.load -= request.prompt
            if request in target.asking:
                target.asking.remove(request)
        gateway.on(request, Event.CANCELLED, now)
        if told:
            gateway.relieved(target, now)

    # --- halves that nobody told ------------------------------------------------------------------------------------

    def free_source(self, request: Request, now: int) -> None:
        """In place of the gateway's: a source that was not told keeps its blocks."""
        if self.halves.keep(SOURCE, request.id, request.source, request.pinned, 0, now):
            request.pinned = None
        else:
            self.gateway.free_source(request, now)

    def free_target(self, request: Request, now: int) -> None:
        """In place of the gateway's: a target that was not told keeps its reservation, also one that it makes only later."""
        room, load = request.room, request.prompt
        if room is not None and self.halves.keep(TARGET, request.id, request.target, room, load, now):
            request.room = None
        else:
            self.gateway.free_target(request, now)
