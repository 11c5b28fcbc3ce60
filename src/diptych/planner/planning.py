"""`plan`: from a question to an answer. Everything else in this package is a step of this file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata

import numpy as np

from diptych.catalog.catalog import Catalog
from diptych.catalog.memory import TierKind
from diptych.catalog.model import Model
from diptych.catalog.offer import PriceBook
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Placement
from diptych.design.ruling import Setting
from diptych.errors import NoFeasibleDesign
from diptych.metrics.slo import SLO
from diptych.perf.model import PerfModel
from diptych.perf.roofline import default_perf
from diptych.planner.ask import Ask, ask
from diptych.planner.assemble import busiest, option
from diptych.planner.assemble_mixed import mixed_option
from diptych.planner.boundaries import Boundaries
from diptych.planner.budget import most_goodput
from diptych.planner.checklist import checklist
from diptych.planner.conditional import conditional_options
from diptych.planner.demand import Demand
from diptych.planner.enumerate import RoleSpace, role_spaces, setting_of
from diptych.planner.found import Found, Pooled
from diptych.planner.goodput import most
from diptych.planner.meeting import Sized
from diptych.planner.mixed import Columns
from diptych.planner.pareto import pareto
from diptych.planner.pins import Pins
from diptych.planner.plan import Alternative, Answer, Flip, Goal, Option, Plan, PoolPlan, Question, WorkloadSummary
from diptych.planner.refuse import below_floor, beyond_budget, refuse
from diptych.planner.rushes import Sizing
from diptych.planner.search import search
from diptych.planner.sensitivity import Finalists, sensitivity
from diptych.planner.space import space_of
from diptych.planner.tables import Tables
from diptych.planner.verdict import answer_of, preference, ruling, simplest_equal, verdict, why_not
from diptych.planner.verify import Checking, verified_fleets, verified_option
from diptych.units import format_bytes
from diptych.workload.load import load_workload
from diptych.workload.workload import Workload

Progress = Callable[[int, int, str], None]
RUNNERS_UP = 3
TRICKLE = 1e-6
"""Requests/s so few that the smallest fleet carries them."""
SAFE = 1 - 1e-6
"""A fleet's goodput is found to 1e-4 from below; shown this much lower, it keeps every promise."""


@dataclass(frozen=True, eq=False)
class Search:
    """A question with everything its search needs, and what it found."""

    ask: Ask
    setting: Setting
    spaces: Mapping[Role, RoleSpace]
    boundaries: Boundaries
    tables: Tables

    @classmethod
    def of(cls, question: Ask) -> Search:
        setting = setting_of(question)
        spaces = role_spaces(question, setting)
        return cls(question, setting, spaces, Boundaries(question, setting), Tables.of(question, spaces))

    def at(
        self,
        rate: float,
        ceiling: float = math.inf,
        progress: Progress | None = None,
        runners_up: int = RUNNERS_UP,
        kinds: frozenset[Answer] = frozenset(Answer),
    ) -> Found:
        """The cheapest fleets of `kinds` at `rate` below `ceiling` USD/h."""
        return search(
            self.ask, self.tables, self.boundaries, dict(self.spaces), rate,
            ceiling=ceiling, runners_up=runners_up, progress=progress, kinds=kinds,
        )  # fmt: skip


