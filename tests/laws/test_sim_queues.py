"""The simulator against queueing theory: Lindley's recursion to the picosecond, M/D/1, M/M/k and Little's law."""

from __future__ import annotations

from dataclasses import replace
from heapq import heapreplace
from itertools import pairwise

import numpy as np
import pytest
from affine_perf import AffinePerf
from sim_worlds import PERF, apart, boundary, colocated, poisson, worker

from diptych.catalog.interconnect import Link, LinkKind
from diptych.perf.queueing import erlang_c
from diptych.simulator.clock import PS
from diptych.simulator.demand import Requests
from diptych.simulator.policy import Policy
from diptych.simulator.simulate import simulate

ONE_PROMPT = worker(max_batched_tokens=500)  # a step holds one prompt of 500 tokens


def deterministic(rate: float, count: int, seed: int) -> tuple[Requests, int]:
    """One-token requests of 500 prompt tokens, and the ps that each takes."""
    arrival = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    service = round(float(PERF.prefill(ONE_PROMPT, 500).seconds) * PS)
    return Requests(arrival, np.full(count, 500), np.ones(count, np.int64)), service


def lindley(arrival: np.ndarray, service: float) -> np.ndarray:
    """Waits of a first-come-first-served server: W = D·n − t less its least value so far."""
    work = service * np.arange(len(arrival)) - arrival
    return work - np.minimum.accumulate(work)


def kiefer_wolfowitz(arrival: list[float], service: list[float], servers: int) -> np.ndarray:
    """Waits of a first-come-first-served queue before `servers` servers."""
    free, waits = [0.0] * servers, []
    for time, work in zip(arrival, service, strict=True):
        start = max(time, free[0])
        waits.append(start - time)
        heapreplace(free, start + work)
    return np.array(waits)


def test_a_prefill_queue_is_lindleys_recursion() -> None:
    """Not near it: every wait, to the rounding of the seconds that it is compared in."""
    requests, service = deterministic(60.0, 20_000, 1)
    run = simulate(colocated(1, ONE_PROMPT), requests, PERF)
    waits = run.requests.prefill_start - run.requests.arrival
    assert np.max(np.abs(waits - lindley(requests.arrival, service / PS))) < 1e-9


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_md1_within_one_percent(load: float) -> None:
    """What the simulator equals wait by wait gives λD²/(2(1−λD)) over four million requests."""
    _, service = deterministic(1.0, 1, 0)
    requests, _ = deterministic(load * PS / service, 4_000_000, 7)
    busy = requests.rate * service / PS
    theory = busy * service / PS / (2 * (1 - busy))
    assert float(np.mean(lindley(requests.arrival, service / PS))) == pytest.approx(theory, rel=0.01)


