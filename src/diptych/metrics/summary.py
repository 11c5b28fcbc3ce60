"""A run in a few numbers: percentiles, goodput under an SLO, price per token, use of workers and links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diptych.metrics.gaps import TokenGaps
from diptych.metrics.measurements import Floats, Measurements, RequestColumns
from diptych.metrics.record import Outcome
from diptych.metrics.slo import SLO, Objective

QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Spread:
    """A latency over requests in seconds; NaN when there were none."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Floats) -> Spread:
        """Over the values that are not NaN."""
        values = values[~np.isnan(values)]
        if not len(values):
            nan = float("nan")
            return cls(nan, nan, nan, nan, nan, nan)
        p50, p90, p95, p99 = (float(q) for q in np.quantile(values, QUANTILES))
        return cls(float(values.mean()), p50, p90, p95, p99, float(values.max()))


@dataclass(frozen=True, slots=True)
class Kept:
    """One objective and what was seen: its statistic (s), the share of requests within its limit, whether it holds."""

    objective: str
    seen: float
    share: float
    holds: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """Rates are per second of the run. `goodput` counts requests that kept every limit of the SLO themselves; `attainment` is
    their share of those that their clients did not cancel.

    `ttft` is what the decode side delivers, `ttft_prefill` what prefill alone would show.
    """

    arrived: int
    finished: int
    refused: int
    cancelled: int
    retries: int
    duration: float
    request_rate: float
    output_rate: float
    goodput: float
    attainment: float
    ttft: Spread
    ttft_prefill: Spread
    tpot: Spread
    e2e: Spread
    itl: Spread
    kept: tuple[Kept, ...]
    usd: float
    usd_per_million_output: float
    energy: float
    joule_per_output: float
    limits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """What a summary is made of beside the run itself; `output` tokens of finished requests, `good` requests."""

    finished: int
    refused: int
    cancelled: int
    retries: int
    output: float
    good: float
    ttft: Spread
    ttft_prefill: Spread
    tpot: Spread
    e2e: Spread
    kept: tuple[Kept, ...]


def summarise(run: Measurements, slo: SLO | None = None) -> Summary:
    """A run's summary. Without an SLO every finished request is good."""
    slo, requests = slo or SLO(), run.requests
    done = requests.finished
    cancelled = int(np.sum(requests.outcome == int(Outcome.CANCELLED)))
    totals = Totals(
        finished=int(done.sum()),
        refused=int((~done).sum()) - cancelled,
        cancelled=cancelled,
        retries=int(requests.retries.sum()),
        output=float(requests.osl[done].sum()),
        good=float(good_requests(requests, slo).sum()),
        ttft=Spread.of(requests.ttft[done]),
        ttft_prefill=Spread.of(requests.ttft_prefill[done]),
        tpot=Spread.of(requests.tpot[done]),
        e2e=Spread.of(requests.e2e[done]),
        kept=tuple(_kept(requests, objective) for objective in slo.objectives),
    )
    return sum_up(run, totals)


def sum_up(run: Measurements, totals: Totals) -> Summary:
    """Totals over the run's time, money and energy."""
    duration, output = max(run.duration, 1e-12), totals.output
    return Summary(
        arrived=run.arrived,
        finished=totals.finished,
        refused=totals.refused,
        cancelled=totals.cancelled,
        retries=totals.retries,
        duration=run.duration,
        request_rate=float(totals.finished) / duration,
        output_rate=output / duration,
        goodput=totals.good / duration,
        attainment=totals.good / max(run.arrived - totals.cancelled, 1),
        ttft=totals.ttft,
        ttft_prefill=totals.ttft_prefill,
        tpot=totals.tpot,
        e2e=totals.e2e,
        itl=_itl(run.gaps),
        kept=totals.kept,
        usd=run.usd,
        usd_per_million_output=run.usd / output * 1e6 if output else float("nan"),
        energy=run.energy,
        joule_per_output=run.energy / output if output else float("nan"),
        limits=run.limits,
    )


def _itl(gaps: TokenGaps | None) -> Spread:
    """Over tokens, not requests."""
    if gaps is None or not gaps.count:
        return Spread.of(np.empty(0))
    p50, p90, p95, p99 = (gaps.quantile(q) for q in QUANTILES)
    return Spread(gaps.mean, p50, p90, p95, p99, gaps.longest)


def good_requests(requests: RequestColumns, slo: SLO) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each request finished within every limit; a TPOT that does not exist (one token) is kept."""
    good = requests.finished.copy()
    for objective in slo.objectives:
        good &= ~(getattr(requests, objective.metric) > objective.limit)
    return good


def _kept(requests: RequestColumns, objective: Objective) -> Kept:
    """Refused requests miss a latency they never had; those that their clients cancelled are not asked."""
    values = getattr(requests, objective.metric)
    here = requests.finished & ~np.isnan(values)
    refused = int((~requests.finished & (requests.outcome != int(Outcome.CANCELLED))).sum())
    share = float((values[here] <= objective.limit).sum()) / max(int(here.sum()) + refused, 1)
    if not here.any():
        return Kept(str(objective), float("nan"), share, not refused)
    if objective.quantile is None:
        seen = float(values[here].mean())
        return Kept(str(objective), seen, share, seen <= objective.limit and not refused)
    seen = float(np.quantile(values[here], objective.quantile, method="inverted_cdf"))
    return Kept(str(objective), seen, share, share >= objective.quantile)