def plan(
    model: Model | str,
    workload: Workload | str,
    slo: SLO | str,
    *,
    catalog: Catalog | None = None,
    prices: PriceBook | str | None = None,
    rate: float | None = None,
    budget: float | None = None,
    inventory: Mapping[str, int] | None = None,
    pins: Pins | None = None,
    quality: str = "8bit",
    size_for: str = "trace",
    perf: PerfModel | None = None,
    progress: Progress | None = None,
    verify: Demand | None = None,
) -> Plan:
    """The cheapest fleet that holds `slo` for `workload`, heterogeneous or not, with the reasons.

    Exactly one of `rate` (requests/s; the workload's own by default), `budget` (USD/h) and `inventory` (accelerators owned by
    name) sets the goal. `workload` may be what `load_workload` takes: a file, a bundled trace, 'preset:chat'. `pins` fix any
    axis, `quality` is the narrowest weights allowed (native, 8bit, any). `size_for` says what the SLO must hold over: the whole
    trace with its rushes, its average rate, its busiest step too (trace, average, peak). `progress` is called with (done, total,
    note). With `verify` the finalists are simulated under that demand and corrected by what is seen.

    Raises:
        InvalidInput: every mistake in the inputs at once.
        NoFeasibleDesign: no fleet keeps the SLO; counts by rule, and the nearest miss.
    """
    if isinstance(workload, str):
        workload = load_workload(workload, rate)
    question = ask(
        model, workload, slo, catalog=catalog or Catalog.load(), perf=perf or default_perf(), prices=prices, rate=rate,
        budget=budget, inventory=inventory, pins=pins, quality=quality, size_for=size_for,
    )  # fmt: skip
    return answer(Search.of(question), progress, verify)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a goal came to: the best option of every kind, those worth showing, and the rate they were compared at."""

    rate: float
    baselines: Mapping[Answer, Option | None]
    options: list[Option]
    found: Found

    def best(self, question: Ask) -> Option:
        """The cheapest at the rate asked for, or the one with the most goodput; among equals the simplest."""
        able = [o for o in self.baselines.values() if o is not None and _eligible(question, o)]
        return min(able, key=lambda o: preference(question.goal, o))


def answer(searching: Search, progress: Progress | None = None, verify: Demand | None = None) -> Plan:
    """The plan for a prepared search; its finalists are simulated under `verify`."""
    question = searching.ask
    impossible = below_floor(question, searching.spaces, searching.tables)
    if impossible is not None:
        raise impossible
    goals = {Goal.RATE: _for_rate, Goal.BUDGET: _for_budget, Goal.INVENTORY: _for_inventory}
    outcome = goals[question.goal](searching, progress)
    if not _answers(question, outcome):
        raise _refusal(searching, outcome)
    if verify is None:
        return assemble(searching, outcome)
    checking = Checking(question, verify, progress=progress)
    outcome = _verified(searching, outcome, checking)
    if not _answers(question, outcome):
        raise _all_dropped(checking)
    return replace(assemble(searching, outcome), verification=checking.verification())


def _refusal(searching: Search, outcome: Outcome) -> NoFeasibleDesign:
    """Why there is no answer: a budget may be below the smallest fleet there is."""
    question = searching.ask
    if question.goal is Goal.BUDGET:
        least = searching.at(TRICKLE, runners_up=0)
        fleets: list[Sized | Pooled] = [*least.apart.values()]
        fleets += [] if question.pinned_apart else least.together.values()
        if fleets:
            return beyond_budget(question, min(fleet.usd_per_hour for fleet in fleets))
    return refuse(question, searching.spaces, searching.tables, outcome.rate)


def _answers(question: Ask, outcome: Outcome) -> bool:
    return any(o is not None and _eligible(question, o) for o in outcome.baselines.values())


def _all_dropped(checking: Checking) -> NoFeasibleDesign:
    """No finalist held the SLO when it was simulated."""
    last = min(checking.checked, key=lambda checked: -checked.attainment)
    return NoFeasibleDesign(
        f"none of {len(checking.checked)} finalists held the SLO in simulation",
        nearest=f"the nearest, {last.planned}: {last.reason}",
    )


def _verified(searching: Search, outcome: Outcome, checking: Checking) -> Outcome:
    """The outcome with its finalists simulated: fleets resized for a rate, goodput corrected for a budget or an inventory."""
    question = searching.ask
    if question.goal is Goal.RATE:
        found = verified_fleets(checking, outcome.found, outcome.rate, RUNNERS_UP + 1)
        again = _of_found(searching, found, outcome.rate)
        split = [o for o in again.options if o.placement is Placement.CONDITIONAL]
        return _without(again, {id(o) for o in split if verified_option(checking, o, slower=False) is None})
    known = {id(o): verified_option(checking, o) for o in outcome.baselines.values() if o is not None}
    baselines = {kind: known[id(o)] if o is not None else None for kind, o in outcome.baselines.items()}
    return replace(outcome, baselines=baselines, options=[o for o in baselines.values() if o is not None])


def _without(outcome: Outcome, dropped: set[int]) -> Outcome:
    """The outcome without some of its options."""
    kept = [o for o in outcome.options if id(o) not in dropped]
    baselines: dict[Answer, Option | None] = {
        kind: o if o is None or id(o) not in dropped else next((k for k in kept if answer_of(k) is kind), None)
        for kind, o in outcome.baselines.items()
    }
    return replace(outcome, baselines=baselines, options=kept)


def _for_rate(searching: Search, progress: Progress | None) -> Outcome:
    rate = searching.ask.rate
    assert rate is not None
    return _of_found(searching, searching.at(rate, progress=progress), rate)


def _of_found(searching: Search, found: Found, rate: float) -> Outcome:
    """What a search at a rate came to."""
    question = searching.ask
    shown = _shown(question, found, rate)
    baselines = _baselines(question, found, rate, shown)
    split = conditional_options(question, searching.tables.load, found, rate) if question.stock is None else []
    for other in split if question.placement in (None, Placement.CONDITIONAL) else ():
        kind = answer_of(other)
        present = baselines[kind]
        if question.placement is not None or present is None or other.usd_per_hour < present.usd_per_hour:
            baselines[kind] = other
    options = sorted([*shown.values(), *split], key=lambda o: preference(Goal.RATE, o))
    baselines = {kind: simplest_equal(held, options) for kind, held in baselines.items()}
    return Outcome(rate, baselines, options, found)


def _for_budget(searching: Search, progress: Progress | None) -> Outcome:
    """The most goodput of every kind; others are then priced at the winner's rate."""
    question = searching.ask
    assert question.budget is not None

    def at(rate: float, ceiling: float, kinds: frozenset[Answer]) -> Found:
        return searching.at(rate, ceiling, runners_up=0, kinds=kinds)

    baselines: dict[Answer, Option | None] = dict.fromkeys(Answer)
    guess = question.workload.arrivals.rate or 1.0
    for done, kind in enumerate(Answer):
        if progress is not None:
            progress(done, len(Answer), str(kind))
        held = most_goodput(at, question.budget, kind, guess)
        if held is not None:
            baselines[kind], guess = option(question, held[0], held[1] * SAFE), held[1]
    rate = max((o.rate for o in baselines.values() if o is not None), default=guess)
    found = searching.at(rate, runners_up=1)
    shown = [*_shown(question, found, rate).values(), *(o for o in baselines.values() if o is not None)]
    paid = [o for o in shown if o.usd_per_hour <= question.budget * (1 + 1e-9)]
    return Outcome(rate, baselines, sorted(paid, key=lambda o: preference(Goal.BUDGET, o)), found)


