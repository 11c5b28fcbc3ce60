"""A worker known by a few coefficients: the closed form that DistServe fits to a profile (OSDI 2024, appendix A).

A step of prompts of n_i tokens takes p0 + p1·Σn_i + p2·Σn_i², a decode step of B sequences with S context tokens in all
d0 + d1·S + d2·B, with other coefficients from a batch on. A step with both takes the larger constant once. Seconds throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.design.axes import Worker
from diptych.perf.estimate import Array, Basis, Timing

Coefficients = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class AffineSteps:
    """A `PerfModel` of exactly the worker that was profiled; it does not look at the worker it is asked about.

    `large` holds from a batch of `large_from` sequences on. Where the two lines of decode do not meet, the step of a larger batch
    is never shorter than that of the largest small one.
    """

    prompts: Coefficients
    small: Coefficients
    large: Coefficients
    large_from: int
    band: float = 0.1

    def prefill(self, worker: Worker, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        """Seconds of a step of `batch` prompts; tokens before them add pairs, n·(n + 2·past)."""
        tokens, past, batch = _arrays(tokens, past, batch)
        return self._timing(self.prompts[0] + self._beyond(tokens, past) * batch)

    def decode(self, worker: Worker, batch: Any, context: Any) -> Timing:
        """Seconds of one token for each of `batch` sequences with mean `context` tokens."""
        batch, context = _arrays(batch, context)
        last = np.minimum(batch, self.large_from - 1)
        small, large = _line(self.small, last, context), _line(self.large, batch, context)
        return self._timing(np.where(batch < self.large_from, small, np.maximum(large, small)))

    def mixed(self, worker: Worker, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        """Seconds of a step of `tokens` prompt tokens beside `batch` decoding sequences."""
        tokens, past, batch, context = _arrays(tokens, past, batch, context)
        decode = self.decode(worker, batch, context).seconds
        return self._timing(decode + self._beyond(tokens, past) + max(self.prompts[0] - self.small[0], 0.0))

    def _beyond(self, tokens: Array, past: Array) -> Array:
        _, linear, square = self.prompts
        return np.asarray(linear * tokens + square * tokens * (tokens + 2 * past))

    def _timing(self, seconds: Array) -> Timing:
        return Timing(seconds, np.zeros_like(seconds), Basis.FITTED, self.band)


def _line(coefficients: Coefficients, batch: Array, context: Array) -> Array:
    constant, token, sequence = coefficients
    return np.asarray(constant + batch * (token * context + sequence))


def _arrays(*values: Any) -> list[Array]:
    return [np.asarray(value, dtype=float) for value in np.broadcast_arrays(*values)]
