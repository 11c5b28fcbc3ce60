"""Faults and changes carried out while a run goes on, and the sweep that ends leases and stuck handoffs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diptych.design.axes import Role
from diptych.design.design import Member
from diptych.errors import Finding, InvalidInput
from diptych.serving.handoff import State
from diptych.serving.ownership import Heartbeats
from diptych.simulator.autoscale import Autoscaler
from diptych.simulator.clients import Clients
from diptych.simulator.clock import FAULT, PS, ps
from diptych.simulator.cluster import Cluster, Station
from diptych.simulator.corruption import Corruption
from diptych.simulator.faults import (
    FOREVER,
    Autoscale,
    Balance,
    Cancels,
    Change,
    LinkCorrupts,
    LinkSlow,
    Scale,
    Switch,
    WorkerDown,
)  # fmt: skip
from diptych.simulator.gateway import Gateway
from diptych.simulator.network import Port
from diptych.simulator.request import Request


class Operations:
    """What the outside does to a running fleet. `busy` says whether requests are still on their way."""

    def __init__(self, cluster: Cluster, gateway: Gateway, changes: Sequence[Change], seed: int = 0) -> None:
        self.cluster, self.gateway, self.clock = cluster, gateway, cluster.clock
        self.downs: dict[int, int] = {}  # how many faults keep a worker down
        self.moving: dict[int, tuple[int, int]] = {}  # request → (epoch, since when its handoff moves)
        self.more = True  # requests still to come
        findings = [finding for change in changes for finding in _wrong(change, cluster)]
        if findings:
            raise InvalidInput(findings)
        standing = Cancels | Autoscale | Balance
        self.changes: tuple[Change, ...] = tuple(change for change in changes if not isinstance(change, standing))
        self.coming: dict[Role, int] = {}  # workers ordered for a role and not there yet
        self.pending = len(self.changes)  # changes still to come
        cancels = [change for change in changes if isinstance(change, Cancels)]
        self.clients = Clients(gateway, cancels, seed) if cancels else None
        corrupts = any(isinstance(change, LinkCorrupts) for change in changes)
        self.corruption = Corruption(gateway, seed) if corrupts else None
        for change in changes:
            if isinstance(change, Autoscale | Balance):
                Autoscaler(self, change)
        for change in self.changes:
            self.clock.at(ps(change.at), FAULT, self._apply, change)
        if any(isinstance(change, WorkerDown | LinkSlow) for change in changes):
            self.clock.at(ps(cluster.policy.heartbeat), FAULT, self._sweep)

    def order(self, change: Scale | Switch, now: int) -> None:
        """A rule asks for a change."""
        self.pending += 1
        self.clock.at(now + 1, FAULT, self._apply, change)

    def _apply(self, now: int, change: Change) -> None:
        self.pending -= 1
        if isinstance(change, WorkerDown):
            self._down(change, now)
        elif isinstance(change, LinkSlow):
            self._slow(change, now)
        elif isinstance(change, LinkCorrupts):
            self._corrupt(change, now)
        elif isinstance(change, Scale):
            self._scale(change, now)
        elif isinstance(change, Switch):
            self._switch(change, now)

    # --- losses -----------------------------------------------------------------------------------------------------

    def _down(self, fault: WorkerDown, now: int) -> None:
        pool = self.cluster.pools[fault.role]
        hit = list(pool) if fault.index is None else pool[fault.index : fault.index + 1]
        for worker in hit:
            self.downs[worker.index] = self.downs.get(worker.index, 0) + 1
        for worker in hit:
            worker.up = False  # all go at once: none is a refuge for the next one's requests
        for worker in hit:
            self.gateway.lose(worker, now)
        if fault.seconds != FOREVER:
            self.pending += 1
            self.clock.at(now + ps(fault.seconds), FAULT, self._up, [worker.index for worker in hit])

    def _up(self, now: int, indices: Iterable[int]) -> None:
        self.pending -= 1
        for index in indices:
            self.downs[index] -= 1
            station = self.cluster.stations[index]
            if not self.downs[index] and station.until > now:
                station.worker.up = True
        self.gateway.back(now)

    def _slow(self, fault: LinkSlow, now: int) -> None:
        ports = self._ports(fault)
        for port in ports:
            port.slow(fault.factor)
        self.cluster.network.changed(ports, now)
        if fault.seconds != FOREVER:
            self.pending += 1
            self.clock.at(now + ps(fault.seconds), FAULT, self._restore, ports)

    def _restore(self, now: int, ports: list[Port]) -> None:
        self.pending -= 1
        for port in ports:
            port.slow(1.0)
        self.cluster.network.changed(ports, now)

    def _corrupt(self, fault: LinkCorrupts, now: int) -> None:
        assert self.corruption is not None
        self.corruption.faults.append(fault)
        if fault.seconds != FOREVER:
            self.pending += 1
            self.clock.at(now + ps(fault.seconds), FAULT, self._intact, fault)

    def _intact(self, now: int, fault: LinkCorrupts) -> None:
        self.pending -= 1
        assert self.corruption is not None
        self.corruption.faults.remove(fault)

    def _ports(self, fault: LinkSlow) -> list[Port]:
        """The ports out of prefill workers and into decode workers that a fault means; one side is enough to slow a path."""
        stations = self.cluster.stations
        out = [stations[worker.index].out for worker in self.cluster.pools[Role.PREFILL]]
        into = [stations[worker.index].into for worker in self.cluster.pools[Role.DECODE]]
        if fault.prefill is None and fault.decode is not None:
            return into[fault.decode : fault.decode + 1]
        if fault.prefill is not None:
            return out[fault.prefill : fault.prefill + 1]
        return out

    # --- elasticity -------------------------------------------------------------------------------------------------

    def _scale(self, change: Scale, now: int) -> None:
        pool = self.cluster.pools[change.role]
        for _ in range(max(change.change, 0)):
            member = self.cluster.stations[pool[-1].index].member if pool else _member(self.cluster, change.role)
            self._start(change.role, self.cluster.prepare(change.role, member, now), now)
        for _ in range(min(-change.change, len(pool) - 1)):
            self._drain(self.cluster.stations[pool.pop().index], None, now)

    def _switch(self, change: Switch, now: int) -> None:
        pool = self.cluster.pools[change.role]
        if len(pool) > 1:
            self._drain(self.cluster.stations[pool.pop().index], change.to, now)

    def _start(self, role: Role, station: Station, now: int) -> None:
        """A worker that is paid from now on serves when it has started up."""
        self.pending += 1
        self.coming[role] = self.coming.get(role, 0) + 1
        self.gateway.count(f"{role} workers started on the way")
        self.clock.at(now + ps(self.cluster.policy.start_up), FAULT, self._started, (role, station))

    def _started(self, now: int, about: tuple[Role, Station]) -> None:
        self.pending -= 1
        role, station = about
        self.coming[role] -= 1
        self.cluster.pools[role].append(station.worker)
        self.gateway.back(now)

    def _drain(self, station: Station, to: Role | None, now: int) -> None:
        self.pending += 1
        self.clock.at(now + 1, FAULT, self._drained, (station, to))

    def _drained(self, now: int, about: tuple[Station, Role | None]) -> None:
        """Whether a draining worker has nothing left; looks again in a second otherwise."""
        station, to = about
        worker = station.worker
        if worker.load or worker.active or worker.asking or worker.pool.held:
            self.clock.at(now + PS, FAULT, self._drained, about)
            return
        self.pending -= 1
        station.until, worker.up = now, False
        if to is not None:
            self._start(to, self.cluster.prepare(to, station.member, now), now)

    # --- leases -----------------------------------------------------------------------------------------------------

    def _sweep(self, now: int, about: object) -> None:
        """Renew the leases of sources whose target is heard; end those that ran out, and transfers that take too long."""
        gateway, leases = self.gateway, self.gateway.leases
        limit = ps(self.cluster.policy.handoff_timeout)
        enqueued = self.cluster.policy.heartbeat_from is Heartbeats.ENQUEUE
        for request in list(gateway.live.values()):
            if request.state not in (State.OFFERED, State.MOVING):
                continue
            heard = request.target is not None and (enqueued or request.state is State.MOVING)
            if heard or request.id not in leases.held:
                leases.grant(request.id, request.epoch, now)
            elif not leases.valid(request.id, request.epoch, now):
                gateway.expire(request, now, "leases ran out")
                continue
            if self._stuck(request, now, limit):
                gateway.expire(request, now, "transfers timed out")
        for key in [key for key in leases.held if key not in gateway.live]:
            leases.end(key, leases.held[key].epoch)
        if self.more or self.pending or len(gateway.live) > len(gateway.held):
            self.clock.at(now + ps(self.cluster.policy.heartbeat), FAULT, self._sweep)

    def _stuck(self, request: Request, now: int, limit: int) -> bool:
        if request.state is not State.MOVING:
            self.moving.pop(request.id, None)
            return False
        epoch, since = self.moving.get(request.id, (-1, now))
        if epoch != request.epoch:
            self.moving[request.id] = request.epoch, now
            return False
        return now - since >= limit


def _member(cluster: Cluster, role: Role) -> Member:
    pool = cluster.design.pool(role)
    assert pool is not None, f"no {role} in the design"
    return pool.members[-1]


def _wrong(change: Change, cluster: Cluster) -> Iterable[Finding]:
    """What a change names that the design does not have."""
    roles = {pool.role: pool.count for pool in cluster.design.pools}
    known = ", ".join(sorted(roles))
    named = [change.role] if isinstance(change, WorkerDown | Scale | Autoscale) else []
    named = [change.role, change.to] if isinstance(change, Switch) else named
    named = [Role.PREFILL, Role.DECODE] if isinstance(change, Balance) else named
    for role in named:
        if role not in roles:
            yield Finding("--fault", f"no {role} pool in this design", known)
    if isinstance(change, WorkerDown) and change.index is not None and change.index >= roles.get(change.role, 1 << 30):
        yield Finding("--fault", f"{change.role}[{change.index}]", f"an index below {roles[change.role]}")
    if isinstance(change, LinkSlow | LinkCorrupts):
        if cluster.boundary is None:
            yield Finding("--fault", "no link in a colocated design", "a disaggregated design")
        for role, index in ((Role.PREFILL, change.prefill), (Role.DECODE, change.decode)):
            if index is not None and index >= roles.get(role, 1 << 30):
                yield Finding("--fault", f"{role}[{index}]", f"an index below {roles[role]}")
