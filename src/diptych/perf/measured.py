"""A worker that was measured: its own table instead of a model of its kernels.

For one worker whose prompt and token times are known at some sizes (Splitwise's published table, one's own load test), prefill
interpolates the table and decode is a + b·B + c·S with S the context tokens of all B sequences (DistServe, OSDI 2024, App. A).
Both forms cannot fall as work grows. The basis is MEASURED inside the sizes seen; outside them the result says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.design.axes import Worker
from diptych.perf.estimate import Array, Basis, Timing


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run: `batch` prompts of `prompt` tokens took `prefill` seconds together, then `output` tokens each `step` seconds."""

    prompt: float
    batch: float
    output: float
    prefill: float
    step: float


@dataclass(frozen=True)
class MeasuredTable:
    """A `PerfModel` of exactly the worker that was measured; it does not look at the worker it is asked about.

    `decode_fit` holds (a, b, c) in seconds. Prefill at `tokens` (ascending) takes `alone` seconds for a single prompt and
    `together` seconds for several prompts of as many tokens in all.
    """

    decode_fit: tuple[float, float, float]
    alone: tuple[Array, Array]
    together: tuple[Array, Array]
    most_batch: float
    most_context: float

    @classmethod
    def fit(cls, runs: Iterable[Measurement]) -> MeasuredTable:
        """The table of some runs: medians of repeated prefill points, relative least squares for decode."""
        runs = list(runs)
        batch = np.array([run.batch for run in runs])
        context = np.array([run.prompt + run.output / 2.0 for run in runs])
        step = np.array([run.step for run in runs])
        single = [(run.prompt, run.prefill) for run in runs if run.batch <= 1]
        several = [(run.prompt * run.batch, run.prefill) for run in runs if run.batch > 1]
        return cls(
            _affine(batch, batch * context, step),
            _medians(single or several),
            _medians(several or single),
            float(batch.max()),
            float(context.max()),
        )

    def prefill(self, worker: Worker, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        """Seconds of `batch` prompts together; cached tokens are not in such tables, so only new ones count."""
        tokens, past, batch = (np.asarray(value, dtype=float) for value in np.broadcast_arrays(tokens, past, batch))
        seconds = np.where(batch > 1, _between(tokens * batch, *self.together), _between(tokens, *self.alone))
        seen = np.where(batch > 1, self.together[0][-1], self.alone[0][-1])
        outside = (tokens * batch > seen) | (past > 0)
        return Timing(seconds, np.zeros_like(seconds), Basis.MEASURED, 0.05, outside)

    def decode(self, worker: Worker, batch: Any, context: Any) -> Timing:
        """Seconds of one token for each of `batch` sequences."""
        batch, context = (np.asarray(value, dtype=float) for value in np.broadcast_arrays(batch, context))
        a, b, c = self.decode_fit
        seconds = a + b * batch + c * batch * context
        outside = (batch > self.most_batch) | (context > self.most_context)
        return Timing(seconds, np.zeros_like(seconds), Basis.MEASURED, 0.05, outside)

    def mixed(self, worker: Worker, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        """Not measured: the prompt's time beside what the batch adds to an empty decode step."""
        prompt, beside = self.prefill(worker, tokens, past), self.decode(worker, batch, context)
        seconds = np.where(np.asarray(tokens) > 0, prompt.seconds + beside.seconds - self.decode_fit[0], beside.seconds)
        return Timing(seconds, np.zeros_like(seconds), Basis.FITTED, 0.2, prompt.outside | beside.outside)


def _affine(batch: Array, held: Array, step: Array) -> tuple[float, float, float]:
    """Non-negative (a, b, c) of a + b·batch + c·held with the least relative error; terms that would be negative are dropped."""
    columns = np.stack([np.ones_like(batch), batch, held], axis=1) / step[:, None]
    kept = [0, 1, 2]
    while True:
        solution, *_ = np.linalg.lstsq(columns[:, kept], np.ones_like(step), rcond=None)
        if np.all(solution >= 0) or len(kept) == 1:
            break
        kept.pop(int(np.argmin(solution)))
    full = np.zeros(3)
    full[kept] = np.maximum(solution, 0.0)
    return float(full[0]), float(full[1]), float(full[2])


def _medians(points: Iterable[tuple[float, float]]) -> tuple[Array, Array]:
    """Sizes and median seconds, ascending in both."""
    by_size: dict[float, list[float]] = {}
    for size, seconds in points:
        by_size.setdefault(size, []).append(seconds)
    sizes = np.array(sorted(by_size))
    return sizes, np.maximum.accumulate(np.array([float(np.median(by_size[size])) for size in sizes]))


def _between(size: Any, sizes: Array, seconds: Array) -> Array:
    """Linear in log size and log seconds inside the table; the last slope (at least proportional) beyond it."""
    size = np.maximum(np.asarray(size, dtype=float), 1e-9)
    inside = np.exp(np.interp(np.log(size), np.log(sizes), np.log(seconds)))
    beyond = seconds[-1] * size / sizes[-1]
    return np.asarray(np.where(size > sizes[-1], beyond, inside), dtype=float)
