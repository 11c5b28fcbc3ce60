"""Rules of scaling: what they order, that they wait for what they ordered, and that they do not swing under drift."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "laws"))

from sim_worlds import PERF, apart, boundary, colocated, poisson, worker

from diptych.errors import InvalidInput
from diptych.metrics.measurements import Measurements
from diptych.serving.scaling import Look, Scaling, Signal
from diptych.simulator.demand import Requests
from diptych.simulator.faults import parse_changes
from diptych.simulator.policy import Policy
from diptych.simulator.simulate import simulate

RULE = Scaling(Signal.BUSY, 0.3, 0.8, least=1, most=4, every=5.0, cooldown=30.0)


@pytest.mark.parametrize(
    ("look", "since", "change"),
    [
        (Look(0.9, 2, 0), 31.0, 1),
        (Look(0.9, 2, 0), 29.0, 0),  # it changed something just now
        (Look(0.9, 3, 1), 31.0, 0),  # the fourth is on its way
        (Look(0.5, 2, 0), 31.0, 0),
        (Look(0.1, 2, 0), 31.0, -1),
        (Look(0.1, 1, 0), 31.0, 0),
        (Look(0.0, 0, 0), 31.0, 1),  # the last one was lost
        (Look(0.1, 2, 1), 31.0, 0),  # never gives back while it waits for one
    ],
)
def test_a_rule_keeps_its_band_its_bounds_and_its_cooldown(look: Look, since: float, change: int) -> None:
    assert RULE.change(look, since) == change


def test_a_pool_lends_only_when_the_other_is_short() -> None:
    assert RULE.lends(Look(0.1, 2, 0), Look(0.9, 2, 0), 31.0)
    assert not RULE.lends(Look(0.1, 1, 0), Look(0.9, 2, 0), 31.0), "the last one stays"
    assert not RULE.lends(Look(0.1, 2, 0), Look(0.5, 2, 0), 31.0)
    assert not RULE.lends(Look(0.1, 2, 0), Look(0.9, 2, 1), 31.0), "one is on its way"


def test_a_pool_grows_into_its_load_and_shrinks_after_it() -> None:
    busy, calm = poisson(2400, 40.0, 1, isl=800), poisson(60, 0.5, 2)
    arrival = np.concatenate([busy.arrival, busy.arrival[-1] + calm.arrival])
    requests = Requests(arrival, np.concatenate([busy.isl, calm.isl]), np.concatenate([busy.osl, calm.osl]))
    rule = parse_changes(["colocated scales 1..4 by busy 40%..90% every 2s cooldown 5s"])
    run = simulate(colocated(1), requests, PERF, faults=rule, policy=Policy(start_up=3.0))
    fixed = simulate(colocated(1), requests, PERF)
    running = [(w.index, w.seconds) for w in run.workers]
    assert 2 <= len(running) <= 8
    assert sum(seconds for _, seconds in running) < 4 * run.duration, "paid for only while they are there"
    assert min(seconds for _, seconds in running) < 0.8 * run.duration, "somebody was drained"
    rush = run.requests.arrival < busy.arrival[-1]
    assert np.mean(run.requests.ttft[rush]) < np.mean(fixed.requests.ttft[rush])


def test_a_rule_replaces_what_was_lost_and_stops_when_nothing_is_left_to_do() -> None:
    faults = parse_changes(["colocated pool dies @2s", "colocated scales 1..1 by busy 5%..99% every 1s cooldown 2s"])
    run = simulate(colocated(1), poisson(200, 40.0, 1), PERF, faults=faults, policy=Policy(start_up=3.0))
    assert int(np.sum(run.requests.finished)) == 200
    assert moves(run) == 1
    late = parse_changes(["colocated pool dies @6s", "colocated scales 1..2 by busy 5%..99% every 1s cooldown 1h"])
    assert simulate(colocated(1), poisson(20, 20.0, 1), PERF, faults=late).duration < 10, "it comes to an end"


def drift(band: str, cooldown: str) -> Measurements:
    """Prompts get longer and answers shorter, then back again, over five minutes: the ratio of a fleet's sides drifts."""
    draw = np.random.default_rng(4)
    arrival = np.cumsum(draw.exponential(1 / 32.0, 9600))
    phase = 0.5 - 0.5 * np.cos(2 * np.pi * arrival / arrival[-1])
    isl = np.clip(draw.exponential(300 + 2700 * phase), 1, 9000).astype(np.int64)
    osl = np.maximum(draw.exponential(260 - 220 * phase), 1).astype(np.int64)
    rule = parse_changes([f"pools balance by queue {band} every 2s cooldown {cooldown}"])
    design = apart(3, 3, boundary(), worker(), worker(max_batch=16))
    return simulate(design, Requests(arrival, isl, osl), PERF, faults=rule, policy=Policy(start_up=10.0))


def moves(run: Measurements) -> int:
    return sum(count for what, count in run.counts.items() if "started" in what)


def test_roles_follow_a_drifting_ratio_without_swinging() -> None:
    """One swing of the ratio takes few moves each way; thresholds side by side and no cooldown take many more."""
    calm, hasty, still = drift("0.2..3", "30s"), drift("0.04..0.05", "0s"), drift("0.2..3", "1h")
    assert int(np.sum(calm.requests.finished)) == len(calm.requests) == 9600
    assert 2 <= moves(calm) <= 6
    assert moves(hasty) > 2 * moves(calm)
    assert moves(still) <= 1
    assert float(np.mean(calm.requests.ttft)) < 0.5 * float(np.mean(still.requests.ttft)), "following pays"


@pytest.mark.parametrize(
    "text",
    ["decode scales 0..4 by busy 30%..80%", "decode scales 4..2 by busy 30%..80%", "decode scales 1..4 by busy 80%..30%",
     "decode scales 1..4 by busy 0.3..0.8", "decode scales 1..4 by queue 30%..80%", "decode scales 1..4 by luck 1..2",
     "pools balance by queue 1..10 every 0s"],
)  # fmt: skip
def test_rules_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_changes([text])


def test_a_balance_needs_two_pools() -> None:
    with pytest.raises(InvalidInput, match="no prefill pool"):
        simulate(colocated(), poisson(5, 5.0, 1), PERF, faults=parse_changes(["pools balance by queue 1..10"]))
