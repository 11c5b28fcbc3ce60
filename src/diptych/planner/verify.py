"""Finalists put to the test: simulated with the workload itself, and the plan corrected by what was seen.

Predictions take arrivals as steady; a trace has rushes. A finalist whose simulated percentile misses the SLO gets workers where
the time went, as few as will do, or is dropped. What a correction costs enters the comparison, so another fleet may win; it is
then a finalist too, until all that would be shown have been simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from diptych.metrics.record import Outcome
from diptych.metrics.slo import Objective
from diptych.metrics.summary import Kept, Summary
from diptych.planner.ask import Ask
from diptych.planner.assemble import option
from diptych.planner.demand import Demand
from diptych.planner.fleet import fleet_of_option
from diptych.planner.found import Found, Pooled
from diptych.planner.judge import Judged, judge
from diptych.planner.meeting import Sized
from diptych.planner.plan import Checked, Fate, Latency, Option, Percentiles, PromiseChecked, Verification
from diptych.units import format_seconds

AnyFleet = Sized | Pooled
Counts = tuple[int, ...]
MOST_FINALISTS = 10
MOST_REQUESTS = 20_000
"""Of the workload, from its start, in each simulation."""
DEAREST = 4.0
"""A fleet that still misses the SLO at so many times its planned bill is dropped."""
Progress = Callable[[int, int, str], None]


@dataclass(eq=False)
class Checking:
    """A demand to test fleets with; remembers what it simulated. `runs` counts simulations."""

    ask: Ask
    demand: Demand
    seed: int = 0
    progress: Progress | None = None
    runs: int = 0
    checked: list[Checked] = field(default_factory=list)

    def judge(self, candidate: Option, share: float = 1.0) -> Judged:
        """Simulate an option at a share of the rate it is planned for."""
        self.runs += 1
        if self.progress is not None:
            self.progress(len(self.checked), MOST_FINALISTS, f"simulating {candidate.label}")
        fleet = fleet_of_option(candidate, self.ask.catalog, self.ask.model, self.ask.book)
        faster = self.demand.requests.at_rate(candidate.rate * share).first(MOST_REQUESTS)
        return judge(fleet.design, replace(self.demand, requests=faster), self.ask.perf, self.ask.slo, seed=self.seed)

    def verification(self) -> Verification:
        """What came of all of it."""
        fates = [checked.fate for checked in self.checked]
        return Verification(
            workload=self.demand.name,
            requests=min(len(self.demand.requests), MOST_REQUESTS),
            workload_requests=len(self.demand.requests),
            seed=self.seed,
            simulations=self.runs,
            kept=fates.count(Fate.KEPT),
            corrected=fates.count(Fate.CORRECTED),
            dropped=fates.count(Fate.DROPPED),
            finalists=tuple(self.checked),
        )


def verified_fleets(checking: Checking, found: Found, rate: float, shown: int) -> Found:
    """What was found, with every fleet that a plan would show simulated: as it was, with more workers, or left out.

    A plan shows the cheapest of each kind and the `shown` cheapest. Fleets beyond `MOST_FINALISTS` are left out unsimulated.
    """
    apart, together = dict(found.apart), dict(found.together)
    done: set[int] = set()
    while True:
        finalists = _finalists(Found(apart, together, found.sized), shown)
        waiting = [fleet for fleet in finalists if id(fleet) not in done]
        if not waiting:
            return Found(apart, together, found.sized)
        fleet = waiting[0]
        kept = None if len(checking.checked) >= MOST_FINALISTS else _verified(checking, fleet, rate)
        group: dict[tuple[str, str], Sized] | dict[str, Pooled] = apart if isinstance(fleet, Sized) else together
        key = next(name for name, other in group.items() if other is fleet)
        if kept is None:
            del group[key]  # type: ignore[arg-type]
        else:
            group[key] = kept  # type: ignore[index,assignment]
            done.add(id(kept))


def _finalists(found: Found, shown: int) -> list[AnyFleet]:
    """The fleets that a plan would show, cheapest first."""
    every: list[AnyFleet] = sorted(
        [*found.apart.values(), *found.together.values()], key=lambda f: (f.usd_per_hour, isinstance(f, Sized))
    )
    best = [found.best_apart(heterogeneous=True), found.best_apart(heterogeneous=False), found.best_together]
    named = {id(fleet) for fleet in (*every[:shown], *best)}
    return [fleet for fleet in every if id(fleet) in named]


def _verified(checking: Checking, fleet: AnyFleet, rate: float) -> AnyFleet | None:
    """The fleet, or the smallest found that holds the SLO, or None; the verdict is noted."""
    began, planned = checking.runs, option(checking.ask, fleet, rate)
    judged = checking.judge(planned)
    if judged.holds:
        checking.checked.append(_checked(planned, planned, judged, Fate.KEPT, "", 1))
        return fleet
    growing = _Growing(checking, fleet, rate)
    grown = growing.enough(judged)
    runs = checking.runs - began
    missed = missed_sentence(judged)
    if grown is None:
        reason = f"{missed}; {growing.why}"
        checking.checked.append(_checked(planned, planned, judged, Fate.DROPPED, reason, runs))
        return None
    corrected, held = option(checking.ask, grown[0], rate), grown[1]
    reason = f"{missed}; {_more(fleet, grown[0])}"
    checking.checked.append(_checked(planned, corrected, held, Fate.CORRECTED, reason, runs))
    return grown[0]


class _Growing:
    """Looks for the fewest workers with which a fleet holds the SLO in simulation."""

    def __init__(self, checking: Checking, fleet: AnyFleet, rate: float) -> None:
        self.checking, self.fleet, self.rate = checking, fleet, rate
        self.why = f"not held at {DEAREST:g} times the bill"

    def enough(self, judged: Judged) -> tuple[AnyFleet, Judged] | None:
        """Grow where the time went, by steps that double, until the SLO holds; then take back what was too much."""
        counts = counts_of(self.fleet)
        low, step, last = list(counts), [0] * len(counts), -1
        while not judged.holds:
            if hopeless(judged):
                self.why = "more workers do not help"
                return None
            blamed = blame(judged) if len(counts) > 1 else 0
            low[blamed] = counts[blamed]
            step[blamed] = max(step[blamed] * 2 if blamed == last else 1, counts[blamed] // 8)
            last = blamed
            larger = self.larger(counts, blamed, step[blamed])
            if larger is None:
                return None
            counts, judged = counts_of(larger), self.judge(larger)
        return self.trimmed(counts, low, judged)

    def larger(self, counts: Counts, at: int, step: int) -> AnyFleet | None:
        """The fleet with up to `step` more of one count, as many as the bill allows; None when not one more."""
        for more in range(step, 0, -1):
            fleet = with_counts(self.fleet, tuple(n + (more if place == at else 0) for place, n in enumerate(counts)))
            if fleet.usd_per_hour <= DEAREST * self.fleet.usd_per_hour:
                return fleet
        return None

    def trimmed(self, counts: Counts, low: Sequence[int], judged: Judged) -> tuple[AnyFleet, Judged]:
        """The fewest of each role, the other fixed, above the last count that was seen to miss."""
        for at in range(len(counts)):
            below, enough = low[at] if counts[at] > low[at] else counts[at] - 1, counts[at]
            while enough - below > 1:
                middle = (below + enough) // 2
                tried = tuple(middle if place == at else n for place, n in enumerate(counts))
                result = self.judge(with_counts(self.fleet, tried))
                if result.holds:
                    enough, judged = middle, result
                else:
                    below = middle
            counts = tuple(enough if place == at else n for place, n in enumerate(counts))
        return with_counts(self.fleet, counts), judged

    def judge(self, fleet: AnyFleet) -> Judged:
        return self.checking.judge(option(self.checking.ask, fleet, self.rate))


def counts_of(fleet: AnyFleet) -> Counts:
    """What may be added to a fleet: workers of a pool, of each of two pools, or servers that hold both."""
    if isinstance(fleet, Pooled):
        return (fleet.workers,)
    return (fleet.nodes,) if fleet.nodes else (fleet.prefill_workers, fleet.decode_workers)


def with_counts(fleet: AnyFleet, counts: Counts) -> AnyFleet:
    """The same fleet in another size, with its bill."""
    if isinstance(fleet, Pooled):
        return replace(fleet, workers=counts[0], usd_per_hour=fleet.candidate.usd_per_hour(counts[0]))
    if fleet.nodes:
        nodes, each = counts[0], fleet.usd_per_hour / fleet.nodes
        return replace(
            fleet,
            prefill_workers=fleet.prefill_workers // fleet.nodes * nodes,
            decode_workers=fleet.decode_workers // fleet.nodes * nodes,
            usd_per_hour=each * nodes,
            nodes=nodes,
        )
    bill = fleet.meeting.usd_per_hour(*counts)
    return replace(fleet, prefill_workers=counts[0], decode_workers=counts[1], usd_per_hour=bill)


def blame(judged: Judged) -> int:
    """Which pool of two to enlarge: 0 prefill, 1 decode. TPOT is decode's; else the side on which late requests wait."""
    broken = [term for term, kept in zip(judged.slo.objectives, judged.summary.kept, strict=True) if not kept.holds]
    if all(term.metric == "tpot" for term in broken):
        return 1
    done = judged.run.requests.finished
    late = np.zeros(int(done.sum()), bool)
    for term in broken:
        if term.metric != "tpot":
            late |= getattr(judged.run.requests, term.metric)[done] > term.limit
    if not late.any():
        return 1
    mean = {name: float(seconds[late].mean()) for name, seconds in judged.stages.items()}
    before, after = mean["queue"] + mean["prefill"], mean["transfer"] + mean["wait"]
    if any(term.metric == "e2e" for term in broken):
        after += mean["decode"] - float(judged.stages["decode"].min())
    return 0 if before >= after else 1


