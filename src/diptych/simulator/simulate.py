"""`simulate`: a design, a workload and a perf model in, measurements out. Same arguments, same bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat

import numpy as np

from diptych.design.boundary import Overlap, Ownership
from diptych.design.design import Design
from diptych.errors import Finding, InvalidDesign, InvalidInput
from diptych.metrics.gaps import TokenGaps
from diptych.metrics.measurements import LinkUse, Measurements, RequestColumns, WorkerUse
from diptych.perf.model import PerfModel
from diptych.simulator.clock import ARRIVAL, NEVER, PS
from diptych.simulator.cluster import Cluster, Station
from diptych.simulator.demand import Requests, from_workload
from diptych.simulator.faults import Change
from diptych.simulator.gaps import GapHistogram
from diptych.simulator.gateway import Gateway
from diptych.simulator.network import Network, Port
from diptych.simulator.operations import Operations
from diptych.simulator.policy import Policy
from diptych.simulator.recorder import Recorder, Sampler
from diptych.simulator.request import Request
from diptych.simulator.worker import VirtualWorker
from diptych.units import HOUR
from diptych.workload.workload import Workload

IDLE_POWER = 0.15
"""Share of TDP that an idle accelerator draws (data-centre GPUs report 10 to 20 %); a busy one counts at TDP, an upper bound."""

Demand = Workload | Requests | Iterable[Requests]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: simulated seconds, requests that arrived, and that ended."""

    seconds: float
    arrived: int
    ended: int


def simulate(
    design: Design,
    workload: Demand,
    perf: PerfModel,
    *,
    rate: float | None = None,
    duration: float | None = None,
    requests: int | None = None,
    seed: int = 0,
    faults: Sequence[Change] = (),
    policy: Policy | None = None,
    concurrency: int | None = None,
    skip: bool = True,
    gaps: bool = False,
    progress: Callable[[Progress], None] | None = None,
    sink: Callable[[RequestColumns], None] | None = None,
    name: str = "",
) -> Measurements:
    """Run `design` against `workload` in virtual time.

    A `Workload` is drawn from (lengths, rate, burstiness), `Requests` are replayed as they are; `rate` (requests/s) stretches
    time, `duration` (s) and `requests` end the arrivals. With `concurrency` arrivals are ignored: so many requests are in the
    system at a time, the next one entering when one ends. `faults` may also scale and switch workers. `skip` False simulates
    every step, with the same result. `gaps` counts every gap between two tokens. With `sink` rows are handed over in blocks and
    not kept, so memory does not grow.

    Raises `InvalidDesign` when the design cannot run, `InvalidInput` for faults it does not have and for rates that are missing.
    """
    run = Run(design, workload, perf, policy or Policy(), seed, faults, skip, sink, rate, duration, requests, gaps)
    collecting = gc.isenabled()
    gc.disable()  # a run makes no cycles; looking for them costs a tenth of it
    try:
        if concurrency is None:
            run.open_loop(progress)
        else:
            run.closed_loop(concurrency, progress)
    finally:
        if collecting:
            gc.enable()
    return run.measurements(name)


