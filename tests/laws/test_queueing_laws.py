"""Laws of waiting: more load never shortens a wait, more workers never lengthen it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diptych.perf.queueing import (
    erlang_b,
    erlang_c,
    md1_response,
    tensor_parallel_response,
    two_stage_response,
    wait,
)

RATES = st.floats(0, 500)
SERVICES = st.floats(1e-4, 20)
VARIATIONS = st.floats(0, 8)
WORKERS = st.integers(1, 300)
LIMITS = st.floats(-1, 100)
SLACK = 1 + 1e-9


@given(st.floats(0, 400), WORKERS)
def test_erlang_is_a_probability(load: float, servers: int) -> None:
    assert 0 <= erlang_b(load, servers) <= erlang_c(load, servers) <= 1


@given(RATES, RATES, WORKERS, SERVICES, VARIATIONS, VARIATIONS, LIMITS)
def test_waits_do_not_fall_with_the_rate(
    one: float, other: float, workers: int, service: float, cv2: float, cv2_arrivals: float, limit: float
) -> None:
    low, high = (wait(rate, workers, service, cv2, cv2_arrivals) for rate in sorted((one, other)))
    assert low.mean <= high.mean * SLACK
    assert low.exceeds(limit) <= high.exceeds(limit) * SLACK
    assert low.quantile(0.9) <= high.quantile(0.9) * SLACK + 1e-12


@given(RATES, WORKERS, WORKERS, SERVICES, VARIATIONS, LIMITS)
def test_waits_do_not_grow_with_the_workers(
    rate: float, one: int, other: int, service: float, cv2: float, limit: float
) -> None:
    few, many = (wait(rate, workers, service, cv2) for workers in sorted((one, other)))
    assert many.mean <= few.mean * SLACK
    assert many.exceeds(limit) <= few.exceeds(limit) * SLACK
    assert many.quantile(0.9) <= few.quantile(0.9) * SLACK + 1e-12


@given(RATES, WORKERS, SERVICES, VARIATIONS, st.floats(0, 1, exclude_max=True))
def test_a_quantile_is_exceeded_by_the_rest(rate: float, workers: int, service: float, cv2: float, q: float) -> None:
    queue = wait(rate, workers, service, cv2)
    assert queue.exceeds(queue.quantile(q)) <= (1 - q) * SLACK or np.isinf(queue.mean)


@given(SERVICES, RATES, RATES, st.floats(1.01, 2))
def test_responses_do_not_fall_with_the_rate_nor_below_the_service(
    service: float, one: float, other: float, speedup: float
) -> None:
    low, high = sorted((one, other))
    assert service <= md1_response(service, low) <= md1_response(service, high)
    assert service <= two_stage_response(service, low) <= two_stage_response(service, high)
    quick = tensor_parallel_response(service, np.array([low, high]), speedup)
    assert service / speedup <= quick[0] <= quick[1]


@given(SERVICES, RATES, st.floats(1.01, 2))
def test_spreading_over_two_ranks_never_slows_a_queue(service: float, rate: float, speedup: float) -> None:
    alone = md1_response(service, rate)
    assert two_stage_response(service, rate) <= alone
    assert tensor_parallel_response(service, rate, speedup) <= alone * SLACK
