"""Gaps between tokens: the histogram against the list of them, and what stalls, preemption and handoffs do to them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "laws"))

from sim_worlds import PERF, apart, boundary, colocated, poisson, worker

from diptych.metrics.gaps import TokenGaps
from diptych.metrics.measurements import Measurements
from diptych.simulator.clock import PS
from diptych.simulator.demand import Requests
from diptych.simulator.gaps import GapHistogram
from diptych.simulator.policy import Policy
from diptych.simulator.simulate import simulate

RUNS = st.lists(
    st.tuples(st.integers(10**6, 10**13), st.integers(0, 10**10), st.integers(1, 400), st.integers(1, 300)), max_size=20
)


def seen(run: Measurements) -> TokenGaps:
    assert run.gaps is not None
    return run.gaps


@given(RUNS)
def test_the_histogram_says_what_the_list_says(runs: list[tuple[int, int, int, int]]) -> None:
    histogram = GapHistogram()
    histogram.add(runs)
    steps = [np.repeat((t + d * np.arange(n)) / PS, b) for t, d, n, b in runs]
    every = np.concatenate(steps) if steps else np.empty(0)
    found = histogram.seen()
    assert found.count == len(every)
    if len(every):
        assert found.mean == pytest.approx(float(every.mean()), rel=1e-9)
        assert found.longest == pytest.approx(float(every.max()))
        for q in (0.5, 0.9, 0.99):
            exact = float(np.quantile(every, q, method="inverted_cdf"))
            assert found.quantile(q) == pytest.approx(exact, rel=0.006)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("room", [400, 5000])
def test_gaps_add_up_to_the_time_between_first_and_last_token(engine: str, room: int) -> None:
    """Mixed steps, prompts that make decodes wait, preemption: every second lies in one gap, every token ends one."""
    requests = poisson(400, 30.0, 3)
    run = simulate(colocated(1, worker(engine=engine)), requests, PERF, policy=Policy(kv_blocks=room), gaps=True)
    done = run.requests.finished
    if room == 400:
        assert sum(w.preemptions for w in run.workers)
    assert seen(run).count == int(np.sum(run.requests.osl[done] - 1))
    spent = float(np.sum((run.requests.e2e - run.requests.ttft)[done]))
    assert seen(run).total == pytest.approx(spent, rel=1e-9)


def test_gaps_on_a_decode_side_that_converts() -> None:
    run = simulate(apart(1, 1, boundary(2e9)), poisson(300, 20.0, 4), PERF, gaps=True)
    spent = float(np.sum(run.requests.e2e - run.requests.ttft))
    assert seen(run).count == int(np.sum(run.requests.osl - 1))
    assert seen(run).total == pytest.approx(spent, rel=1e-9)


def test_prompts_that_run_alone_stretch_the_tail_of_the_gaps() -> None:
    """SGLang's decodes wait for a whole prompt; the median token does not."""
    requests = Requests(np.arange(100) * 0.2, np.full(100, 4000), np.full(100, 100))
    mixed, alone = (
        seen(simulate(colocated(1, worker(engine=engine, max_batched_tokens=limit)), requests, PERF, gaps=True))
        for engine, limit in (("vllm", 256), ("sglang", 8192))
    )
    assert alone.longest > 3 * mixed.longest
    assert alone.quantile(0.5) < mixed.quantile(0.5) * 1.05


def test_nothing_is_counted_unasked() -> None:
    assert simulate(colocated(), poisson(20, 20.0, 4), PERF).gaps is None
