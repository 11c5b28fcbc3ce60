"""Pipelines, clients that give up, damaged transfers and leases that run out: whole runs that show one thing each."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "laws"))

from affine_perf import ACCELERATOR, MODEL, AffinePerf
from sim_watch import Watched
from sim_worlds import PERF, World, apart, boundary, colocated, poisson, worker

from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.design.boundary import Overlap, Ownership
from diptych.design.design import Design
from diptych.metrics.measurements import Measurements
from diptych.metrics.record import Outcome
from diptych.metrics.summary import summarise
from diptych.perf.queueing import two_stage_response
from diptych.serving.admission import Admission
from diptych.serving.fallback import Fallback
from diptych.serving.ownership import Heartbeats
from diptych.simulator.demand import Requests
from diptych.simulator.faults import Change, parse_changes
from diptych.simulator.pipeline import stage_layers
from diptych.simulator.policy import Policy
from diptych.simulator.simulate import simulate

ROOM = Policy(kv_blocks=10**7)


def pipelined(stages: int, **limits: int) -> Design:
    """A prefill pipeline before a decode worker that is never in the way."""
    source = replace(worker(**limits), parallelism=Parallelism(pp=stages))
    return apart(1, 1, boundary(1e14), source, worker(max_batch=10**6))


def outcomes(run: Measurements) -> list[Outcome]:
    return [record.outcome for record in run]


# --- pipelines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_pipeline_answers_every_slowest_stage_after_the_sum_of_all(stages: int) -> None:
    """Prompts of one step each, all there at once: the k-th is computed at D + (k − 1)·D/stages."""
    count = 64
    requests = Requests(np.zeros(count), np.full(count, 500), np.full(count, 2))
    run = simulate(pipelined(stages, max_batched_tokens=500), requests, PERF, policy=ROOM)
    whole = float(PERF.prefill(worker(), 500).seconds)
    expected = whole + np.arange(count) * whole / stages
    assert np.sort(run.requests.first_token) == pytest.approx(expected, rel=1e-9)


def test_the_slowest_stage_sets_the_pace() -> None:
    """32 layers over 3 stages are 11, 11 and 10."""
    assert stage_layers(32, 3) == (11, 11, 10)
    requests = Requests(np.zeros(100), np.full(100, 500), np.full(100, 2))
    run = simulate(pipelined(3, max_batched_tokens=500), requests, PERF, policy=ROOM)
    gaps = np.diff(np.sort(run.requests.first_token))
    whole = float(PERF.prefill(worker(), 500).seconds)
    assert gaps == pytest.approx(np.full(99, whole * max(stage_layers(32, 3)) / 32), rel=1e-9)


def test_chunks_of_one_prompt_follow_each_other_through_the_stages() -> None:
    requests = Requests(np.zeros(1), np.array([4000]), np.array([2]))
    alone, overlapped = (
        float(simulate(pipelined(stages, max_batched_tokens=500), requests, PERF, policy=ROOM).requests.first_token[0])
        for stages in (1, 4)
    )
    assert overlapped == pytest.approx(alone * (8 + 3) / (8 * 4), rel=0.02), "8 chunks over 4 stages: 11 stage times"


@pytest.mark.parametrize("load", [0.4, 0.8])
def test_two_stages_answer_as_the_closed_form_says(load: float) -> None:
    """D + R·D²/(4(2 − R·D)) with Poisson arrivals, at the rate that the draw has; `load` of the pipeline's capacity."""
    service = float(PERF.prefill(worker(), 500).seconds)
    count, draw = 60_000, np.random.default_rng(5)
    arrival = np.cumsum(draw.exponential(service / (2 * load), count))
    requests = Requests(arrival, np.full(count, 500), np.full(count, 1))
    run = simulate(pipelined(2, max_batched_tokens=500), requests, PERF, policy=ROOM)
    expected = float(two_stage_response(service, requests.rate))
    assert float(np.mean(run.requests.ttft_prefill)) == pytest.approx(expected, rel=0.02)


