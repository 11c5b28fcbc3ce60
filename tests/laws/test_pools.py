"""Laws of the open-loop pools: monotone in load and workers, Little's law, never above the physical capacity."""

from __future__ import annotations

import time

import numpy as np
import pytest
from affine_perf import AffinePerf, worker
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.metrics.slo import SLO
from diptych.perf.pools import ColocatedPool, DecodePool, PrefillPool
from diptych.workload.lengths import Lengths

PERF = AffinePerf()
KV = 40e9


@st.composite
def some_lengths(draw: st.DrawFn) -> Lengths:
    points = draw(st.integers(1, 6))
    isl = np.array(draw(st.lists(st.floats(1, 60000), min_size=points, max_size=points)))
    osl = np.array(draw(st.lists(st.floats(2, 4000), min_size=points, max_size=points)))
    hit = np.array(draw(st.lists(st.floats(0, 0.9), min_size=points, max_size=points)))
    weight = np.array(draw(st.lists(st.floats(0.05, 1), min_size=points, max_size=points)))
    return Lengths(isl, osl, np.floor(isl * hit), weight / weight.sum())


RATES = np.linspace(0.01, 3.0, 60)


@settings(deadline=None)
@given(some_lengths(), st.integers(1, 20), st.floats(0.01, 20.0), st.floats(1.0, 10.0))
def test_prefill_attainment_falls_with_rate_and_rises_with_workers(
    lengths: Lengths, workers: int, limit: float, cv2: float
) -> None:
    pool = PrefillPool(PERF, worker(), lengths)
    rates = RATES * pool.capacity * workers / 2
    share = pool.attainment(rates, workers, limit, cv2=cv2)
    assert np.all(np.diff(share) <= 1e-9)
    assert np.all((share >= 0) & (share <= 1))
    more = pool.attainment(rates, workers + np.arange(5)[:, None], limit, cv2=cv2)
    assert np.all(np.diff(more, axis=0) >= -1e-9)


@settings(deadline=None)
@given(some_lengths(), st.integers(1, 20), st.floats(0.5, 0.99))
def test_prefill_quantile_is_where_the_attainment_reaches_it(lengths: Lengths, workers: int, q: float) -> None:
    pool = PrefillPool(PERF, worker(), lengths)
    rates = np.array([0.1, 0.6, 0.9]) * pool.capacity * workers
    seconds = pool.quantile(rates, workers, q)
    assert np.all(pool.attainment(rates, workers, seconds * (1 + 1e-6)) >= q - 1e-6)
    assert np.all(np.diff(seconds) >= -1e-9)
    assert np.all(np.isinf(pool.quantile(1.01 * pool.capacity * workers, workers, q)))


@settings(deadline=None)
@given(some_lengths())
def test_prefill_never_beats_its_own_steps(lengths: Lengths) -> None:
    pool = PrefillPool(PERF, worker(), lengths)
    tokens = lengths.mean(lengths.isl - lengths.cached)
    assert pool.capacity <= 1.0 / (max(tokens, 1.0) * PERF.token) * (1 + 1e-9)
    assert float(pool.latency(0.0, 1).mean) == pytest.approx(lengths.mean(pool.service))


@settings(deadline=None)
@given(some_lengths(), st.integers(1, 10), st.floats(1.0, 5.0))
def test_decode_slows_down_with_rate_and_keeps_littles_law(lengths: Lengths, workers: int, cv2: float) -> None:
    pool = DecodePool(PERF, worker(), lengths, KV)
    rates = RATES / 3 * 0.99 * pool.capacity * workers
    state = pool.at(rates, workers, cv2)
    for tpot in (state.tpot_mean, state.tpot_p50, state.tpot_p90, state.tpot_p99, state.batch, state.kv_bytes_p99):
        assert np.all(np.diff(tpot) >= -1e-12)
    assert np.all(state.tpot_p90 <= state.tpot_p99)
    assert np.all(state.tpot_p50 <= state.tpot_p90)
    np.testing.assert_allclose(
        state.batch, rates / workers * pool.steps_per_request * state.tpot_mean, rtol=1e-3, atol=1e-6
    )
    assert np.all(state.tpot_mean >= PERF.decode(worker(), 1.0, pool.context).seconds - 1e-12)


@settings(deadline=None)
@given(some_lengths(), st.integers(1, 9))
def test_decode_is_kinder_with_more_workers(lengths: Lengths, workers: int) -> None:
    pool = DecodePool(PERF, worker(), lengths, KV)
    rate = 0.7 * pool.capacity
    assert pool.at(rate, workers + 1).tpot_p99 <= pool.at(rate, workers).tpot_p99 + 1e-12


@settings(deadline=None)
@given(some_lengths(), st.floats(6.0, 60.0))
def test_decode_knee_is_the_last_rate_that_holds(lengths: Lengths, limit_ms: float) -> None:
    pool = DecodePool(PERF, worker(), lengths, KV)
    knee = pool.knee(SLO.parse(f"tpot_p90<{limit_ms}ms"))
    if knee > 0:
        state = pool.at(knee * 0.995, 1)
        assert state.feasible
        assert state.tpot_p90 <= limit_ms / 1e3 * 1.02
    beyond = pool.at(max(knee, 1e-6) * 1.05, 1)
    assert not beyond.feasible or beyond.tpot_p90 >= limit_ms / 1e3 * 0.98


@settings(deadline=None)
@given(some_lengths(), st.integers(1, 6), st.sampled_from(["vllm", "sglang"]))
def test_colocated_latencies_grow_with_rate(lengths: Lengths, workers: int, engine: str) -> None:
    pool = ColocatedPool(PERF, worker(engine), lengths, KV)
    rates = np.linspace(0.01, 0.98, 25) * pool.capacity * workers
    state = pool.at(rates, workers)
    for values in (state.tpot_mean, state.tpot_p99, state.ttft.mean, state.ttft.quantile(0.9), state.batch):
        assert np.all(np.diff(values) >= -1e-9 * np.abs(values[1:]))
    assert np.all(np.diff(state.ttft.attainment(0.5)) <= 1e-9)


@settings(deadline=None)
@given(some_lengths(), st.sampled_from(["vllm", "sglang"]))
def test_colocated_never_does_more_than_its_parts(lengths: Lengths, engine: str) -> None:
    both = ColocatedPool(PERF, worker(engine), lengths, KV).capacity
    assert both <= DecodePool(PERF, worker(engine), lengths, KV).capacity * (1 + 1e-9)
    tokens = max(lengths.mean(lengths.isl - lengths.cached), 1.0)
    assert both <= 1.0 / (tokens * PERF.token) * (1 + 1e-9)


def test_a_queue_at_the_knee_of_a_deterministic_worker_is_md1() -> None:
    pool = PrefillPool(PERF, worker(), Lengths.fixed(8192, 2))
    service = float(pool.service[0])
    mean = float(pool.latency(0.7 / service, 1).mean)
    assert mean == pytest.approx(service * (1 + 0.7 / (2 * 0.3)), rel=1e-6)


def test_a_pool_of_many_points_is_built_in_a_millisecond_or_so() -> None:
    rng = np.random.default_rng(0)
    lengths = Lengths(rng.uniform(10, 8000, 64), rng.uniform(10, 800, 64), np.zeros(64), np.full(64, 1 / 64))
    started = time.perf_counter()
    for _ in range(20):
        ColocatedPool(PERF, worker(), lengths, KV)
    assert (time.perf_counter() - started) / 20 < 0.02
