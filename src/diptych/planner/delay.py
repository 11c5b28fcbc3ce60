"""A delay that passes two queues: the wait for a prefill worker, then the wait for the link, on top of what is sure.

Percentiles are taken of the sum over requests, never summed. Where the rate goes in steps, they are taken over all steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diptych.perf.estimate import Array
from diptych.perf.queueing import Wait
from diptych.planner.rushes import Steps


@dataclass(frozen=True, slots=True)
class Delay:
    """`sure` (..., K) seconds by length point with `weight` (K,), and two independent waits (...).

    With `steps`, the first axis of `sure` and of the waits is the step of the rate, and what comes out is over all requests.
    A share `late` (...) of them is held up by what a rush left, and waits as those of the last step do.
    """

    sure: Array
    weight: Array
    first: Wait
    second: Wait
    steps: Steps | None = None
    late: Any = 0.0

    @property
    def mean(self) -> Array:
        """Mean seconds, shape (...)."""
        return self._over(self.sure @ self.weight + self.first.mean + self.second.mean)

    @property
    def waits(self) -> tuple[Array, Array]:
        """Mean seconds of the first and of the second wait."""
        return self._over(self.first.mean), self._over(self.second.mean)

    def after(self, extra: Any) -> Delay:
        """The same with `extra` sure seconds, (..., K) or by step (..., 1)."""
        return replace(self, sure=self.sure + np.asarray(extra))

    def attainment(self, limit: Any, fits: Any = True) -> Array:
        """Share of requests within `limit` seconds, shape (...); none of those in a step that does not fit."""
        slack = np.asarray(limit, dtype=float)[..., None] - self.sure
        late = np.where(slack < 0, 1.0, both_exceed(_lift(self.first), _lift(self.second), np.maximum(slack, 0.0)))
        inside = np.where(fits, np.clip(1.0 - late @ self.weight, 0.0, 1.0), 0.0)
        whole = self._over(inside)
        return np.asarray(whole - self.late * (whole - inside[-1])) if np.any(self.late) else whole

    def quantile(self, q: float) -> Array:
        """Seconds that a share `q` of requests does not exceed; ∞ where a queue is."""
        reach = np.asarray(self.first.quantile((1 + q) / 2)) + np.asarray(self.second.quantile((1 + q) / 2))
        stable: Any = (
            np.isfinite(self.first.mean_if_waiting) & np.isfinite(self.second.mean_if_waiting) & np.isfinite(reach)
        )
        low = np.min(self.sure, axis=-1)
        high = np.max(self.sure, axis=-1) + 2 * np.where(stable, reach, 0.0) + 1e-12
        if self.steps is not None:
            stable, low, high = np.all(stable, axis=0), low.min(axis=0), high.max(axis=0)
        for _ in range(36):
            middle = (low + high) / 2
            met = self.attainment(middle) >= q - 1e-12
            low, high = np.where(met, low, middle), np.where(met, middle, high)
        return np.asarray(np.where(stable, high, np.inf))

    def statistic(self, q: float | None) -> Array:
        """A quantile, or the mean for None."""
        return self.mean if q is None else self.quantile(q)

    def keeps(self, q: float | None, limit: float, fits: Any = True) -> Array:
        """How far inside a promise: share within `limit` less `q`, or (limit − mean)/limit. Negative when broken.

        Steps that do not fit break a promise on the mean, and keep no request inside a percentile.
        """
        if q is None:
            kept = np.nan_to_num((limit - self.mean) / limit, neginf=-1.0)
            return np.where(self._over(np.asarray(fits, dtype=float)) > 1 - 1e-9, kept, -1.0)
        return self.attainment(limit, fits) - q + 1e-12

    def _over(self, values: Any) -> Array:
        values = np.asarray(values)
        return self.steps.mean(values) if self.steps is not None and values.ndim else values


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