def test_a_layerwise_push_leaves_a_pipeline_while_it_computes() -> None:
    requests = poisson(40, 1.0, 2, isl=3000)
    ttft = []
    for overlap in (Overlap.SERIAL, Overlap.LAYERWISE):
        source = replace(worker(max_batched_tokens=500), parallelism=Parallelism(pp=4))
        design = apart(1, 1, boundary(2e9, overlap=overlap), source)
        ttft.append(float(np.mean(simulate(design, requests, PERF).requests.ttft)))
    assert ttft[1] < ttft[0]


# --- clients that give up ---------------------------------------------------------------------------------------------


def watched(design: Design, requests: Requests, policy: Policy, *faults: str) -> tuple[Watched, Measurements]:
    run = Watched(World(design, requests, policy, parse_changes(faults))).run()
    run.close()
    return run, run.measurements("watched")


@pytest.mark.parametrize("ownership", Ownership)
@pytest.mark.parametrize("within", ["20ms", "200ms", "2s"])
def test_cancelled_requests_give_everything_back(ownership: Ownership, within: str) -> None:
    """At whatever stage it meets them: queue, prefill, transfer, decode."""
    requests = poisson(300, 40.0, 3)
    _, run = watched(apart(2, 2, boundary(2e9, ownership)), requests, Policy(), f"client cancels 50% within {within}")
    found = outcomes(run)
    assert set(found) <= {Outcome.FINISHED, Outcome.CANCELLED}
    assert found.count(Outcome.CANCELLED) > 10
    kept = [r for r in run if r.outcome is Outcome.FINISHED]
    assert len(kept) >= 0.4 * len(found), "those who stay are served"


def test_a_colocated_answer_stops_when_its_client_goes() -> None:
    one = Requests(np.zeros(1), np.array([100]), np.array([10_000]))
    run = simulate(colocated(), one, PERF, faults=parse_changes(["client cancels 100% within 1s"]))
    (record,) = run
    assert record.outcome is Outcome.CANCELLED
    assert record.finish < 1.1
    assert summarise(run).refused == 0
    assert summarise(run).cancelled == 1


def test_clients_cancel_only_in_their_time() -> None:
    requests = poisson(400, 40.0, 3)
    run = simulate(colocated(2), requests, PERF, faults=parse_changes(["client cancels 100% within 10ms @2s for 2s"]))
    for record in run:
        within = 2.0 <= record.arrival < 4.0
        assert (record.outcome is Outcome.CANCELLED) <= within, record
        assert (record.outcome is Outcome.CANCELLED) or not within or record.e2e < 0.015, record


def storm(twin: bool, share: str) -> float:
    """Answers per second while 30 s of requests, some cancelled within their prefill, go through a push with little room."""
    policy = Policy(kv_blocks=400, cancel_twin=twin, handoff_timeout=300.0)
    requests = poisson(900, 30.0, 1)
    faults = parse_changes([f"client cancels {share} within 50ms"]) if share else ()
    run = simulate(apart(1, 1, boundary()), requests, PERF, policy=policy, faults=faults).requests
    return float(np.sum(run.finished & (run.finish < 31.0)))


def test_a_storm_of_cancels_collapses_pools_whose_twin_halves_are_not_told() -> None:
    """Both halves told: what is lost is what was cancelled. One told: the other holds its room for the whole timeout."""
    calm, told, untold = storm(True, ""), storm(True, "30%"), storm(False, "30%")
    assert told >= 0.68 * calm
    assert untold < 0.15 * calm, "sglang saw a fifteenth"


# --- damaged transfers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("resends", "again"), [(0, False), (3, True)])
def test_damaged_transfers_are_sent_again_or_computed_again(resends: int, again: bool) -> None:
    policy = Policy(fallback=Fallback(retries=20, resends=resends))
    fault = "link prefill->decode corrupts 20% @0s"
    _, run = watched(apart(2, 2, boundary(2e9)), poisson(300, 30.0, 4), policy, fault)
    assert set(outcomes(run)) == {Outcome.FINISHED}
    refused, resent = run.counts["transfers refused by validation"], run.counts.get("transfers sent again", 0)
    retries = int(np.sum(run.requests.retries))
    assert refused == pytest.approx(300 * 0.2 / 0.8, rel=0.35)
    assert resent + retries == refused, "each is sent or computed again"
    assert (resent > 0) == again


