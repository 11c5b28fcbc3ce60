"""A delay that passes two queues: the wait for a prefill worker, then the wait for the link, on top of what is sure.

Percentiles are taken of the sum over requests, never summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.perf.estimate import Array
from diptych.perf.queueing import Wait


@dataclass(frozen=True, slots=True)
class Delay:
    """`sure` (..., K) seconds by length point with `weight` (K,), and two independent waits (...)."""

    sure: Array
    weight: Array
    first: Wait
    second: Wait

    @property
    def mean(self) -> Array:
        """Mean seconds, shape (...)."""
        return np.asarray(self.sure @ self.weight + self.first.mean + self.second.mean)

    def attainment(self, limit: Any) -> Array:
        """Share of requests within `limit` seconds, shape (...)."""
        slack = np.asarray(limit, dtype=float)[..., None] - self.sure
        late = np.where(slack < 0, 1.0, both_exceed(_lift(self.first), _lift(self.second), np.maximum(slack, 0.0)))
        return np.asarray(np.clip(1.0 - late @ self.weight, 0.0, 1.0))

    def quantile(self, q: float) -> Array:
        """Seconds that a share `q` of requests does not exceed; ∞ where a queue is."""
        low = np.min(self.sure, axis=-1)
        reach = np.asarray(self.first.quantile((1 + q) / 2)) + np.asarray(self.second.quantile((1 + q) / 2))
        stable = np.isfinite(self.first.mean_if_waiting) & np.isfinite(self.second.mean_if_waiting) & np.isfinite(reach)
        high = np.max(self.sure, axis=-1) + 2 * np.where(stable, reach, 0.0) + 1e-12
        for _ in range(36):
            middle = (low + high) / 2
            met = self.attainment(middle) >= q - 1e-12
            low, high = np.where(met, low, middle), np.where(met, middle, high)
        return np.asarray(np.where(stable, high, np.inf))

    def statistic(self, q: float | None) -> Array:
        """A quantile, or the mean for None."""
        return self.mean if q is None else self.quantile(q)

    def keeps(self, q: float | None, limit: float) -> Array:
        """How far inside a promise: share within `limit` less `q`, or (limit − mean)/limit. Negative when broken."""
        if q is None:
            return np.nan_to_num((limit - self.mean) / limit, neginf=-1.0)
        return self.attainment(limit) - q + 1e-12


def both_exceed(first: Wait, second: Wait, t: Array) -> Array:
    """P(W₁ + W₂ > t) of independent waits, t ≥ 0: each is 0 or exponential, so their sum is hypoexponential when both wait.

    With tails e₁, e₂ and means w₁, w₂: p₁(1−p₂)e₁ + p₂(1−p₁)e₂ + p₁p₂·(w₁e₁ − w₂e₂)/(w₁ − w₂).
    """
    p1, p2 = (np.asarray(wait.prob, dtype=float) for wait in (first, second))
    stable = [np.isfinite(wait.mean_if_waiting) for wait in (first, second)]
    w1, w2 = (
        np.maximum(np.where(ok, wait.mean_if_waiting, 1.0), 1e-12)
        for ok, wait in zip(stable, (first, second), strict=True)
    )
    e1, e2 = np.exp(-t / w1), np.exp(-t / w2)
    gap = w1 - w2
    close = np.abs(gap) < 1e-6 * (w1 + w2)
    apart = (w1 * e1 - w2 * e2) / np.where(close, 1.0, gap)
    both = np.where(close, (1 + t / w1) * e1, apart)
    late = p1 * (1 - p2) * e1 + p2 * (1 - p1) * e2 + p1 * p2 * both
    return np.asarray(np.where((stable[0] | (p1 <= 0)) & (stable[1] | (p2 <= 0)), np.clip(late, 0.0, 1.0), 1.0))


def no_wait() -> Wait:
    """A queue that nobody stands in."""
    return Wait(np.zeros(()), np.zeros(()))


def _lift(wait: Wait) -> Wait:
    return Wait(np.asarray(wait.prob)[..., None], np.asarray(wait.mean_if_waiting)[..., None])
