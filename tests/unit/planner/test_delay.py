"""Two waits on top of sure seconds, against draws of the same thing."""

from __future__ import annotations

import numpy as np
import pytest

from diptych.perf.queueing import Wait
from diptych.planner.delay import Delay, both_exceed, no_wait

RNG = np.random.default_rng(7)


def drawn(wait: Wait, n: int) -> np.ndarray:
    return np.where(RNG.random(n) < float(wait.prob), RNG.exponential(float(wait.mean_if_waiting), n), 0.0)


def waits(p: float, w: float) -> Wait:
    return Wait(np.asarray(p), np.asarray(w))


@pytest.mark.parametrize(("first", "second"), [(waits(0.6, 0.5), waits(0.3, 1.4)), (waits(0.5, 0.7), waits(0.5, 0.7))])
def test_the_sum_of_two_waits(first: Wait, second: Wait) -> None:
    total = drawn(first, 400_000) + drawn(second, 400_000)
    for t in (0.0, 0.4, 1.0, 3.0):
        assert float(both_exceed(first, second, np.asarray(t))) == pytest.approx(float(np.mean(total > t)), abs=4e-3)


def test_percentiles_are_of_the_sum() -> None:
    delay = Delay(np.array([0.2, 1.0]), np.array([0.75, 0.25]), waits(0.5, 0.4), waits(0.2, 0.3))
    total = RNG.choice([0.2, 1.0], 400_000, p=[0.75, 0.25]) + drawn(delay.first, 400_000) + drawn(delay.second, 400_000)
    assert float(delay.mean) == pytest.approx(total.mean(), rel=0.01)
    for q in (0.5, 0.9, 0.99):
        assert float(delay.quantile(q)) == pytest.approx(np.quantile(total, q), rel=0.02)


def test_a_saturated_queue_keeps_nothing() -> None:
    delay = Delay(np.array([0.1]), np.ones(1), waits(1.0, np.inf), no_wait())
    assert float(delay.attainment(100.0)) == 0.0
    assert float(delay.quantile(0.9)) == np.inf
    assert float(delay.keeps(None, 10.0)) < 0


def test_without_waits_only_lengths_count() -> None:
    delay = Delay(np.array([0.1, 0.5, 2.0]), np.array([0.5, 0.4, 0.1]), no_wait(), no_wait())
    assert float(delay.attainment(0.5)) == pytest.approx(0.9)
    assert float(delay.keeps(0.9, 0.5)) >= 0
    assert float(delay.keeps(0.95, 0.5)) < 0
