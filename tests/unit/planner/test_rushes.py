"""Plans for a load that swings: its steps, percentiles over the whole trace, and what it costs that more must hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diptych.catalog.catalog import Catalog
from diptych.errors import InvalidInput
from diptych.metrics.slo import SLO
from diptych.perf.queueing import Wait
from diptych.perf.roofline import Roofline
from diptych.planner.delay import Delay, no_wait
from diptych.planner.demand import Asked, demand
from diptych.planner.fleet import fleet_of_option
from diptych.planner.judge import judge
from diptych.planner.plan import Plan
from diptych.planner.planning import plan
from diptych.planner.rushes import ANSWERS, PROMPTS, Sizing, Steps
from diptych.workload.lengths import Lengths
from diptych.workload.load import load_workload
from diptych.workload.profile import MIXES, RateProfile, profile_of
from diptych.workload.workload import Arrivals, Workload

CATALOG, PERF = Catalog.load(), Roofline()
SLO_TEXT = "ttft_p90<1s, tpot_p90<40ms"


def profile() -> RateProfile:
    """Ten minutes, of which three rush: prompts three times longer there, answers half as long."""
    requests = np.array([100, 100, 100, 200, 200, 200, 100, 100, 100, 100])
    rush = requests > 100
    made = profile_of(requests, 60.0, requests * np.where(rush, 3, 1), requests * np.where(rush, 0.5, 1))
    assert made is not None
    return made


def test_a_profile_keeps_the_work_of_each_side() -> None:
    steps = profile()
    assert sum(steps.share) == pytest.approx(1)
    assert steps.rush == 180.0
    answers, prompts = steps.work[0], steps.work[-1]
    assert prompts[-1] == pytest.approx(600 / 250)
    assert answers[-1] == pytest.approx(1.0)
    for row in steps.work:
        assert list(row) == sorted(row)


def test_windows_hold_enough_requests_to_tell_a_rush_from_chance() -> None:
    assert profile_of([5], 60.0) is None
    assert profile_of([0, 0], 60.0) is None
    sparse = load_workload("azure2023_conv.csv.gz", 5.0).arrivals.profile
    assert sparse is not None
    assert sparse.window == pytest.approx(60 * 5.5304 / 5.0, rel=1e-3)


def test_steady_arrivals_have_one_step_whatever_is_asked() -> None:
    for sizing in Sizing:
        steps = Steps.of(Arrivals(3.0, 1.0), sizing)
        assert steps.share.tolist() == [1.0]
        assert steps.at(PROMPTS, 2.0).tolist() == [2.0]


def test_what_each_sizing_looks_at() -> None:
    arrivals = Arrivals(3.0, 2.0, measured=True, profile=profile())
    average, trace, peak = (Steps.of(arrivals, sizing) for sizing in Sizing)
    assert (average.cv2, trace.cv2, peak.cv2) == (4.0, 1.0, 1.0)
    assert peak.factor(PROMPTS) == pytest.approx([2.4])
    assert trace.factor(PROMPTS)[0] == trace.factor(ANSWERS)[0] == 1.0
    assert trace.share[0] == 0.0
    assert Steps.of(arrivals, Sizing.TRACE, 6.0).lasting == trace.lasting / 2
    assert Steps.of(replace(arrivals, offline=True), Sizing.PEAK).factor(PROMPTS) == pytest.approx([1.0])


def test_percentiles_are_of_all_steps() -> None:
    """Against draws: a fifth of the requests waits ten times as long."""
    steps = Steps(np.ones((len(MIXES), 3)), np.array([0.0, 0.8, 0.2]), 60.0, 1.0)
    waits = Wait(np.array([1.0, 1.0, 1.0]), np.array([99.0, 0.2, 2.0]))
    delay = Delay(np.full((3, 1), 0.1), np.ones(1), waits, no_wait(), steps)
    rng = np.random.default_rng(3)
    drawn = 0.1 + rng.exponential(np.where(rng.random(400_000) < 0.8, 0.2, 2.0))
    assert float(delay.mean) == pytest.approx(drawn.mean(), rel=0.01)
    for q in (0.5, 0.9, 0.99):
        assert float(delay.quantile(q)) == pytest.approx(np.quantile(drawn, q), rel=0.02)
    fits = np.array([True, True, False])
    assert float(delay.attainment(1e9, fits)) == pytest.approx(0.8)
    assert float(delay.keeps(None, 1e9, fits)) < 0


def test_what_a_rush_leaves_falls_with_capacity() -> None:
    steps = Steps.of(Arrivals(3.0, 1.0, measured=True, profile=profile()), Sizing.TRACE)
    held = steps.held_up(PROMPTS, np.linspace(1.01, 3.0, 50))
    assert np.all(np.diff(held) <= 0)
    assert held[-1] == 0
    assert held[0] == 1


def conversation(sizing: str) -> Plan:
    return plan(
        "Llama-3.1-8B", load_workload("azure2023_conv.csv.gz", 20.0), SLO_TEXT, catalog=CATALOG, perf=PERF,
        prices="hyperstack", rate=20.0, size_for=sizing,
    )  # fmt: skip


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {str(sizing): conversation(sizing) for sizing in Sizing}


def test_more_must_hold_for_more(plans: dict[str, Plan]) -> None:
    average, trace, peak = (plans[name].best.usd_per_hour for name in ("average", "trace", "peak"))
    assert average < trace <= peak
    assert [found.question.size_for for found in plans.values()] == ["average", "trace", "peak"]
    assert any("rushes will break it" in note for note in plans["average"].warnings)
    assert not any("rushes will break it" in note for note in plans["trace"].warnings)


def test_a_plan_sized_for_the_trace_holds_it_in_simulation(plans: dict[str, Plan]) -> None:
    """The average does not: that is what sizing for the trace is for."""
    asked = demand("azure2023_conv.csv.gz", Asked(base=1.0))
    holds = {}
    for name in ("average", "trace"):
        option = plans[name].disaggregated
        assert option is not None
        fleet = fleet_of_option(option, CATALOG, CATALOG.model("Llama-3.1-8B"), CATALOG.book("hyperstack"))
        some = replace(asked, requests=asked.requests.at_rate(20.0))
        holds[name] = judge(fleet.design, some, PERF, SLO.parse(SLO_TEXT), seed=0).holds
    assert holds == {"average": False, "trace": True}


def test_batch_limits_leave_room_for_the_busiest_time(plans: dict[str, Plan]) -> None:
    for found in plans.values():
        for pool in found.best.pools:
            for member in pool.members:
                assert not member.max_batch or member.max_batch >= 1.2 * pool.batch


def test_unmeasured_arrivals_say_nothing_of_a_trace() -> None:
    workload = Workload("fixed", Lengths.fixed(1000, 100), Arrivals(2.0), 1)
    found = plan("Llama-3.1-8B", workload, SLO_TEXT, catalog=CATALOG, perf=PERF, prices="hyperstack")
    assert found.question.size_for is None


def test_an_unknown_load_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r"unknown size-for 'traces'.*did you mean trace"):
        conversation("traces")
