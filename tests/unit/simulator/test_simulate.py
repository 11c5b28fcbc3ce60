"""Whole runs that show one thing each."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "laws"))

from sim_worlds import HASH_TOKENS, PERF, apart, boundary, colocated, poisson, worker

from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import MemoryTier, TierKind
from diptych.design.boundary import Codec, Overlap, Ownership, Representation, Side
from diptych.errors import InvalidDesign, InvalidInput
from diptych.metrics.measurements import RequestColumns
from diptych.metrics.record import Outcome
from diptych.serving.admission import Admission
from diptych.serving.fallback import Fallback
from diptych.simulator.demand import Requests, drawn
from diptych.simulator.faults import parse_changes
from diptych.simulator.policy import Policy
from diptych.simulator.simulate import Progress, simulate
from diptych.workload.lengths import Lengths

SLOW = 2e9  # bytes/s: a 400-token prompt of the toy model crosses in 32 ms


def lone(isl: int = 2000, osl: int = 50, count: int = 5) -> Requests:
    """Requests too far apart to meet."""
    return Requests(np.arange(count) * 10.0, np.full(count, isl), np.full(count, osl))


def test_a_lone_request_takes_what_its_parts_take() -> None:
    """Prefill alone, the KV alone on the path, then osl − 1 steps of a batch of one."""
    run = simulate(apart(1, 1, boundary()), lone(), PERF)
    prefill = float(PERF.prefill(worker(), 2000).seconds)
    steps = sum(float(PERF.decode(worker(), 1, 2001 + n).seconds) for n in range(49))
    for record in run:
        assert record.ttft_prefill == pytest.approx(prefill, rel=1e-4)  # the table's straight lines
        assert record.tpot * 49 == pytest.approx(steps, rel=1e-6)
        assert record.ttft > record.ttft_prefill


def test_closed_loop_keeps_its_concurrency_and_its_identity() -> None:
    """rate = concurrency / (TTFT + (OSL − 1)·TPOT)."""
    requests = Requests(np.zeros(600), np.full(600, 500), np.full(600, 60))
    run = simulate(colocated(), requests, PERF, concurrency=8)
    live = run.series.values["live"]
    assert float(live.max()) == 8
    steady = run.requests.finish[100:500]
    rate = (len(steady) - 1) / float(steady[-1] - steady[0])
    cycle = float(np.mean(run.requests.ttft[100:500] + 59 * run.requests.tpot[100:500]))
    assert rate == pytest.approx(8 / cycle, rel=0.02)


def test_a_stream_gives_the_same_rows_and_keeps_none() -> None:
    lengths, parts = Lengths.fixed(300, 20), []
    held = simulate(colocated(), drawn(lengths, 20.0, 3, count=20_000), PERF)
    run = simulate(colocated(), drawn(lengths, 20.0, 3, count=20_000), PERF, sink=parts.append)
    assert len(run.requests) == 0
    assert len(parts) > 1
    assert run.duration == held.duration
    by_id = np.concatenate([part.id for part in parts])
    for name in ("finish", "decode_start"):
        column = np.concatenate([getattr(part, name) for part in parts])[np.argsort(by_id)]
        assert np.array_equal(column, getattr(held.requests, name)), name


def test_progress_is_told() -> None:
    seen: list[Progress] = []
    simulate(colocated(), poisson(500, 50.0, 1), PERF, progress=seen.append)
    assert seen[-1].ended == seen[-1].arrived == 500
    assert seen[-1].seconds > 0


def test_progress_is_told_every_few_requests_and_while_the_last_ones_end() -> None:
    seen: list[Progress] = []
    requests = Requests(np.arange(1000) * 0.01, np.full(1000, 500), np.full(1000, 3000))
    simulate(colocated(), requests, PERF, progress=seen.append)
    assert max(b.arrived - a.arrived for a, b in pairwise(seen)) <= 64
    drained = [told for told in seen if told.arrived == 1000]
    assert max(b.seconds - a.seconds for a, b in pairwise(drained)) < 2.0
    seen.clear()
    simulate(colocated(), requests, PERF, progress=seen.append, concurrency=16)
    assert len(seen) > 20, "a closed loop tells too"


def test_what_a_pull_cannot_overlap_is_refused() -> None:
    requests = poisson(5, 5.0, 1)
    with pytest.raises(InvalidInput, match="chunks can only be pushed"):
        simulate(apart(1, 1, boundary(ownership=Ownership.PULL)), requests, PERF, policy=Policy(per_chunk=True))
    with pytest.raises(InvalidDesign, match="layers can only be pushed"):
        simulate(apart(1, 1, boundary(ownership=Ownership.PULL, overlap=Overlap.LAYERWISE)), requests, PERF)


def ttft(**changed: object) -> float:
    policy = changed.pop("policy", Policy())
    design = apart(1, 1, boundary(SLOW, **changed))  # type: ignore[arg-type]
    return float(np.mean(simulate(design, lone(), PERF, policy=policy).requests.ttft))  # type: ignore[arg-type]


def test_layerwise_hides_what_serial_shows() -> None:
    """A 2,000-token prompt: 47 ms of prefill, 164 ms on the wire; 32 layers leave 164 − 47·31/32 of it visible."""
    serial, layered = ttft(), ttft(overlap=Overlap.LAYERWISE)
    prefill = float(PERF.prefill(worker(), 2000).seconds)
    assert serial - layered == pytest.approx(prefill * 31 / 32, rel=0.01)


def test_a_pull_waits_for_the_round_trip() -> None:
    pull = ttft(ownership=Ownership.PULL, policy=Policy(round_trip=0.25))
    assert pull - ttft() == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("side", [Side.PREFILL, Side.DECODE])
def test_converting_costs_the_engine_that_does_it(side: Side) -> None:
    """Against raw KV of the wire's format: the same bytes, and the conversion's time on its side."""
    if side is Side.PREFILL:
        source, target = worker(Dtype.BF16), worker(Dtype.FP8)
        form = Representation(Codec.QUANTISED, Dtype.FP8, side)
    else:
        source, target = worker(Dtype.FP8), worker(Dtype.BF16)
        form = Representation(Codec.CAST, Dtype.FP8, side)
    plain = Representation(Codec.RAW, Dtype.FP8)
    raw = simulate(apart(1, 1, boundary(SLOW, form=plain), worker(Dtype.FP8), worker(Dtype.FP8)), lone(), PERF)
    run = simulate(apart(1, 1, boundary(SLOW, form=form), source, target), lone(), PERF)
    extra = run.requests.ttft - raw.requests.ttft
    assert np.all(extra > 1e-5)
    busy = [run.workers[i].busy - raw.workers[i].busy for i in (0, 1)]
    mine = busy[0 if side is Side.PREFILL else 1]
    assert mine == pytest.approx(5 * float(extra[0]), rel=0.01)
    assert busy[1 if side is Side.PREFILL else 0] == pytest.approx(0.0, abs=1e-9)


def test_short_prompts_stay_on_the_decode_side() -> None:
    run = simulate(apart(1, 1, boundary(local_below=300)), poisson(300, 10.0, 2), PERF)
    for record in run:
        assert (record.prefill_worker < 0) == (record.isl < 300)
        if record.isl < 300:
            assert np.isnan(record.moved)


def test_a_full_target_holds_a_push_back_and_lets_a_pull_pile_up() -> None:
    requests = replace(poisson(200, 60.0, 3), osl=np.full(200, 200))
    policy = Policy(kv_blocks=400)
    push = simulate(apart(1, 1, boundary()), requests, PERF, policy=policy)
    pull = simulate(apart(1, 1, boundary(ownership=Ownership.PULL)), requests, PERF, policy=policy)
    assert float(np.mean(push.requests.prefill_start)) > float(np.mean(pull.requests.prefill_start))
    assert any("KV blocks" in limit for limit in push.limits)


def test_a_dead_decode_worker_costs_its_requests_and_nobody_elses_answer() -> None:
    faults = parse_changes(["decode[1] dies @2s for 3s"])
    run = simulate(apart(1, 2, boundary()), poisson(300, 30.0, 4), PERF, faults=faults)
    assert run.requests.finished.all()
    assert 0 < int((run.requests.retries > 0).sum()) < 100


def test_a_prefill_pool_that_is_gone_leaves_decode_to_do_both() -> None:
    faults = parse_changes(["prefill pool dies @2s"])
    run = simulate(apart(1, 2, boundary()), poisson(300, 30.0, 4), PERF, faults=faults)
    assert run.requests.finished.all()
    late = run.requests.arrival > 3
    assert np.all(run.requests.prefill_worker[late] < 0)
    refused = simulate(
        apart(1, 2, boundary()), poisson(300, 30.0, 4), PERF, faults=faults,
        policy=Policy(fallback=Fallback(colocate=False, hold=False)),
    )  # fmt: skip
    assert np.all(refused.requests.outcome[late] == Outcome.LOST)


def test_a_cut_link_ends_in_a_lease_and_not_in_silence() -> None:
    faults = parse_changes(["link prefill->decode cut @1s"])
    policy = Policy(handoff_timeout=5.0, fallback=Fallback(retries=1))
    run = simulate(apart(1, 1, boundary()), poisson(60, 20.0, 4), PERF, faults=faults, policy=policy)
    after = run.requests.arrival > 1.1
    longer = run.requests.osl > 1
    assert np.all(run.requests.outcome[after & longer] == Outcome.LOST)
    assert run.workers[0].kv_held == run.workers[1].kv_held == 0


def test_added_workers_serve_after_their_start_up() -> None:
    requests = poisson(900, 60.0, 5)
    policy = Policy(start_up=2.0)
    grown = simulate(colocated(1), requests, PERF, policy=policy, faults=parse_changes(["colocated +2 @3s"]))
    assert len(grown.workers) == 3
    first = min(record.arrival for record in grown if record.decode_worker > 0)
    assert first >= 5.0
    assert grown.usd > simulate(colocated(1), requests, PERF, policy=policy).usd * 0.5
    assert float(np.mean(grown.requests.e2e)) < float(np.mean(simulate(colocated(1), requests, PERF).requests.e2e))


def test_lower_tiers_save_prefill_when_fetching_is_faster() -> None:
    requests = poisson(300, 4.0, 6, isl=600, hashes=True)
    small = Policy(kv_blocks=300)
    dram = MemoryTier("dram", TierKind.DRAM, 4e9, 50e9, 50e9, 1e-5)
    tape = MemoryTier("tape", TierKind.NVME, 4e9, 1e6, 1e6, 1.0)
    assert requests.hash_tokens == HASH_TOKENS

    def prefill(policy: Policy) -> float:
        return simulate(apart(1, 1, boundary()), requests, PERF, policy=policy).workers[0].busy

    assert prefill(replace(small, tiers=(dram,))) < 0.97 * prefill(small)
    assert prefill(replace(small, tiers=(tape,))) == pytest.approx(prefill(small)), "computing beats a tape"
    assert prefill(small) < prefill(replace(small, prefix_cache=False))


def test_blocks_are_found_below_once_they_are_written() -> None:
    """A tier that reads fast and writes slowly holds nothing in time; a second one shares its own bandwidth only."""
    requests = poisson(300, 4.0, 6, isl=600, hashes=True)

    def prefill(*tiers: MemoryTier) -> float:
        policy = Policy(kv_blocks=300, tiers=tiers)
        return simulate(apart(1, 1, boundary()), requests, PERF, policy=policy).workers[0].busy

    fast = MemoryTier("fast", TierKind.DRAM, 4e9, 50e9, 50e9, 1e-5)
    late = replace(fast, write_bandwidth=1e7)  # a 600-token prompt takes 8 s, one comes every 0.25 s
    assert prefill(fast) < 0.97 * prefill()
    assert prefill(late) == pytest.approx(prefill(), rel=0.01)
    between = replace(fast, write_bandwidth=2e8)
    assert prefill(fast) <= prefill(between) <= prefill(late)


def test_early_rejection_keeps_those_it_takes_within_the_limit() -> None:
    requests = poisson(600, 120.0, 7, isl=1500)
    limited = Policy(admission=Admission(ttft=0.5, decode_seconds=1.0))
    run = simulate(apart(1, 2, boundary()), requests, PERF, policy=limited)
    free = simulate(apart(1, 2, boundary()), requests, PERF)
    rejected = run.requests.outcome == Outcome.REJECTED
    assert 0 < int(rejected.sum()) < 600
    assert float(np.quantile(run.requests.ttft[~rejected], 0.99)) < 0.6, "queues are foreseen, shared links are not"
    assert float(np.median(free.requests.ttft)) > 0.6


def test_what_no_worker_can_hold_is_refused_and_said() -> None:
    run = simulate(colocated(), lone(osl=50), PERF, policy=Policy(kv_blocks=100))
    assert set(run.requests.outcome.tolist()) == {int(Outcome.TOO_LONG)}
    assert isinstance(run.requests, RequestColumns)
