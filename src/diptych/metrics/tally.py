"""A long run summed up while it goes on, request by request and none of them kept: everything exact but quantiles (`bins`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from diptych.metrics.bins import Binned
from diptych.metrics.crowd import Crowd
from diptych.metrics.measurements import Measurements, RequestColumns
from diptych.metrics.record import Outcome
from diptych.metrics.slo import SLO, Objective
from diptych.metrics.stages import STAGES, Conversions, stages
from diptych.metrics.summary import Kept, Spread, Summary, Totals, good_requests, sum_up

LATENCIES = ("ttft", "ttft_prefill", "tpot", "e2e")
Convert = Callable[[RequestColumns], Conversions | None]


class Tally:
    """Takes requests that ended, in any order. `convert` gives the conversions within a block of them."""

    def __init__(self, slo: SLO | None = None, convert: Convert = lambda requests: None) -> None:
        self.slo, self.convert = slo or SLO(), convert
        self.count = self.retries = self.good = self.handed = self.output = self.tokens = 0
        self.outcomes: dict[int, int] = {}
        self.latencies = {name: Binned() for name in LATENCIES}
        self.parts = {name: Binned() for name in STAGES}
        self.within = [0] * len(self.slo.objectives)
        self.crowd = Crowd()
        self.prompts, self.longest, self.context = (
            Binned(),
            0,
            0.0,
        )  # tokens: prompts, the longest request, Σ(isl + osl/2)

    def add(self, requests: RequestColumns) -> None:
        """A block of requests."""
        done = requests.finished
        self.count += len(requests)
        self.retries += int(requests.retries.sum())
        self.handed += int(np.sum(~np.isnan(requests.moved)))
        self.output += int(requests.osl[done].sum())
        self.tokens += int((requests.isl + requests.osl)[done].sum())
        self.good += int(good_requests(requests, self.slo).sum())
        for code, count in zip(*np.unique(requests.outcome, return_counts=True), strict=True):
            self.outcomes[int(code)] = self.outcomes.get(int(code), 0) + int(count)
        for name, binned in self.latencies.items():
            binned.add(getattr(requests, name)[done])
        for name, seconds in stages(requests, self.convert(requests)).items():
            self.parts[name].add(seconds)
        for place, objective in enumerate(self.slo.objectives):
            self.within[place] += int(np.sum(getattr(requests, objective.metric)[done] <= objective.limit))
        self.crowd.add(requests)
        self.prompts.add(requests.isl.astype(float))
        self.longest = max(self.longest, int(np.max(requests.isl + requests.osl, initial=0)))
        self.context += float(np.sum(requests.isl + requests.osl / 2))

    def spreads(self) -> Mapping[str, Spread]:
        """Seconds of each stage over the finished requests."""
        return {name: binned.spread() for name, binned in self.parts.items()}

    def summary(self, run: Measurements) -> Summary:
        """Of the run whose requests were taken in."""
        spread = {name: binned.spread() for name, binned in self.latencies.items()}
        finished, cancelled = (self.outcomes.get(int(what), 0) for what in (Outcome.FINISHED, Outcome.CANCELLED))
        refused = self.count - finished - cancelled
        kept = tuple(self._kept(place, term, refused) for place, term in enumerate(self.slo.objectives))
        totals = Totals(
            finished, refused, cancelled, self.retries, float(self.output), float(self.good), spread["ttft"],
            spread["ttft_prefill"], spread["tpot"], spread["e2e"], kept,
        )  # fmt: skip
        return sum_up(run, totals)

    def _kept(self, place: int, objective: Objective, refused: int) -> Kept:
        """As `summary` has it: refused requests miss a latency they never had. Shares are exact, so whether it holds is."""
        seen = self.latencies[objective.metric]
        share = self.within[place] / max(seen.count + refused, 1)
        if not seen.count:
            return Kept(str(objective), float("nan"), share, not refused)
        if objective.quantile is None:
            mean = seen.total / seen.count
            return Kept(str(objective), mean, share, mean <= objective.limit and not refused)
        return Kept(str(objective), seen.quantiles([objective.quantile])[0], share, share >= objective.quantile)
