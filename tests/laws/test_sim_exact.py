"""Skipped steps and single steps give the same bytes, over random designs, traces, policies and faults; so does a second run."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from sim_worlds import PERF, World, worlds

from diptych.metrics.measurements import Measurements
from diptych.simulator.simulate import simulate


def run(world: World, skip: bool = True) -> Measurements:
    return simulate(
        world.design, world.requests, PERF, policy=world.policy, faults=world.faults, skip=skip, gaps=True, seed=1
    )


def text(found: Measurements) -> str:
    """Everything observed, as bytes would be written."""
    return "\n".join([json.dumps(found.to_json()), *found.jsonl()])


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds())
def test_skipping_equals_stepping(world: World) -> None:
    assert text(run(world, skip=True)) == text(run(world, skip=False))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds())
def test_the_same_arguments_give_the_same_bytes(world: World) -> None:
    assert text(run(world)) == text(run(world))