def hopeless(judged: Judged) -> bool:
    """Whether requests are refused that no number of workers would serve: they fit on none."""
    return bool(np.any(judged.run.requests.outcome == int(Outcome.TOO_LONG)))


def verified_option(checking: Checking, planned: Option, slower: bool = True) -> Option | None:
    """An option whose size is given (a budget, an inventory): as it is, or with the goodput that it was seen to keep.

    None when it keeps the SLO at no rate down to a tenth of the planned one, or not at that rate unless `slower` will do.
    """
    began, judged = checking.runs, checking.judge(planned)
    if judged.holds:
        checking.checked.append(_checked(planned, planned, judged, Fate.KEPT, "", 1))
        return planned
    missed, found = missed_sentence(judged), _slower(checking, planned) if slower else None
    runs = checking.runs - began
    if found is None:
        reason = f"{missed}; nor at a tenth of the load" if slower else missed
        checking.checked.append(_checked(planned, planned, judged, Fate.DROPPED, reason, runs))
        return None
    share, held = found
    goodput = planned.goodput * share
    corrected = replace(planned, goodput=goodput, headroom=goodput / planned.rate - 1)
    reason = f"{missed}; held at {goodput:.3g} requests/s"
    checking.checked.append(_checked(planned, corrected, held, Fate.CORRECTED, reason, runs))
    return corrected