class Run:
    """One simulation: built, run once as an open or a closed loop, then measured."""

    def __init__(
        self, design: Design, workload: Demand, perf: PerfModel, policy: Policy, seed: int, faults: Sequence[Change],
        skip: bool, sink: Callable[[RequestColumns], None] | None, rate: float | None, duration: float | None, count: int | None,
        gaps: bool = False,
    ) -> None:  # fmt: skip
        _pulled_whole(design, policy)
        self.seed = seed
        parts, context, hash_tokens, self.name = _demand(workload, seed, rate, duration, count)
        self.parts = parts
        self.recorder = Recorder(sink)
        self.cluster = Cluster(
            design,
            perf,
            policy,
            self._done,
            self._stream,
            skip=skip,
            context=context,
            hash_tokens=hash_tokens,
            gaps=GapHistogram() if gaps else None,
        )
        self.gateway = Gateway(self.cluster, self.recorder.rows.append)
        fabric = None if policy.fabric is None else Port("fabric", int(policy.fabric))
        self.cluster.network = Network(self.cluster.clock, self.gateway.wire.arrived, fabric)
        done = self.gateway.tiering.after(self.gateway.done) if policy.tiers else self.gateway.done
        self.cluster.done = done
        for worker in self.cluster.serving():
            worker.done = done
        self.operations = Operations(self.cluster, self.gateway, faults, seed)
        self.sampler = Sampler(self.cluster, self.gateway, PS)
        self.arrived = 0

    def _done(self, worker: VirtualWorker, now: int) -> None:
        self.gateway.done(worker, now)

    def _stream(self, request: Request, tokens: int, now: int, took: int) -> None:
        self.gateway.wire.stream(request, tokens, now, took)

    def open_loop(self, progress: Callable[[Progress], None] | None) -> None:
        """Requests enter when they arrive."""
        clock, arrive, recorder = self.cluster.clock, self.gateway.arrive, self.recorder
        heap = clock.heap
        number = self.arrived
        for rows in (few for part in self.parts for few in _slices(_rows(part))):
            for time, isl, osl, cached, blocks in rows:
                if heap[0][0] < time:
                    clock.run_before(time)
                request = Request(number, time, isl, osl, blocks)
                if cached:
                    request.computed = min(cached, isl - 1)
                arrive(request, time)
                number += 1
            self.arrived = number
            recorder.flush_if_full()
            if progress is not None:
                progress(Progress(time / PS, number, number - len(self.gateway.live)))
        self._finish(progress)

    def closed_loop(self, concurrency: int, progress: Callable[[Progress], None] | None) -> None:
        """A fixed number of requests is in the system; one that ends lets the next one in."""
        rows = (row for part in self.parts for row in _rows(part))
        clock = self.cluster.clock

        def enter(now: int, about: object) -> None:
            row = next(rows, None)
            if row is None:
                return
            _, isl, osl, cached, blocks = row
            request = Request(self.arrived, now, isl, osl, blocks)
            request.computed = min(cached, isl - 1) if cached else 0
            self.arrived += 1
            self.gateway.arrive(request, now)

        def ended(now: int) -> None:
            clock.at(now + 1, ARRIVAL, enter)
            if self.arrived % 4096 == 0:
                self.recorder.flush_if_full()

        self.gateway.ended = ended
        for _ in range(concurrency):
            clock.at(0, ARRIVAL, enter)
        self._finish(progress)

    def _finish(self, progress: Callable[[Progress], None] | None) -> None:
        """Let everything end that still can; whoever cannot has lost."""
        self.operations.more = self.sampler.more = False
        clock = self.cluster.clock
        heap = clock.heap
        while heap[0][0] < NEVER:
            last = heap[0][0]
            clock.run_before(last + PS)
            self.recorder.flush_if_full()
            if progress is not None:
                progress(Progress(last / PS, self.arrived, self.arrived - len(self.gateway.live)))
        self.gateway.abandon()

    # --- the result -------------------------------------------------------------------------------------------------

    def measurements(self, name: str) -> Measurements:
        """Everything observed."""
        self.recorder.flush()
        requests = self.recorder.requests()
        end = self.recorder.last
        duration = max(end - self.recorder.first, 0) / PS
        workers = tuple(self._use(station, end) for station in self.cluster.stations)
        return Measurements(
            name=name or self.name,
            requests=requests,
            series=self.sampler.series(),
            workers=workers,
            links=tuple(self._links()),
            duration=duration,
            arrived=self.arrived,
            usd=sum(worker.usd for worker in workers),
            energy=sum(worker.energy for worker in workers),
            seed=self.seed,
            limits=self._limits(),
            notes=tuple(f"{count:,} {what}" for what, count in sorted(self.gateway.counts.items())),
            gaps=self._gaps(),
            counts=dict(sorted(self.gateway.counts.items())),
        )

    def _gaps(self) -> TokenGaps | None:
        for worker in (station.worker for station in self.cluster.stations):
            worker.count_gaps()
        return None if self.cluster.gaps is None else self.cluster.gaps.seen()

    def _use(self, station: Station, end: int) -> WorkerUse:
        worker, member = station.worker, station.member
        accelerator, count = member.worker.accelerator, member.worker.accelerators
        seconds, busy = station.seconds(self.recorder.first, end), worker.busy / PS
        watts = accelerator.tdp_w * count
        return WorkerUse(
            index=worker.index,
            role=str(station.role),
            accelerator=accelerator.name,
            accelerators=count,
            seconds=seconds,
            busy=busy,
            steps=worker.steps,
            preemptions=worker.preemptions,
            usd=member.usd_per_hour * seconds / HOUR,
            energy=watts * (busy + IDLE_POWER * max(seconds - busy, 0.0)),
            kv_blocks=worker.pool.capacity,
            kv_held=worker.pool.held,
        )

    def _links(self) -> Iterator[LinkUse]:
        moved: dict[str, int] = {}
        for route in self.cluster.network.routes:
            for port in route.ports:
                moved[port.name] = moved.get(port.name, 0) + route.moved
        for station in self.cluster.stations:
            for port in (station.out, station.into):
                if port.name in moved:
                    yield LinkUse(port.name, moved[port.name], float(port.nominal))
        for port in self.cluster.network.fabric:
            yield LinkUse(port.name, moved.get(port.name, 0), float(port.nominal))

    def _limits(self) -> tuple[str, ...]:
        looks = max(self.sampler.looks, 1)
        ordered = sorted(self.sampler.bound.items(), key=lambda item: (-item[1], item[0]))
        return tuple(f"{what} ({count / looks:.0%} of the time)" for what, count in ordered if count > looks // 20)


_Input = tuple[int, int, int, int, tuple[int, ...]]


def _slices(rows: Iterator[_Input]) -> Iterator[list[_Input]]:
    """So many rows at a time that progress is told often, however long a request takes to simulate."""
    while few := list(islice(rows, 64)):
        yield few


def _rows(part: Requests) -> Iterator[_Input]:
    times = np.rint(part.arrival * PS).astype(np.int64).tolist()
    cached = part.cached.tolist() if part.cached is not None else repeat(0)
    blocks = part.blocks if part.blocks is not None else repeat(())
    return zip(times, part.isl.tolist(), part.osl.tolist(), cached, blocks, strict=False)


def _pulled_whole(design: Design, policy: Policy) -> None:
    """In a pull the decode side hears of a prompt when it is computed (vLLM's NIXL connector: block ids come with prefill's
    answer), and no engine offers finished chunks or layers to be read before; those that overlap write them (SGLang and
    Mooncake by chunk, MoRIIO by layer)."""
    boundary = design.boundary
    if boundary is None or boundary.ownership is not Ownership.PULL:
        return
    problem = "a pull reads what prefill has announced, and it announces whole prompts: {} can only be pushed"
    if boundary.overlap is Overlap.LAYERWISE:
        raise InvalidDesign(Finding("boundary", problem.format("layers"), "push, or a serial pull"))
    if policy.per_chunk:
        raise InvalidInput(Finding("--policy per_chunk", problem.format("chunks"), "push, or per_chunk=no"))


def _demand(
    workload: Demand, seed: int, rate: float | None, duration: float | None, count: int | None
) -> tuple[Iterable[Requests], float, int, str]:
    """Parts of requests, their mean context, the tokens per hash (0 without), and a name."""
    if isinstance(workload, Workload):
        mean = workload.lengths.mean_isl + workload.lengths.mean_osl
        if count is None and duration is None:
            count = workload.requests or 10_000
        return from_workload(workload, seed, rate=rate, count=count, duration=duration), mean, 0, workload.name
    if isinstance(workload, Requests):
        if rate is not None:
            workload = workload.at_rate(rate)
        if duration is not None:
            workload = workload.until(duration)
        if count is not None:
            workload = workload.first(count)
        mean = float(np.mean(workload.isl + workload.osl)) if len(workload) else 1.0
        return workload.chunks(), mean, workload.hash_tokens if workload.blocks is not None else 0, workload.name
    parts = iter(workload)
    first = next(parts)
    mean = float(np.mean(first.isl + first.osl))
    return _chain(first, parts), mean, first.hash_tokens if first.blocks is not None else 0, first.name


def _chain(first: Requests, rest: Iterator[Requests]) -> Iterator[Requests]:
    yield first
    yield from rest
