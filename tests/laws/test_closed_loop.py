"""Laws of the closed loop, and a dull twin that steps every token."""

from __future__ import annotations

import numpy as np
import pytest
from affine_perf import AffinePerf, worker
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.perf.closed_loop import ColocatedTest, DisaggregatedTest, play
from diptych.perf.loop_play import GOLDEN, Loop, PrefillStage, Protocol

PERF = AffinePerf()


def twin(loop: Loop) -> tuple[float, float, float]:
    """(mean TTFT, mean TPOT, end) of a colocated loop with one prompt a step, one step at a time."""
    clients, total = loop.clients, loop.clients * loop.protocol.rounds
    longest = 2 * loop.osl / (1 + loop.protocol.spread)
    waiting = [0.0] * clients
    running: list[list[float]] = []  # [tokens left, first token at]
    now, number, sent, ttft, tpot = 0.0, 0, clients, [], []
    while len(tpot) < total:
        batch = len(running)
        if waiting and batch < loop.room and waiting[0] <= now + 1e-12:
            asked = waiting.pop(0)
            now += float(loop.prefill.one[batch]) + (float(loop.step[batch]) if loop.prefill.advances else 0.0)
            if loop.prefill.advances:
                for request in running:
                    request[0] -= 1
            ttft.append(now - asked)
            share = loop.protocol.spread + (1 - loop.protocol.spread) * ((number + 1) * GOLDEN % 1.0)
            length = max(round(longest * share) - 1, 1)
            number += 1
            running.append([length, now, length])
        else:
            now += float(loop.step[batch])
            for request in running:
                request[0] -= 1
        for request in [r for r in running if r[0] <= 0]:
            running.remove(request)
            tpot.append((now - request[1]) / request[2])
            if sent < total:
                waiting.append(now)
                sent += 1
    return float(np.mean(ttft)), float(np.mean(tpot)), now


def single(loop: Loop) -> Loop:
    """The same loop with one prompt a step."""
    stage = PrefillStage(loop.prefill.one, loop.prefill.one, 1.0, 0, 1.0, loop.prefill.advances)
    return Loop(loop.clients, loop.group, loop.osl, loop.step, loop.room, stage, loop.protocol)


@given(
    st.integers(1, 12), st.integers(2, 40), st.floats(0.3, 1.0), st.sampled_from(["vllm", "sglang"]), st.integers(1, 12)
)
@settings(deadline=None, max_examples=60)
def test_skipping_to_the_next_change_is_stepping_every_token(
    clients: int, osl: int, spread: float, engine: str, room: int
) -> None:
    kv = worker().model.kv_bytes(600.0 + osl / 2, worker().precision.kv) * (room + 0.5)
    loop = single(ColocatedTest(worker(engine), 600, osl, clients, float(kv), protocol=Protocol(3, spread)).loop(PERF))
    (result,) = play([loop])
    ttft, tpot, end = twin(loop)
    assert result.ttft == pytest.approx(ttft, rel=1e-9)
    assert result.tpot == pytest.approx(tpot, rel=1e-9)
    assert result.requests_per_second == pytest.approx(clients * 3 / end, rel=1e-9)


def colocated(concurrency: float, engine: str = "vllm", **more: float) -> Loop:
    return ColocatedTest(worker(engine), 1024, 256, concurrency, 60e9, protocol=Protocol(10, 0.8), **more).loop(PERF)


def apart(concurrency: float, prefill: int = 1, decode: int = 1) -> Loop:
    return DisaggregatedTest(
        worker(), worker(), 4096, 256, concurrency, 60e9, prefill, decode, 0.01, Protocol(10, 0.8)
    ).loop(PERF)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_one_client_never_queues(engine: str) -> None:
    (result,) = play([colocated(1, engine)])
    assert result.ttft == pytest.approx(float(PERF.prefill(worker(), 1024).seconds))
    (handed,) = play([apart(1)])
    assert handed.ttft == pytest.approx(float(PERF.prefill(worker(), 4096).seconds) + 0.01)


def test_the_loop_keeps_its_identity() -> None:
    """concurrency = throughput · (TTFT + (OSL−1)·TPOT), but for the drain at the end of ten rounds."""
    for loop, result in zip(loops := [colocated(c) for c in (4, 16, 64, 200)], play(loops), strict=True):
        cycle = result.ttft + (256 - 1) * result.tpot
        assert loop.clients * loop.group == pytest.approx(result.requests_per_second * cycle, rel=0.05)


@pytest.mark.parametrize("make", [colocated, apart])
def test_more_clients_wait_no_less_and_are_served_no_slower_in_all(make) -> None:  # type: ignore[no-untyped-def]
    results = play([make(c) for c in (1, 2, 4, 8, 16, 32, 64, 128, 256)])
    for name, slack in (("tpot", 0.02), ("requests_per_second", 0.03)):
        values = np.array([getattr(result, name) for result in results])
        assert np.all(values[1:] >= values[:-1] * (1 - slack)), name
    assert results[-1].ttft > results[0].ttft


def test_a_saturated_prefill_worker_queues_in_proportion() -> None:
    """1P1D, 1000/200, 1 to 250 clients: 0.1 s alone, then linear in clients once prefill is the bottleneck."""
    slow = AffinePerf(start=2e-3, token=98e-6, pair=0.0)
    loops = [
        DisaggregatedTest(worker(), worker(), 1000, 200, c, 60e9, 1, 1, 0.0, Protocol(10, 0.8)).loop(slow)
        for c in (1, 50, 100, 150, 200, 250)
    ]
    ttft = [result.ttft for result in play(loops)]
    assert ttft[0] == pytest.approx(0.1, rel=0.05)
    steps = np.diff(ttft[1:])
    assert np.all(np.abs(steps / steps.mean() - 1) < 0.1)
    # One round in ten starts at once and waits half as long; full steps of eight prompts start only once.
    packed = float(slow.prefill(worker(), 1000, 0, 8).seconds) / 8
    assert steps.mean() == pytest.approx(50 * packed * 0.95, rel=0.03)
    assert 20 < ttft[-1] < 26


def test_throughput_stays_below_what_the_stages_can_do() -> None:
    for prefill, decode in ((1, 1), (1, 3), (4, 1)):
        (result,) = play([apart(512, prefill, decode)])
        packed = float(PERF.prefill(worker(), 4096, 0, 2).seconds) / 2
        assert result.requests_per_second <= prefill / packed * 1.001


def test_memory_bounds_the_batch() -> None:
    kv = worker().model.kv_bytes(1024 + 128, worker().precision.kv) * 10.5
    loop = ColocatedTest(worker(), 1024, 256, 64, float(kv), protocol=Protocol(10, 0.8)).loop(PERF)
    assert loop.room == 10
    (result,) = play([loop])
    assert result.mean_batch <= 10
    (roomy,) = play([colocated(64)])
    assert result.ttft > 10 * roomy.ttft


def test_an_engine_that_looks_rarely_answers_later() -> None:
    protocols = [Protocol(10, 0.8, poll=poll) for poll in (1.0, 10.0, 30.0)]
    results = play([ColocatedTest(worker("sglang"), 1024, 256, 16, 60e9, protocol=p).loop(PERF) for p in protocols])
    waits = np.diff([result.ttft for result in results])
    assert np.all(waits > 0)
    step = results[0].tpot
    assert waits.sum() == pytest.approx(14.5 * step, rel=0.4)


def test_groups_stand_for_many_clients() -> None:
    (one,) = play([colocated(128)])
    (grouped,) = play([colocated(512)])
    assert grouped.mean_batch > 2 * one.mean_batch
