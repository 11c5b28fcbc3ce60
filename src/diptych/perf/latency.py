"""A latency over requests: a sure part by length point, and an exponential wait that some of them pay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.perf.estimate import Array
from diptych.perf.queueing import Wait


@dataclass(frozen=True, slots=True)
class Latency:
    """`sure` (..., K) seconds of each length point with `weight` (K,), plus `wait` (...), the same for all points."""

    sure: Array
    weight: Array
    wait: Wait

    @property
    def mean(self) -> Array:
        """Mean seconds, shape (...)."""
        return np.asarray(self.sure @ self.weight) + self.wait.mean

    def attainment(self, limit: Any) -> Array:
        """Share of requests that finish within `limit` seconds, shape (...)."""
        slack = np.asarray(limit, dtype=float)[..., None] - self.sure
        wait = Wait(self.wait.prob[..., None], self.wait.mean_if_waiting[..., None])
        late = wait.exceeds(slack)
        return np.asarray(np.clip(1.0 - late @ self.weight, 0.0, 1.0))

    def quantile(self, q: float) -> Array:
        """Seconds that a share `q` of the requests does not exceed, shape (...); ∞ where the queue is."""
        low = np.min(self.sure, axis=-1)
        reach = np.asarray(self.wait.quantile(q + (1.0 - q) / 2))
        finite = np.isfinite(reach)
        # The worst point waiting at the (1+q)/2 quantile covers share q of all: (1+q)/2 of the slowest point's requests.
        high = np.max(self.sure, axis=-1) + np.where(finite, reach, 0.0)
        for _ in range(40):
            middle = (low + high) / 2
            met = self.attainment(middle) >= q - 1e-12
            low, high = np.where(met, low, middle), np.where(met, middle, high)
        return np.asarray(np.where(finite, high, np.inf))
