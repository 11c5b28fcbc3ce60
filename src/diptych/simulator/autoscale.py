"""Rules of scaling carried out in virtual time: looks every so often, orders, drains and role switches that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from diptych.design.axes import Role
from diptych.serving.scaling import Look, Scaling, Signal
from diptych.simulator.clock import LOOK, NEVER, PS, ps
from diptych.simulator.faults import Autoscale, Balance, Scale, Switch

if TYPE_CHECKING:
    from diptych.simulator.operations import Operations

# An order is given as an event of its own, so that it comes before whatever else happens at its instant.


class Autoscaler:
    """Looks at the pools of one rule. It stops when nothing is left to come."""

    def __init__(self, operations: Operations, wanted: Autoscale | Balance) -> None:
        self.operations, self.cluster, self.wanted = operations, operations.cluster, wanted
        self.rule: Scaling = wanted.rule
        roles = (wanted.role,) if isinstance(wanted, Autoscale) else (Role.PREFILL, Role.DECODE)
        self.roles: Sequence[Role] = roles
        self.last = -NEVER  # when it changed something
        self.busy = dict.fromkeys(roles, (0, 0))  # (when it looked, ps in steps until then)
        self.cluster.clock.at(ps(wanted.at + self.rule.every), LOOK, self._look)

    def _look(self, now: int, about: object) -> None:
        seen = {role: self._seen(role, now) for role in self.roles}
        since = (now - self.last) / PS
        change: Scale | Switch | None = None
        if isinstance(self.wanted, Autoscale):
            step = self.rule.change(seen[self.wanted.role], since)
            change = Scale(self.wanted.role, step, now / PS) if step else None
        else:
            for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
                if change is None and self.rule.lends(seen[role], seen[other], since):
                    change = Switch(role, other, now / PS)
        if change is not None:
            self.last = now
            self.operations.order(change, now)
        operations, gateway = self.operations, self.operations.gateway
        if operations.more or operations.pending or len(gateway.live) > len(gateway.held):
            self.cluster.clock.at(now + ps(self.rule.every), LOOK, self._look)

    def _seen(self, role: Role, now: int) -> Look:
        pool = [worker for worker in self.cluster.pools[role] if worker.up]
        workers = max(len(pool), 1)
        coming = self.operations.coming.get(role, 0)
        if self.rule.signal is Signal.QUEUE:
            return Look(sum(len(w.waiting) + len(w.asking) + len(w.ready) for w in pool) / workers, len(pool), coming)
        if self.rule.signal is Signal.KV:
            room = sum(w.pool.capacity for w in pool)
            return Look(sum(w.occupied(now) for w in pool) / max(room, 1), len(pool), coming)
        before, spent = self.busy[role]
        total = sum(w.busy_until(now) for w in pool)
        self.busy[role] = now, total
        share = max(total - spent, 0) / max((now - before) * workers, 1)
        return Look(share, len(pool), coming)
