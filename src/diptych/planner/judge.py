"""A design put to the test: simulated under a demand, summed up under an SLO, and told with everything that limits the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from diptych.design.axes import Role, Worker
from diptych.design.boundary import Side
from diptych.design.design import Design, Pool
from diptych.metrics.measurements import Floats, Measurements, RequestColumns
from diptych.metrics.record import Outcome
from diptych.metrics.saturation import crowd_falls_behind, falls_behind, too_short
from diptych.metrics.slo import SLO
from diptych.metrics.stages import STAGES, Conversions, stages
from diptych.metrics.summary import Spread, Summary, summarise
from diptych.metrics.tally import Tally
from diptych.perf.estimate import Basis
from diptych.perf.model import PerfModel
from diptych.perf.transfer import conversion_seconds, staged_conversion_seconds
from diptych.planner.demand import Demand, LongDemand
from diptych.simulator.faults import Change
from diptych.simulator.policy import Policy
from diptych.simulator.simulate import Progress, simulate

MUCH = 0.2
"""Share of end-to-end latency from which a handoff is told as what binds."""
PROMPTS = (0.5, 0.99)
"""Quantiles of the prompts at which the trust in prefill times is asked for."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """How the step times of one kind of worker were obtained, and how far they may be off."""

    role: Role
    worker: str
    basis: Basis
    band: float
    outside_measured: bool


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A run with its summary. `stages` are seconds per finished request, `told` what a reader must know of the result.

    `tokens` in and out of finished requests, `handed` requests handed over. Of a long run no request is kept: `run.requests` and
    `stages` are empty, `spreads` are not.
    """

    design: Design
    demand: Asks
    slo: SLO
    run: Measurements
    summary: Summary
    stages: Mapping[str, Floats]
    spreads: Mapping[str, Spread]
    tokens: int
    handed: int
    estimates: tuple[Estimate, ...]
    told: tuple[str, ...]
    faults: tuple[Change, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every objective was kept."""
        return all(kept.holds for kept in self.summary.kept)


class Asks(Protocol):
    """What a reader is told of a demand; `rate` in requests/s."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def rate(self) -> float: ...


def judge(
    design: Design,
    demand: Demand,
    perf: PerfModel,
    slo: SLO | None = None,
    *,
    seed: int = 0,
    faults: Sequence[Change] = (),
    policy: Policy | None = None,
    concurrency: int | None = None,
    notes: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
) -> Judged:
    """Simulate and sum up. `notes` are told first. Raises what `simulate` raises."""
    slo = slo or SLO()
    run = simulate(
        design, demand.requests, perf, seed=seed, faults=faults, policy=policy, concurrency=concurrency, gaps=True,
        progress=progress, name=demand.name,
    )  # fmt: skip
    asked, seen = demand.requests, run.requests
    prompts = [float(p) for p in np.quantile(asked.isl.astype(float), PROMPTS)]
    known = tuple(_estimates(design, perf, run, prompts, float(np.mean(asked.isl + asked.osl / 2))))
    outcomes = dict(zip(*(column.tolist() for column in np.unique(seen.outcome, return_counts=True)), strict=True))
    behind = falls_behind(run) if concurrency is None else ""
    longest = int(np.max(asked.isl + asked.osl))
    told = (*notes, *demand.notes, *_told(design, perf, run, behind or too_short(run), outcomes, longest))
    parts = stages(seen, conversions(design, seen))
    return judged(
        design, demand, slo, run, summarise(run, slo), parts, {name: Spread.of(part) for name, part in parts.items()},
        int((seen.isl + seen.osl)[seen.finished].sum()), int(np.sum(~np.isnan(seen.moved))), known, told, faults,
    )  # fmt: skip


def judge_long(
    design: Design,
    demand: LongDemand,
    perf: PerfModel,
    slo: SLO | None = None,
    *,
    seed: int = 0,
    faults: Sequence[Change] = (),
    policy: Policy | None = None,
    notes: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
) -> Judged:
    """The same of a demand that nobody holds, in memory that does not grow with it; quantiles are within 0.6 %."""
    slo = slo or SLO()
    tally = Tally(slo, lambda requests: conversions(design, requests))
    run = simulate(
        design, demand.parts(), perf, seed=seed, faults=faults, policy=policy, gaps=True, progress=progress, sink=tally.add,
        name=demand.name,
    )  # fmt: skip
    known = tuple(_estimates(design, perf, run, tally.prompts.quantiles(PROMPTS), tally.context / max(tally.count, 1)))
    behind = crowd_falls_behind(tally.crowd)
    told = (*notes, *demand.notes, *_told(design, perf, run, behind, tally.outcomes, tally.longest))
    nothing = {name: np.empty(0) for name in STAGES}
    return judged(
        design,
        demand,
        slo,
        run,
        tally.summary(run),
        nothing,
        tally.spreads(),
        tally.tokens,
        tally.handed,
        known,
        told,
        faults,
    )


def judged(
    design: Design, demand: Asks, slo: SLO, run: Measurements, summary: Summary, parts: Mapping[str, Floats],
    spreads: Mapping[str, Spread], tokens: int, handed: int, known: tuple[Estimate, ...], told: Sequence[str],
    faults: Sequence[Change],
) -> Judged:  # fmt: skip
    """With what the stages and the estimates give to tell."""
    sentences = tuple(dict.fromkeys((*told, *_handing(spreads), *_trusted(known))))
    return Judged(
        design, demand, slo, run, summary, parts, spreads, tokens, handed, known, sentences, tuple(faults)
    )  # fmt: skip


def conversions(design: Design, requests: RequestColumns) -> Conversions | None:
    """What the boundary's conversion took of each request that was handed over, by the formulas that the run used."""
    boundary = design.boundary
    if boundary is None:
        return None
    form, none = boundary.representation, np.zeros(len(requests))
    sides = [_of_workers(design, pool, getattr(requests, f"{pool.role}_worker")) for pool in design.pools]
    parts = [none.copy(), none.copy(), none.copy()]
    handed = ~np.isnan(requests.moved)
    for source, mine in sides[0]:
        for target, theirs in sides[1]:
            here = handed & mine & theirs
            tokens, model = requests.isl[here].astype(float), source.model
            made, used = source.precision.kv, target.precision.kv
            if form.converts_at is Side.TRANSFER:
                parts[1][here] = staged_conversion_seconds(model, tokens, made, used, source.accelerator.pcie_bandwidth)
            else:
                parts[0][here] = conversion_seconds(model, tokens, made, form.wire, source)
                parts[2][here] = conversion_seconds(model, tokens, form.wire, used, target)
    return Conversions(*parts)


def _of_workers(design: Design, pool: Pool, index: np.ndarray) -> list[tuple[Worker, np.ndarray]]:
    """Each kind of worker of a pool with the requests it served; workers added on the way are of the last kind."""
    first = 0 if pool.role is not Role.DECODE else design.pools[0].count
    found = []
    for member in pool.members:
        last = member is pool.members[-1]
        found.append((member.worker, (index >= first) & ((index < first + member.count) | last)))
        first += member.count
    return found


def _told(
    design: Design, perf: PerfModel, run: Measurements, saturation: str, outcomes: Mapping[int, int], longest: int
) -> Iterator[str]:
    """Saturation, refusals, what bound, what the models of time say. `longest` is the longest request's tokens."""
    if saturation:
        yield saturation
    yield from (
        f"{outcomes[code]:,} of {run.arrived:,} requests {why}" for code, why in _WHY.items() if outcomes.get(code)
    )
    model = design.pools[0].members[0].worker.model
    if longest > model.max_context:
        yield f"the longest request has {longest:,} tokens, {model.name} takes {model.max_context:,}"
    preempted = sum(worker.preemptions for worker in run.workers)
    if preempted:
        yield f"{preempted:,} preemptions: KV blocks ran out and answers were computed again"
    yield from (f"bound by {limit}" for limit in run.limits)
    yield from run.notes
    speak = getattr(perf, "warnings", lambda worker: ())
    for worker in _kinds(design):
        yield from (f"{worker.accelerator.name}: {note}" for note in speak(worker))


def _handing(spreads: Mapping[str, Spread]) -> Iterator[str]:
    """A handoff that takes much of a request's time is a limit that no engine shows."""
    total = sum(spread.mean for spread in spreads.values())
    share = spreads["transfer"].mean / total if total > 0 else 0.0
    if share > MUCH:
        yield f"bound by the handoff: {share:.0%} of a request's time is room on the decode side, the link's queue and its bytes"


_WHY = {
    int(Outcome.TOO_LONG): "fit on no worker",
    int(Outcome.REJECTED): "were rejected early",
    int(Outcome.LOST): "were lost",
    int(Outcome.CANCELLED): "were cancelled by their clients",
}


def _kinds(design: Design) -> Iterator[Worker]:
    yield from dict.fromkeys(member.worker for pool in design.pools for member in pool.members)


def _estimates(
    design: Design, perf: PerfModel, run: Measurements, prompts: Sequence[float], context: float
) -> Iterator[Estimate]:
    """The trust in the step times at the prompts (tokens) and batches that were seen, and at a mean context."""
    for pool in design.pools:
        running = run.series.values.get(f"{pool.role}_running", np.ones(1))
        batch = max(float(np.nanmean(running)) / pool.count, 1.0)
        for worker in dict.fromkeys(member.worker for member in pool.members):
            timings = []
            if pool.role is not Role.DECODE:
                timings.append(perf.prefill(worker, np.array(prompts)))
            if pool.role is not Role.PREFILL:
                timings.append(perf.decode(worker, batch, context))
            basis = max((timing.basis for timing in timings), key=list(Basis).index)
            outside = any(bool(np.any(timing.outside)) for timing in timings)
            yield Estimate(pool.role, worker.label, basis, max(float(t.band) for t in timings), outside)


def _trusted(estimates: Sequence[Estimate]) -> Iterator[str]:
    for known in estimates:
        if known.outside_measured or known.basis is Basis.ROOFLINE:
            how = "extrapolated beyond what was measured" if known.outside_measured else "from the data sheet"
            yield f"{known.role} steps of {known.worker} are {how}, ± {known.band:.0%}"
