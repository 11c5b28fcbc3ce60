"""Laws of every run: nobody is lost, no block leaks, one owner at a time, time goes on, links give back, work is done."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from sim_watch import Watched
from sim_worlds import World, worlds

from diptych.metrics.record import Outcome
from diptych.simulator.policy import Policy

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(worlds())
def test_every_law_holds_at_every_event(world: World) -> None:
    run = Watched(world).run()
    run.close()
    found = run.measurements("watched")
    assert run.events > 0
    requests = found.requests
    assert found.arrived == len(world.requests) == len(requests), "injected = finished + refused"
    assert list(requests.id) == list(range(len(world.requests)))
    assert all(worker.kv_held == 0 for worker in found.workers)
    for worker in found.workers:
        assert worker.busy <= worker.seconds + 1e-9, worker


@SETTINGS
@given(worlds())
def test_a_request_lives_in_order(world: World) -> None:
    for record in Watched(world).run().measurements("watched"):
        if record.outcome is not Outcome.FINISHED:
            continue
        marks = [record.arrival, record.prefill_start, record.first_token, record.decode_start, record.finish]
        marks = [mark for mark in marks if not np.isnan(mark)]
        assert marks == sorted(marks), f"{record}"
        if not record.retries and not np.isnan(record.moved):
            assert record.first_token <= record.moved <= record.decode_start
        assert np.isclose(record.e2e, record.ttft + (0 if record.osl == 1 else (record.osl - 1) * record.tpot))
        assert record.ttft >= record.ttft_prefill - 1e-12, "delivery before the token exists"


@SETTINGS
@given(worlds(faults=False))
def test_only_admission_and_size_refuse_when_nothing_fails(world: World) -> None:
    run = Watched(world).run().measurements("watched")
    blocks = world.policy.kv_blocks or 0
    for record in run:
        if record.outcome is Outcome.TOO_LONG:
            assert record.isl + record.osl > blocks * Policy().block - 1
        elif record.outcome is Outcome.REJECTED:
            assert world.policy.admission is not None
        else:
            assert record.outcome is Outcome.FINISHED
        assert record.retries == 0