def test_only_the_named_port_corrupts_and_only_in_its_time() -> None:
    fault = "link prefill[0]->decode corrupts 100% @2s for 3s"
    policy = Policy(fallback=Fallback(retries=0, resends=0))
    _, run = watched(apart(2, 1, boundary()), poisson(300, 30.0, 4), policy, fault)
    lost = [record for record in run if record.outcome is Outcome.LOST]
    assert lost
    assert all(1.5 < record.arrival < 5.0 for record in lost)
    assert any(r.outcome is Outcome.FINISHED and r.prefill_worker == 1 and 2.5 < r.arrival < 4.5 for r in run)


# --- leases -----------------------------------------------------------------------------------------------------------


def burst(policy: Policy) -> Measurements:
    """42 requests at once, pulled by a decode worker with room for one at a time, a second each."""
    step = AffinePerf(start=1e-2, token=0.0, pair=0.0, sequence=0.0, read=0.0)
    small = replace(ACCELERATOR, memory_bytes=21.5e9)
    target = Worker(MODEL, small, Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16), Parallelism())
    design = apart(1, 1, boundary(1e14, Ownership.PULL), worker(), target)
    from diptych.perf.memory import kv_capacity

    room = int(kv_capacity(target) / float(MODEL.kv_bytes_per_token(Dtype.BF16)))
    prompt = int(room * 0.6)
    requests = Requests(np.zeros(42), np.full(42, prompt), np.full(42, 101))
    return simulate(design, requests, step, policy=policy)


def test_late_pulls_outlive_a_lease_that_is_renewed_from_admission_on() -> None:
    """Those who wait longer than 30 s for room are computed again; nobody decodes what its source may have freed."""
    run = burst(Policy(heartbeat_from=Heartbeats.ADMISSION, lease=30.0))
    late = run.counts["leases ran out"]
    assert late >= 8
    assert int(np.sum(run.requests.retries)) == late
    assert set(outcomes(run)) == {Outcome.FINISHED}
    refused = burst(Policy(heartbeat_from=Heartbeats.ADMISSION, lease=30.0, fallback=Fallback(retries=0)))
    assert outcomes(refused).count(Outcome.LOST) == refused.counts["leases ran out"] == late


@pytest.mark.parametrize(
    "policy", [Policy(heartbeat_from=Heartbeats.ADMISSION, lease=300.0), Policy(heartbeat_from=Heartbeats.ENQUEUE)]
)
def test_a_long_lease_or_heartbeats_from_the_queue_on_lose_nobody(policy: Policy) -> None:
    run = burst(policy)
    assert not run.counts
    assert int(np.sum(run.requests.retries)) == 0
    assert float(run.requests.finish.max()) > 40.0, "the queue was that long"


# --- as text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["client cancels 0%", "client cancels 120%", "client cancels 5% within 0s", "link prefill->decode corrupts 0% @1s",
     "client cancels 5% for 3s"],
)  # fmt: skip
def test_what_cannot_happen_is_refused(text: str) -> None:
    from diptych.errors import InvalidInput

    with pytest.raises(InvalidInput):
        parse_changes([text])


def test_mishaps_are_read() -> None:
    from diptych.simulator.faults import Cancels, LinkCorrupts

    found: tuple[Change, ...] = parse_changes(
        ["client cancels 5%", "clients cancel 30% within 2s @10s for 5s", "link prefill[1]->decode corrupts 1% @3s"]
    )
    assert found == (Cancels(0.05), Cancels(0.3, 2.0, 10.0, 5.0), LinkCorrupts(0.01, 3.0, prefill=1))


def test_early_rejection_knows_that_a_pipeline_overlaps() -> None:
    """A queue before four stages is a quarter as long as its work: as many are taken as keep the limit, not a quarter of them."""
    requests = poisson(600, 250.0, 8, isl=1500)
    taken = {}
    for stages in (1, 4):
        policy = Policy(kv_blocks=10**7, admission=Admission(ttft=0.6))
        run = simulate(pipelined(stages, max_batched_tokens=512), requests, PERF, policy=policy).requests
        taken[stages] = float(np.mean(run.finished))
        assert float(np.quantile(run.ttft_prefill[run.finished], 0.9)) < 0.9
    assert taken[4] > 2 * taken[1], taken
