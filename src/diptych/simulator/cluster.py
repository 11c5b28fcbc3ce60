"""A design made to run: workers with their memory, tables and ports; the routes between them; what each one costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diptych.catalog.interconnect import Link
from diptych.catalog.memory import MemoryTier
from diptych.design.axes import Role, Worker
from diptych.design.boundary import Overlap, Ownership, Placement, Side
from diptych.design.design import Design, Member
from diptych.errors import Finding, InvalidDesign
from diptych.perf.memory import kv_capacity
from diptych.perf.model import PerfModel
from diptych.perf.stepping import stepping
from diptych.serving.batching import BatchRules
from diptych.serving.blocks import BlockPool
from diptych.serving.residency import Residency
from diptych.simulator.clock import NEVER, PS, Clock, ps
from diptych.simulator.crossing import Crossing, port_bandwidth
from diptych.simulator.crowd import Crowd
from diptych.simulator.gaps import GapHistogram
from diptych.simulator.network import Network, Port, Route
from diptych.simulator.pipeline import PipelinedWorker
from diptych.simulator.policy import Policy
from diptych.simulator.request import Request
from diptych.simulator.tables import StepTable
from diptych.simulator.worker import Done, VirtualWorker

Stream = Callable[[Request, int, int, int], None]
_TABLES: dict[tuple[int, Worker, int], tuple[PerfModel, StepTable]] = {}
_MOST_TABLES = 256


def step_table(perf: PerfModel, worker: Worker, budget: int) -> StepTable:
    """The table of a worker, kept for the runs to come; a model asked for in vain leaves when too many are kept."""
    key = (id(perf), worker, budget)
    found = _TABLES.get(key)
    if found is None or found[0] is not perf:
        if len(_TABLES) >= _MOST_TABLES:
            _TABLES.clear()
        found = _TABLES[key] = (perf, StepTable(perf, worker, budget))
    return found[1]


@dataclass(slots=True, eq=False)
class Station:
    """What the driver knows of one worker beyond its batch: its place in the design, its ports, its tiers, its bill."""

    worker: VirtualWorker
    role: Role
    member: Member
    out: Port
    into: Port
    residency: Residency | None
    tiers: tuple[MemoryTier, ...]
    reads: list[int]  # by tier: when what it has to read is read
    writes: list[int]
    shared: tuple[Port, ...]  # out of its instance and into it, where its workers share NICs
    since: int = 0  # paid from
    until: int = NEVER  # paid to: it was drained

    def seconds(self, start: int, end: int) -> float:
        """Seconds paid within a run from `start` to `end`."""
        return max(min(self.until, end) - max(self.since, start), 0) / PS


class Cluster:
    """The fleet of a design. Pools are lists that scaling may change; `stations` keeps every worker there ever was."""

    def __init__(
        self,
        design: Design,
        perf: PerfModel,
        policy: Policy,
        done: Done,
        stream: Stream,
        *,
        skip: bool,
        context: float,
        hash_tokens: int,
        gaps: GapHistogram | None = None,
    ) -> None:
        self.design, self.perf, self.policy, self.done, self.skip = design, perf, policy, done, skip
        self.context, self.hash_tokens = context, hash_tokens if policy.prefix_cache else 0
        self.boundary = (
            design.boundary if design.boundary and design.boundary.placement is not Placement.COLOCATED else None
        )
        self.clock = Clock()
        self.stations: list[Station] = []
        self.pools: dict[Role, list[VirtualWorker]] = {role: [] for role in Role}
        self._crossings: dict[tuple[Worker, Worker, tuple[float, ...]], Crossing] = {}
        self.shared: list[tuple[Port, ...]] = []  # out of and into each instance whose workers share NICs
        self._filling: dict[tuple[Role, str], tuple[tuple[Port, ...], int]] = {}  # the last one, and what is free on it
        self._routes: dict[tuple[int, int], tuple[Route, Crossing]] = {}
        self.network: Network
        self.gaps = gaps
        self.crowd = Crowd()
        self.stream = stream
        _check(design)
        for pool in design.pools:
            for member in pool.members:
                for _ in range(member.count):
                    self.add(pool.role, member, 0)

    def add(self, role: Role, member: Member, now: int) -> Station:
        """One more worker in a pool."""
        station = self.prepare(role, member, now)
        self.pools[role].append(station.worker)
        return station

    def prepare(self, role: Role, member: Member, now: int) -> Station:
        """One more worker, paid from now on and in no pool yet."""
        worker, policy = member.worker, self.policy
        rules, pipelined = stepping(worker), role is Role.PREFILL and worker.parallelism.pp > 1
        batch = BatchRules(
            int(rules.budget),
            int(rules.sequences),
            rules.mixes and not pipelined,  # prompts are held whole while they overlap
            policy.chunked,
            policy.shortest_first,
            policy.reserve or rules.reserves,
        )
        token = float(worker.model.kv_bytes(self.context, worker.precision.kv)) / self.context
        blocks = policy.kv_blocks or policy.role_blocks.get(role) or int(kv_capacity(worker) / (token * policy.block))
        pool = BlockPool(blocks, policy.block, hash_tokens=self.hash_tokens)
        table = step_table(self.perf, worker, batch.budget)
        kind = PipelinedWorker if pipelined else VirtualWorker
        made = kind(len(self.stations), worker, batch, pool, table, self.clock, self.done, self.skip)
        made.gaps = self.gaps
        if policy.slowed:
            self.crowd.add(made, policy.slowed.get(role, 1.0))
        out, into, shared = self._ports(made, role, member)
        residency = self._below(token, role)
        pool.reports = residency is not None
        tiers = policy.tiers if residency else ()
        station = Station(
            made, role, member, out, into, residency, tiers, [0] * len(tiers), [0] * len(tiers), shared, since=now
        )
        self.stations.append(station)
        self._hand(station)
        return station

    def _hand(self, station: Station) -> None:
        """What a prefill engine does for the boundary beside its steps."""
        boundary = self.boundary
        if boundary is None or station.role is not Role.PREFILL:
            return
        form = boundary.representation
        if form.converts_at is not Side.TRANSFER and station.member.worker.precision.kv is not form.wire:
            station.worker.convert = self._conversion
        if boundary.ownership is Ownership.PUSH and (boundary.overlap is Overlap.LAYERWISE or self.policy.per_chunk):
            station.worker.stream = self.stream

    def _conversion(self, request: Request) -> int:
        """ps that the source's engine converts a prompt before it leaves."""
        target = request.target or self.pools[Role.DECODE][0]
        crossing = self.crossing(request.source.member, target.member, *self._bursts(request.source, target))
        if request.todo >= len(crossing.before):
            crossing.grow(request.todo)
        return crossing.before[request.todo]

    def _ports(self, made: VirtualWorker, role: Role, member: Member) -> tuple[Port, Port, tuple[Port, ...]]:
        """A worker's port out and port in, and those of its instance if it shares NICs."""
        worker, link = member.worker, self.design.boundary.link if self.design.boundary else None
        if link is None:
            return Port(f"{made.index:05d} out", 0), Port(f"{made.index:05d} in", 0), ()
        capacity = port_bandwidth(worker, link, self._burst(member))
        shared: tuple[Port, ...] = ()
        if self._burst(member):
            shared = self._instance(role, member, link)
            capacity = min(capacity, shared[0].capacity)
        return Port(f"{made.index:05d} out", capacity), Port(f"{made.index:05d} in", capacity), shared

    def _burst(self, member: Member) -> float:
        """Bytes/s of NIC per accelerator that a worker may use while nobody else on its instance does; 0 without sharing."""
        size = self.policy.instances.get(member.offer, 0)
        return member.worker.accelerator.nic_bandwidth * max(size / member.worker.accelerators, 1.0) if size else 0.0

    def _instance(self, role: Role, member: Member, link: Link) -> tuple[Port, ...]:
        """The ports of the instance on which the next worker comes to lie: they fill one after another."""
        key, mine = (role, member.offer), member.worker.accelerators
        ports, free = self._filling.get(key, ((), 0))
        if free < mine:
            size = max(self.policy.instances[member.offer], mine)
            number, capacity = len(self.shared), int(member.worker.accelerator.nic_bandwidth * size * link.efficiency)
            ports, free = (
                (Port(f"instance {number} sends", capacity), Port(f"instance {number} receives", capacity)),
                size,
            )
            self.shared.append(ports)
        self._filling[key] = ports, free - mine
        return ports

    def _below(self, token: float, role: Role) -> Residency | None:
        """The tiers under a worker that computes prompts, in hashed blocks."""
        policy, boundary = self.policy, self.boundary
        computes = role is not Role.DECODE or (boundary and boundary.placement is Placement.CONDITIONAL)
        if not (self.hash_tokens and policy.tiers and computes):
            return None
        size = token * self.hash_tokens
        return Residency([int(tier.capacity / size) for tier in policy.tiers], policy.retention)

    def between(self, source: VirtualWorker, target: VirtualWorker) -> tuple[Route, Crossing]:
        """The route from one worker to another and the tables of what crosses it."""
        key = (source.index, target.index)
        found = self._routes.get(key)
        if found is None:
            crossing = self.crossing(source.member, target.member, *self._bursts(source, target))
            here, there = self.stations[source.index], self.stations[target.index]
            shared, limit = (*here.shared[:1], *there.shared[1:]), max(1, int(crossing.link.achievable))
            found = self._routes[key] = (self.network.route(here.out, there.into, limit, *shared), crossing)
        return found

    def _bursts(self, source: VirtualWorker, target: VirtualWorker) -> tuple[float, float]:
        return self._burst(self.stations[source.index].member), self._burst(self.stations[target.index].member)

    def crossing(self, prefill: Worker, decode: Worker, *nics: float) -> Crossing:
        """The tables of what crosses between two kinds of workers, with NICs (bytes/s per accelerator) other than their own."""
        key = prefill, decode, nics
        crossing = self._crossings.get(key)
        if crossing is None:
            assert self.boundary is not None
            crossing = Crossing(prefill, decode, self.boundary, self.policy.block, nics or (0.0, 0.0))
            self._crossings[key] = crossing
        return crossing

    def serving(self) -> Iterator[VirtualWorker]:
        """Workers in some pool."""
        for pool in self.pools.values():
            yield from pool

    def read(self, station: Station, tier: int, hashes: int, now: int) -> int:
        """When `hashes` blocks are read from a tier that serves one read after another."""
        spec = station.tiers[tier]
        seconds = spec.latency + self._hash_bytes(station) * hashes / spec.read_bandwidth
        station.reads[tier] = end = max(now, station.reads[tier]) + ps(seconds)
        return end

    def write(self, station: Station, tier: int, hashes: int, now: int) -> int:
        """When they are written to one that also does one write after another, beside its reads."""
        spec = station.tiers[tier]
        seconds = spec.latency + self._hash_bytes(station) * hashes / spec.write_bandwidth
        station.writes[tier] = end = max(now, station.writes[tier]) + ps(seconds)
        return end

    def _hash_bytes(self, station: Station) -> float:
        worker = station.member.worker
        return float(worker.model.kv_bytes(self.context, worker.precision.kv)) / self.context * self.hash_tokens


def _check(design: Design) -> None:
    """A design that can run: workers in every pool it needs."""
    roles = {pool.role for pool in design.pools if pool.count}
    apart = design.boundary is not None and design.boundary.placement is not Placement.COLOCATED
    wanted = {Role.PREFILL, Role.DECODE} if apart else {Role.COLOCATED}
    findings = [Finding("design", f"no {role} worker", "at least one") for role in sorted(wanted - roles)]
    findings += [
        Finding("design", f"a {role} pool", f"only {', '.join(sorted(wanted))}") for role in sorted(roles - wanted)
    ]
    if findings:
        raise InvalidDesign(findings)