def _for_inventory(searching: Search, progress: Progress | None) -> Outcome:
    """The best mixture of all that is owned, of colocated pools alone, and of each accelerator disaggregated on its own."""
    question = searching.ask
    owned = {question.catalog.accelerator(name).name: count for name, count in (question.inventory or {}).items()}
    columns = Columns.of(searching.tables, searching.boundaries, searching.spaces)
    alone = (columns.best({name: count}, together=False) for name, count in owned.items())
    beside = question.placement is None and not question.pinned_apart
    whole = columns.best(owned, together=beside) if question.placement is not Placement.COLOCATED else None
    if whole is not None and not whole.prefill:  # nothing is handed over: what is best handed over stands beside it
        whole = columns.best(owned, together=False)
    mixtures = {
        Answer.DO_NOT_DISAGGREGATE: columns.best(owned, apart=False),
        Answer.HOMOGENEOUS_DISAGGREGATED: max(
            (mixture for mixture in alone if mixture is not None), key=lambda m: most(m.keeps, 1.0), default=None
        ),
        Answer.HETEROGENEOUS: whole,
    }
    baselines: dict[Answer, Option | None] = dict.fromkeys(Answer)
    for mixture in mixtures.values():
        if mixture is not None and (rate := most(mixture.keeps, 1.0)) > 0:
            made = mixed_option(question, mixture, rate * SAFE)
            actual = answer_of(made)
            held = baselines[actual]
            baselines[actual] = made if held is None or made.goodput > held.goodput else held
    rate = max((o.rate for o in baselines.values() if o is not None), default=question.workload.arrivals.rate or 1.0)
    return Outcome(rate, baselines, [o for o in baselines.values() if o is not None], Found())


def _shown(question: Ask, found: Found, rate: float) -> dict[int, Option]:
    """The cheapest fleets that a search kept, as options, by identity of the fleet."""
    fleets: list[Sized | Pooled] = [*found.apart.values(), *found.together.values()]
    fleets.sort(key=lambda fleet: (fleet.usd_per_hour, isinstance(fleet, Sized)))
    return {id(fleet): option(question, fleet, rate) for fleet in fleets[: 3 * (RUNNERS_UP + 1)]}


