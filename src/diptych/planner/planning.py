"""`plan`: from a question to an answer. Everything else in this package is a step of this file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata

import numpy as np

from diptych.catalog.catalog import Catalog
from diptych.catalog.model import Model
from diptych.catalog.offer import PriceBook
from diptych.design.axes import Role
from diptych.design.constraints import Setting
from diptych.metrics.slo import SLO
from diptych.perf.model import PerfModel
from diptych.perf.roofline import default_perf
from diptych.planner.ask import Ask, Pins, ask
from diptych.planner.assemble import option
from diptych.planner.boundaries import Boundaries
from diptych.planner.checklist import checklist
from diptych.planner.enumerate import RoleSpace, role_spaces, setting_of
from diptych.planner.meeting import Sized
from diptych.planner.pareto import pareto
from diptych.planner.plan import Alternative, Answer, Option, Plan, Question, WorkloadSummary
from diptych.planner.refuse import refuse
from diptych.planner.search import Found, Pooled, Tables, search
from diptych.planner.sensitivity import Finalists, sensitivity
from diptych.planner.space import space_of
from diptych.planner.verdict import answer_of, verdict, why_not
from diptych.workload.workload import Workload

Progress = Callable[[int, int, str], None]
RUNNERS_UP = 3


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
        return cls(
            question, setting, role_spaces(question, setting), Boundaries(question, setting), Tables.of(question)
        )

    def at(
        self, rate: float, ceiling: float = math.inf, progress: Progress | None = None, runners_up: int = RUNNERS_UP
    ) -> Found:
        """The cheapest fleets at `rate`."""
        return search(
            self.ask, self.tables, self.boundaries, dict(self.spaces), rate,
            ceiling=ceiling, runners_up=runners_up, progress=progress,
        )  # fmt: skip


def plan(
    model: Model | str,
    workload: Workload,
    slo: SLO | str,
    *,
    catalog: Catalog | None = None,
    prices: PriceBook | str | None = None,
    rate: float | None = None,
    budget: float | None = None,
    inventory: Mapping[str, int] | None = None,
    pins: Pins | None = None,
    quality: str = "8bit",
    perf: PerfModel | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The cheapest fleet that holds `slo` for `workload`, heterogeneous or not, with the reasons.

    Exactly one of `rate` (requests/s; the workload's own by default), `budget` (USD/h) and `inventory` (accelerators owned by
    name) sets the goal. `pins` fix any axis, `quality` is the narrowest weights allowed (native, 8bit, any). `progress` is
    called with (done, total, note).

    Raises:
        InvalidInput: every mistake in the inputs at once.
        NoFeasibleDesign: no fleet keeps the SLO; counts by rule, and the nearest miss.
    """
    question = ask(
        model, workload, slo, catalog=catalog or Catalog.load(), perf=perf or default_perf(), prices=prices, rate=rate,
        budget=budget, inventory=inventory, pins=pins, quality=quality,
    )  # fmt: skip
    return answer(Search.of(question), progress)


def answer(searching: Search, progress: Progress | None = None) -> Plan:
    """The plan for a prepared search."""
    question = searching.ask
    assert question.rate is not None
    found = searching.at(question.rate, progress=progress)
    if not found.apart and not found.together:
        raise refuse(question, searching.spaces, searching.tables, question.rate)
    return assemble(searching, found, question.rate)


def assemble(searching: Search, found: Found, rate: float) -> Plan:
    """Everything a person wants to know about what was found at `rate`."""
    question = searching.ask
    fleets: list[Sized | Pooled] = [*found.apart.values(), *found.together.values()]
    fleets.sort(key=lambda fleet: (fleet.usd_per_hour, isinstance(fleet, Sized)))
    options = [option(question, fleet, rate) for fleet in fleets[: 4 * (RUNNERS_UP + 1)]]
    baselines = _baselines(question, found, rate)
    best = min(
        (o for o in baselines.values() if o is not None and _eligible(question, o)),
        key=lambda o: (o.usd_per_hour, len(o.pools), o.heterogeneous),
    )
    shown = [o for o in options if o.label != best.label][:RUNNERS_UP]
    finalists = Finalists.of(question, rate, dict(searching.spaces), searching.boundaries, searching.tables, found)
    return Plan(
        question=_question(question, rate),
        verdict=verdict(question.goal, best, baselines),
        best=best,
        colocated=baselines[Answer.DO_NOT_DISAGGREGATE],
        disaggregated=baselines[Answer.HOMOGENEOUS_DISAGGREGATED],
        heterogeneous=baselines[Answer.HETEROGENEOUS],
        alternatives=tuple(Alternative(o, *why_not(best, o)) for o in shown),
        pareto=pareto(options, rate),
        sensitivity=sensitivity(finalists),
        space=space_of(
            question, dict(searching.spaces), searching.boundaries, searching.setting, searching.tables, found, rate
        ),
        checklist=checklist(question, best, baselines[Answer.DO_NOT_DISAGGREGATE]),
        assumptions=ASSUMPTIONS,
        warnings=_warnings(question, found),
        versions=_versions(),
    )


def _baselines(question: Ask, found: Found, rate: float) -> dict[Answer, Option | None]:
    """The best fleet of every kind."""
    kinds: dict[Answer, Sized | Pooled | None] = {
        Answer.HETEROGENEOUS: found.best_apart(heterogeneous=True),
        Answer.HOMOGENEOUS_DISAGGREGATED: found.best_apart(heterogeneous=False),
        Answer.DO_NOT_DISAGGREGATE: found.best_together,
    }
    return {kind: option(question, fleet, rate) if fleet is not None else None for kind, fleet in kinds.items()}


def _eligible(question: Ask, candidate: Option) -> bool:
    """A pinned pair is the answer asked for; colocation then is a baseline."""
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


def _warnings(question: Ask, found: Found) -> tuple[str, ...]:
    """What to know about the numbers of the cheapest fleets."""
    notes: dict[str, None] = {}
    ask_perf = getattr(question.perf, "warnings", None)
    best = found.best_apart()
    for worker in [w for s in [best] if s for w in (s.meeting.prefill.worker, s.meeting.decode.worker)]:
        if ask_perf is not None:
            notes.update(dict.fromkeys(f"{worker.accelerator.name}: {note}" for note in ask_perf(worker)))
    notes.update(dict.fromkeys(question.workload.notes))
    return tuple(notes)


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("diptych", "numpy")}


ASSUMPTIONS = (
    "requests of a pool wait in one queue and go to the next free worker; waits are M/G/N (Allen-Cunneen)",
    "TTFT ends when decode may start: wait + prefill + conversion + link queue + exposed transfer",
    "ttft_decode adds the first decode step, for gateways that let the decode side send the first token",
    "percentiles are taken over the length distribution and the queues together, never added up",
    "a decode batch follows Little's law with Poisson swings; KV capacity is judged at the p99 of what is held",
    "prefix hits need no extra memory beyond what is live, and hit at the rate of the workload",
    "an offer speaks RDMA when its whole instance has 100 Gbit/s or more",
    "pools meet only inside one provider and region, unless the interconnect is pinned",
    "quantised weights and KV are taken to keep the quality; check it on your own tasks",
    "instances are rented whole; power is the data sheet's",
)