def standard_error(values: np.ndarray, batches: int = 40) -> float:
    """Of the mean of correlated values, by the means of batches much longer than the correlation."""
    means = values[: len(values) // batches * batches].reshape(batches, -1).mean(axis=1)
    return float(np.std(means, ddof=1) / np.sqrt(batches))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_md1_simulated_within_its_confidence(load: float) -> None:
    """What a run of moderate length is off by is statistics: five runs of 40,000, all together within 3 standard errors.

    At 80 % load 400,000 requests leave one of 1.0 %, so 1 % takes millions (`long`); at 40,000 a run may well be 5 % off.
    """
    _, service = deterministic(1.0, 1, 0)
    off, errors = [], []
    for seed in range(5):
        requests, _ = deterministic(load * PS / service, 40_000, seed)
        run = simulate(colocated(1, ONE_PROMPT), requests, PERF)
        waits = run.requests.prefill_start - run.requests.arrival
        busy = requests.rate * service / PS
        off.append(float(np.mean(waits)) - busy * service / PS / (2 * (1 - busy)))
        errors.append(standard_error(waits))
    assert abs(np.mean(off)) < 3 * float(np.linalg.norm(errors)) / 5
    assert float(np.linalg.norm(errors)) / 5 < 0.05 * load * service / PS / (2 * (1 - load)), (
        "an error this small says something"
    )


@pytest.mark.long
@pytest.mark.parametrize("load", [0.3, 0.8])
def test_md1_within_one_percent_simulated(load: float) -> None:
    _, service = deterministic(1.0, 1, 0)
    requests, _ = deterministic(load * PS / service, 2_000_000, 11)
    run = simulate(colocated(1, ONE_PROMPT), requests, PERF)
    busy = requests.rate * service / PS
    waits = run.requests.prefill_start - run.requests.arrival
    assert float(np.mean(waits)) == pytest.approx(busy * service / PS / (2 * (1 - busy)), rel=0.01)


SLOTS, STEP, MEAN = 4, 1e-4, 2000
FLAT = AffinePerf(start=STEP, token=0.0, pair=0.0, sequence=0.0, read=0.0)  # a step does not depend on its batch


def slots(load: float, count: int) -> tuple[Requests, float]:
    """Requests for one decode engine whose k slots are k servers, and their rate."""
    draw = np.random.default_rng(3)
    arrival = np.cumsum(draw.exponential(MEAN * STEP / (load * SLOTS), count))
    answers = np.maximum(np.rint(draw.exponential(MEAN, count)), 1).astype(np.int64) + 1
    requests = Requests(arrival, np.ones(count, np.int64), answers)
    return requests, requests.rate


def test_decode_slots_are_a_queue_before_k_servers() -> None:
    """Every wait is Kiefer and Wolfowitz's up to a step: a slot is taken at a boundary."""
    requests, _ = slots(0.8, 12_000)
    path = replace(boundary(), link=Link("fast", LinkKind.SCALEUP, 1e15, 0.0))
    design = apart(1, 1, path, worker(), worker(max_batch=SLOTS))
    run = simulate(design, requests, FLAT, policy=Policy(kv_blocks=10**7))
    moved = run.requests.moved
    order = np.argsort(moved, kind="stable")
    exact = kiefer_wolfowitz(moved[order].tolist(), ((requests.osl[order] - 1) * STEP).tolist(), SLOTS)
    waits = (run.requests.decode_start - moved)[order]
    assert float(np.mean(np.abs(waits - exact))) < 3 * STEP
    assert float(np.mean(waits)) == pytest.approx(float(np.mean(exact)), rel=0.01)


def test_mmk_within_one_percent() -> None:
    """And that queue gives Erlang C's wait over a million requests, at the rate and mean answer that the draw has."""
    requests, rate = slots(0.7, 1_000_000)
    service = (requests.osl - 1) * STEP
    mean = float(np.mean(service))
    theory = float(erlang_c(rate * mean, SLOTS)) / (SLOTS / mean - rate)
    found = kiefer_wolfowitz(requests.arrival.tolist(), service.tolist(), SLOTS)
    assert float(np.mean(found)) == pytest.approx(theory, rel=0.01)


@pytest.mark.long
def test_mmk_within_one_percent_simulated() -> None:
    """The decode engine itself; a slot is taken at a boundary, half a step late on average."""
    requests, rate = slots(0.7, 1_000_000)
    path = replace(boundary(), link=Link("fast", LinkKind.SCALEUP, 1e15, 0.0))
    design = apart(1, 1, path, worker(), worker(max_batch=SLOTS))
    run = simulate(design, requests, FLAT, policy=Policy(kv_blocks=10**7))
    mean = float(np.mean((requests.osl - 1) * STEP))
    theory = float(erlang_c(rate * mean, SLOTS)) / (SLOTS / mean - rate)
    waits = float(np.mean(run.requests.decode_start - run.requests.moved))
    assert waits - STEP / 2 == pytest.approx(theory, rel=0.01)


def test_littles_law_from_what_is_sampled() -> None:
    """Requests seen in the system on average = rate × mean time in it."""
    run = simulate(apart(2, 2, boundary()), poisson(6000, 30.0, 5), PERF)
    live, time = run.series.values["live"], run.series.time
    inside = time <= run.requests.arrival[-1]
    rate = len(run.requests) / float(run.requests.arrival[-1])
    assert float(live[inside].mean()) == pytest.approx(rate * float(run.requests.e2e.mean()), rel=0.05)


def test_step_times_never_fall_in_batch_or_context() -> None:
    from diptych.simulator.tables import StepTable

    table = StepTable(PERF, worker(), 2048)
    for context in (1, 1000, 100_000):
        times = [table.decode_ps(batch, context * batch) for batch in range(1, 200)]
        assert times == sorted(times)
    for batch in (1, 7, 64):
        times = [table.decode_ps(batch, context) for context in range(batch, 200_000, 997)]
        assert times == sorted(times)


@pytest.mark.parametrize("seed", range(3))
def test_one_more_worker_never_lowers_goodput(seed: int) -> None:
    """Beyond scheduling noise (2 %), under a limit that a short fleet misses."""
    requests = poisson(1500, 60.0, seed)

    def good(design: object) -> float:
        run = simulate(design, requests, PERF)  # type: ignore[arg-type]
        return float(np.mean((run.requests.ttft < 0.3) & ~(run.requests.tpot > 0.02)))

    for fleet in (lambda n: colocated(n), lambda n: apart(n, 2, boundary()), lambda n: apart(2, n, boundary())):
        found = [good(fleet(count)) for count in (1, 2, 3, 4)]
        assert all(after >= before - 0.02 for before, after in pairwise(found)), found