def assemble(searching: Search, outcome: Outcome) -> Plan:
    """Everything a person wants to know about an outcome."""
    question, rate, found = searching.ask, outcome.rate, outcome.found
    best = outcome.best(question)
    baselines = dict(outcome.baselines)
    others = {o.label: o for o in reversed(outcome.options) if o.label != best.label}
    shown = list(others.values())[::-1][:RUNNERS_UP]
    moved: tuple[Flip, ...] = ()
    if question.goal is not Goal.INVENTORY:
        moved = sensitivity(
            Finalists.of(question, rate, dict(searching.spaces), searching.boundaries, searching.tables, found)
        )
    return Plan(
        question=_question(question, rate),
        verdict=verdict(question.goal, best, baselines, ruling(question), lambda o: _eligible(question, o)),
        best=best,
        colocated=baselines[Answer.DO_NOT_DISAGGREGATE],
        disaggregated=baselines[Answer.HOMOGENEOUS_DISAGGREGATED],
        heterogeneous=baselines[Answer.HETEROGENEOUS],
        alternatives=tuple(Alternative(o, *why_not(question.goal, best, o)) for o in shown),
        pareto=pareto(list({o.label: o for o in (best, *outcome.options)}.values()), best.rate),
        sensitivity=moved,
        space=space_of(
            question, dict(searching.spaces), searching.boundaries, searching.setting, searching.tables, found, rate
        ),
        checklist=checklist(question, best, baselines[Answer.DO_NOT_DISAGGREGATE]),
        assumptions=(_SIZED[question.size_for if _swings(question) else Sizing.AVERAGE], *ASSUMPTIONS),
        warnings=_warnings(question, best),
        versions=_versions(),
    )


def _baselines(question: Ask, found: Found, rate: float, known: dict[int, Option]) -> dict[Answer, Option | None]:
    """The best fleet of every kind."""
    kinds: dict[Answer, Sized | Pooled | None] = {
        Answer.HETEROGENEOUS: found.best_apart(heterogeneous=True),
        Answer.HOMOGENEOUS_DISAGGREGATED: found.best_apart(heterogeneous=False),
        Answer.DO_NOT_DISAGGREGATE: found.best_together,
    }
    return {
        kind: None if fleet is None else known.get(id(fleet)) or option(question, fleet, rate)
        for kind, fleet in kinds.items()
    }


def _eligible(question: Ask, candidate: Option) -> bool:
    """A pinned pair or placement is the answer asked for; others then are baselines."""
    if question.placement not in (None, candidate.placement):
        return False
    return not question.pinned_apart or answer_of(candidate) is not Answer.DO_NOT_DISAGGREGATE


def _question(question: Ask, rate: float) -> Question:
    book = question.book
    return Question(
        model=question.model.name,
        workload=_summary(question, rate),
        goal=question.goal,
        slo=str(question.slo),
        prices=book.name if book else "",
        prices_date=book.date if book else "",
        budget_usd_per_hour=question.budget,
        inventory=question.inventory,
        pins=question.pins.given(),
        size_for=str(question.size_for) if _swings(question) else None,
    )


def _summary(question: Ask, rate: float) -> WorkloadSummary:
    workload, lengths = question.workload, question.workload.lengths
    isl, osl = ([lengths.quantile(values, q) for q in (0.5, 0.9, 0.99)] for values in (lengths.isl, lengths.osl))
    return WorkloadSummary(
        name=workload.name,
        source=workload.source,
        requests=workload.requests,
        rate=rate,
        arrival_cv=workload.arrivals.cv,
        arrivals_measured=workload.arrivals.measured,
        isl_mean=lengths.mean_isl,
        isl_p50=isl[0],
        isl_p90=isl[1],
        isl_p99=isl[2],
        osl_mean=lengths.mean_osl,
        osl_p50=osl[0],
        osl_p90=osl[1],
        osl_p99=osl[2],
        prefix_hit_rate=lengths.hit_rate,
        points=len(question.lengths),
        isl_histogram=_histogram(question),
    )


