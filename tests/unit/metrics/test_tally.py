"""A long run summed up on the way says what a held one says: exact but for quantiles, and these within their bins."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from diptych.metrics.bins import Binned
from diptych.metrics.measurements import Measurements, RequestColumns, Series
from diptych.metrics.record import Outcome
from diptych.metrics.saturation import crowd_falls_behind, falls_behind
from diptych.metrics.slo import SLO
from diptych.metrics.stages import STAGES, stages
from diptych.metrics.summary import Spread, summarise
from diptych.metrics.tally import Tally

SLO_ = SLO.parse("ttft_p90<400ms, tpot_mean<15ms, e2e_p50<3s")
OFF = 0.0056  # half a bin


def drawn(count: int, seed: int = 0, growth: float = 0.0, rate: float = 20.0) -> RequestColumns:
    """Requests with every outcome; `growth` s of latency more per s that went by."""
    draw = np.random.default_rng(seed)
    arrival = np.cumsum(draw.exponential(1 / rate, count))
    late = arrival * growth
    start = arrival + draw.exponential(0.05, count) * draw.integers(0, 2, count) + late
    first = start + draw.exponential(0.1, count)
    moved = np.where(draw.random(count) < 0.8, first + draw.exponential(0.02, count), np.nan)
    joined = np.where(draw.random(count) < 0.9, np.fmax(moved, first) + draw.exponential(0.01, count), np.nan)
    osl = draw.integers(1, 400, count)
    finish = np.fmax(np.fmax(joined, moved), first) + (osl - 1) * draw.uniform(0.008, 0.02, count)
    outcome = draw.choice(
        [int(each) for each in Outcome], count, p=[0.9] + [0.1 / (len(Outcome) - 1)] * (len(Outcome) - 1)
    )
    whole = np.arange(count)
    retries = draw.integers(0, 3, count)
    return RequestColumns(
        whole, arrival, start, first, moved, joined, finish, draw.integers(1, 5000, count), osl, retries, outcome,
        whole % 2, whole % 3,
    )  # fmt: skip


def part(requests: RequestColumns, rows: np.ndarray) -> RequestColumns:
    return RequestColumns(*(getattr(requests, each.name)[rows] for each in fields(RequestColumns)))


def run(requests: RequestColumns) -> Measurements:
    series = Series(np.zeros(1), {})
    end = float(requests.finish.max())
    return Measurements("t", requests, series, (), (), end, len(requests), 3.0, 4.0, 0)


def tallied(requests: RequestColumns, blocks: int, seed: int = 1) -> Tally:
    """The same requests in another order, in so many blocks."""
    tally = Tally(SLO_)
    for rows in np.array_split(np.random.default_rng(seed).permutation(len(requests)), blocks):
        tally.add(part(requests, rows))
    return tally


def near(found: Spread, values: np.ndarray) -> None:
    values = values[~np.isnan(values)]
    assert found.max == values.max()
    assert found.mean == pytest.approx(values.mean(), rel=1e-12)
    wanted = np.quantile(values, [0.5, 0.9, 0.95, 0.99], method="inverted_cdf")
    assert [found.p50, found.p90, found.p95, found.p99] == pytest.approx(wanted, rel=OFF)


@pytest.mark.parametrize("blocks", [1, 7, 500])
def test_a_tally_says_what_the_held_requests_say(blocks: int) -> None:
    requests = drawn(20_000)
    wanted, found = summarise(run(requests), SLO_), tallied(requests, blocks).summary(run(requests))
    for name in ("ttft", "ttft_prefill", "tpot", "e2e"):
        near(getattr(found, name), getattr(requests, name)[requests.finished])
    for seen, held in zip(found.kept, wanted.kept, strict=True):
        assert (seen.objective, seen.share, seen.holds) == (held.objective, held.share, held.holds)
        assert seen.seen == pytest.approx(held.seen, rel=OFF)
    same = {"ttft", "ttft_prefill", "tpot", "e2e", "kept", "itl"}
    for each in fields(wanted):
        if each.name not in same:
            assert getattr(found, each.name) == getattr(wanted, each.name), each.name


def test_stages_tokens_and_outcomes_are_counted() -> None:
    requests = drawn(5_000)
    tally, done = tallied(requests, 11), requests.finished
    for name, seconds in stages(requests).items():
        near(tally.spreads()[name], seconds)
    assert tuple(tally.spreads()) == STAGES
    assert tally.tokens == int((requests.isl + requests.osl)[done].sum())
    assert tally.handed == int((~np.isnan(requests.moved)).sum())
    assert sum(tally.outcomes.values()) == tally.count == 5_000
    assert tally.outcomes[int(Outcome.FINISHED)] == int(done.sum())
    assert tally.longest == int((requests.isl + requests.osl).max())


def test_nothing_at_all_is_no_latency() -> None:
    tally = Tally(SLO_)
    empty = part(drawn(3), np.arange(0))
    tally.add(empty)
    summary = tally.summary(replace(run(drawn(3)), requests=empty, arrived=0))
    assert summary.finished == 0
    assert np.isnan(summary.ttft.p50)
    assert [kept.holds for kept in summary.kept] == [True, True, True]


@pytest.mark.parametrize("growth", [0.0, 0.4])
@pytest.mark.parametrize("count", [2_000, 60_000])
def test_a_fleet_that_falls_behind_is_told_of_a_long_run_too(growth: float, count: int) -> None:
    requests = drawn(count, growth=growth)
    told, held = crowd_falls_behind(tallied(requests, 9).crowd), falls_behind(run(requests))
    assert bool(told) == bool(held) == bool(growth)


def test_the_crowd_is_the_time_that_requests_spend_in_the_system() -> None:
    """Little: the number in the system is what arrivals and latencies make of it, however often slices were joined."""
    requests = drawn(200_000, rate=5.0)  # 40,000 s: slices of 16 s
    crowd = tallied(requests, 13).crowd
    assert crowd.width == 16.0
    number, came, _, _ = crowd.quarter(2)
    edges = np.linspace(requests.arrival.min(), requests.arrival.max(), 5)
    here = (requests.arrival >= edges[2]) & (requests.arrival < edges[3])
    assert came == pytest.approx(here.sum(), rel=0.01)
    assert number == pytest.approx(requests.e2e[here].sum() / (edges[3] - edges[2]), rel=0.02)


def test_bins_hold_what_takes_no_time_and_what_takes_too_long() -> None:
    binned = Binned()
    binned.add(np.array([0.0, 0.0, 0.0, np.nan, 5e-8, 2e6]))
    assert binned.count == 5
    assert binned.quantiles([0.5]) == [0.0]
    assert binned.spread().max == 2e6
    assert binned.quantiles([0.99])[0] > 1e6


def test_a_quantile_is_within_its_bin_wherever_it_lies() -> None:
    values = np.exp(np.random.default_rng(5).uniform(np.log(2e-6), np.log(9e5), 30_000))
    binned = Binned()
    binned.add(values)
    shares = [0.001, 0.01, 0.25, 0.5, 0.9, 0.999]
    wanted = np.quantile(values, shares, method="inverted_cdf")
    assert np.abs(np.array(binned.quantiles(shares)) / wanted - 1).max() <= 2 ** (0.5 / 64) - 1 + 1e-9