def _slower(checking: Checking, planned: Option) -> tuple[float, Judged] | None:
    """The largest share of the load (to 3 %) at which an option holds the SLO."""
    low, high, best = 0.1, 1.0, None
    share = low
    while high - low > 0.03 or best is None:
        judged = checking.judge(planned, share)
        if judged.holds:
            best, low = (share, judged), share
        elif best is None:
            return None
        else:
            high = share
        share = (low + high) / 2
    return best


# --- words ------------------------------------------------------------------------------------------------------------


def missed_sentence(judged: Judged) -> str:
    """`ttft_p90 was 3.2 s, not below 2 s`."""
    told = []
    for term, kept in zip(judged.slo.objectives, judged.summary.kept, strict=True):
        if not kept.holds:
            told.append(f"{term} was {_seconds(kept)}, {kept.share:.0%} of requests inside")
    refused = judged.summary.refused
    return "; ".join([*told, *([f"{refused} requests were not served"] if refused else [])])


def _seconds(kept: Kept) -> str:
    return "never seen" if math.isnan(kept.seen) else format_seconds(kept.seen)


def _more(before: AnyFleet, after: AnyFleet) -> str:
    added = [new - old for old, new in zip(counts_of(before), counts_of(after), strict=True)]
    names = (
        ("workers",)
        if isinstance(before, Pooled)
        else ("servers",)
        if len(added) == 1
        else ("prefill workers", "decode workers")
    )
    told = [
        f"{count} more {name if count > 1 else name[:-1]}" for count, name in zip(added, names, strict=True) if count
    ]
    return f"held by {' and '.join(told)}, {after.usd_per_hour - before.usd_per_hour:+.2f} USD/h"


def _checked(planned: Option, now: Option, judged: Judged, fate: Fate, reason: str, runs: int) -> Checked:
    summary = judged.summary
    terms = zip(judged.slo.objectives, summary.kept, strict=True)
    return Checked(
        planned=planned.label,
        label=now.label,
        fate=fate,
        reason=reason,
        simulations=runs,
        planned_usd_per_hour=planned.usd_per_hour,
        usd_per_hour=now.usd_per_hour,
        goodput=summary.goodput,
        attainment=summary.attainment,
        promises=tuple(_promise(term, kept, now) for term, kept in terms),
        predicted={name: Percentiles(said.p50, said.p90, said.p99) for name, said in _predicted(now).items()},
        simulated={name: _percentiles(summary, name) for name in ("ttft", "tpot", "e2e")},
        told=judged.told,
    )


def _predicted(now: Option) -> dict[str, Latency]:
    return {"ttft": now.ttft, "tpot": now.tpot, "e2e": now.e2e}


def _percentiles(summary: Summary, name: str) -> Percentiles:
    spread = getattr(summary, name)
    return Percentiles(*(None if math.isnan(value) else value for value in (spread.p50, spread.p90, spread.p99)))


def _promise(term: Objective, kept: Kept, now: Option) -> PromiseChecked:
    said = _predicted(now)[term.metric]
    known: Mapping[float | None, float] = {None: said.mean, 0.5: said.p50, 0.9: said.p90, 0.99: said.p99}
    seen = None if math.isnan(kept.seen) else kept.seen
    return PromiseChecked(str(term), known.get(term.quantile), seen, kept.share, kept.holds)