def _histogram(question: Ask, bins: int = 24) -> tuple[tuple[float, float, float], ...]:
    """Shares of requests by prompt length, bins even in the logarithm."""
    lengths = question.workload.lengths
    low, high = max(float(lengths.isl.min()), 1.0), float(lengths.isl.max())
    edges = np.geomspace(low, max(high, low * 1.001), bins + 1)
    shares, _ = np.histogram(np.clip(lengths.isl, edges[0], edges[-1]), bins=edges, weights=lengths.weight)
    return tuple((float(a), float(b), float(share)) for a, b, share in zip(edges[:-1], edges[1:], shares, strict=True))


def _warnings(question: Ask, best: Option) -> tuple[str, ...]:
    """What to know about the numbers of the best fleet and about the workload."""
    notes: dict[str, None] = {}
    speak = getattr(question.perf, "warnings", lambda worker: ())
    for pool in best.pools:
        for member in pool.members:
            worker = Worker(
                question.model,
                question.catalog.accelerator(member.accelerator),
                Precision(member.weights, member.activations, member.kv),
                Parallelism(member.tp, member.pp, member.ep, member.dp),
                member.engine,
            )
            notes.update(dict.fromkeys(f"{member.accelerator}: {note}" for note in speak(worker)))
    notes.update(dict.fromkeys(question.workload.notes))
    if question.lengths.hit_rate > 0 and question.prefill.residency in (None, TierKind.HBM):
        notes[_prefix_room(question, best.pools[0])] = None
    rush = _rush(question, best)
    if rush:
        notes[rush] = None
    return tuple(notes)


def _rush(question: Ask, best: Option) -> str:
    """What the busiest time asks, when it is more than the fleet carries for good inside the SLO."""
    arrivals = question.workload.arrivals
    peak = busiest(question)
    if arrivals.offline or not question.slo.objectives or question.size_for is Sizing.PEAK:
        return ""
    if question.size_for is Sizing.TRACE and arrivals.profile is not None:
        return ""
    if peak * best.rate <= best.goodput:
        return ""
    return (
        f"the busiest time asks {peak:.2f} times the average load; this fleet carries {best.goodput:.3g} requests/s inside the "
        f"SLO, so rushes will break it: plan for --rate {best.rate * peak:.3g} to hold it then too"
        + (", or --size-for trace to hold it over the whole trace" if arrivals.profile is not None else "")
    )


def _prefix_room(question: Ask, pool: PoolPlan) -> str:
    """What the prefixes that the workload finds again have to fit in."""
    free, member = max(pool.kv_capacity - pool.kv_peak, 0.0), pool.members[0]
    tokens = free / max(float(question.model.kv_bytes_per_token(member.kv)), 1.0)
    return (
        f"{question.lengths.hit_rate:.0%} of the prompt tokens are taken from a prefix cache in HBM, for which live KV leaves "
        f"{format_bytes(free)} ({tokens:,.0f} tokens) per {pool.role} worker: check that the prefixes in use fit"
    )


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("diptych", "numpy")}


def _swings(question: Ask) -> bool:
    """Whether the workload's load is known to swing."""
    arrivals = question.workload.arrivals
    return not arrivals.offline and (arrivals.profile is not None or arrivals.peak_to_mean > 1)


_SIZED = {
    Sizing.AVERAGE: "sized for arrivals that keep their average rate",
    Sizing.TRACE: "sized so that the SLO's percentiles hold over all requests of the trace as its load swings, minute by minute",
    Sizing.PEAK: "sized so that the SLO holds in the busiest step of the trace too",
}
ASSUMPTIONS = (
    "requests of a pool wait in one queue and go to the next free worker; waits are M/G/N (Allen-Cunneen)",
    "TTFT ends when decode may start: wait + prefill + conversion + link queue + exposed transfer",
    "ttft_decode adds the first decode step, for gateways that let the decode side send the first token",
    "percentiles are taken over the length distribution and the queues together, never added up",
    "a decode batch follows Little's law with Poisson swings; KV capacity is judged at the p99 of what is held",
    "prefix hits come at the rate of the workload and in HBM keep to what live KV leaves free: no memory is set aside for them",
    "an offer speaks RDMA when its whole instance has 100 Gbit/s or more",
    "pools meet only inside one provider and region, unless the interconnect is pinned",
    "quantised weights and KV are taken to keep the quality; check it on your own tasks",
    "instances are rented whole; power is the data sheet's",
)
