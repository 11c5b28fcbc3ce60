"""Workers of one machine that slow each other down, the way in, and blocks by role."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "laws"))

from sim_worlds import PERF, apart, boundary

from diptych.design.axes import Role
from diptych.simulator.demand import Requests
from diptych.simulator.policy import Policy
from diptych.simulator.simulate import simulate

DESIGN = apart(1, 1, boundary())
POLICY = Policy(kv_blocks=5000)
SLOW = {Role.PREFILL: 1.5, Role.DECODE: 2.0}


def requests(*times: float, isl: int = 512, osl: int = 64) -> Requests:
    count = len(times)
    return Requests(np.array(times), np.full(count, isl), np.full(count, osl))


def run(asked: Requests, policy: Policy = POLICY):
    return simulate(DESIGN, asked, PERF, policy=policy).requests


def test_a_worker_that_is_alone_is_as_fast_as_ever() -> None:
    asked = requests(0.0, 100.0)
    plain, slow = run(asked), run(asked, replace(POLICY, slowed=SLOW))
    assert np.array_equal(plain.finish, slow.finish)


def test_two_that_compute_at_once_are_slower_and_no_more_than_by_their_factors() -> None:
    asked = requests(*np.linspace(0.0, 0.5, 40))
    plain, slow = run(asked), run(asked, replace(POLICY, slowed=SLOW))
    assert slow.finish[-1] > plain.finish[-1]
    ratio = (slow.finish - slow.decode_start) / (plain.finish - plain.decode_start)
    assert np.median(ratio) > 1.0


def test_factors_of_one_change_nothing() -> None:
    asked = requests(*np.linspace(0.0, 0.5, 40))
    ones = dict.fromkeys(SLOW, 1.0)
    assert np.array_equal(run(asked).finish, run(asked, replace(POLICY, slowed=ones)).finish)


def test_the_way_in_is_before_everything() -> None:
    asked = requests(0.0, 100.0)
    late = run(asked, replace(POLICY, entry=0.25))
    assert late.ttft_prefill - run(asked).ttft_prefill == pytest.approx(0.25)


def test_each_role_has_its_blocks() -> None:
    policy = Policy(role_blocks={Role.PREFILL: 77, Role.DECODE: 99})
    found = simulate(DESIGN, requests(0.0), PERF, policy=policy)
    assert {worker.role: worker.kv_blocks for worker in found.workers} == {"prefill": 77, "decode": 99}
