"""A worker whose kernels were profiled one by one: a step is the sum of its kernels, interpolated, and of what the host adds.

Profilers such as LLMServingSim's or Vidur's time each operator of one model on one accelerator over its tokens, and attention
over prompt tokens, their past, decoding sequences and their context. Nothing here is fitted: between the points lie straight
lines, beyond them the last ones go on and the result says that it is outside. Kernels are as fast as they were measured, so
`floor` is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.design.axes import Worker
from diptych.perf.estimate import Array, Basis, Timing

BAND = 0.05  # interpolation, and kernels that run after one another instead of alone


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Seconds over one size; both arrays of shape (n,), sizes rising."""

    size: Array
    seconds: Array

    def at(self, size: Any) -> Array:
        """Straight lines between the points and on beyond the last; before the first, that one."""
        right, along = _place(self.size, np.asarray(size, dtype=float))
        return np.asarray(self.seconds[right - 1] * (1 - along) + self.seconds[right] * along)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Seconds (n, m) over decoding sequences (n,) and the context tokens of each (m,)."""

    sequences: Array
    context: Array
    seconds: Array

    def at(self, sequences: Any, context: Any) -> Array:
        """Bilinear, and zero without sequences."""
        sequences, context = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (sequences, context)))
        (row, along), (column, across) = _place(self.sequences, sequences), _place(self.context, context)
        table = self.seconds
        left = table[row - 1, column - 1] * (1 - along) + table[row, column - 1] * along
        right = table[row - 1, column] * (1 - along) + table[row, column] * along
        return np.where(sequences > 0, left * (1 - across) + right * across, 0.0)


def _place(sizes: Array, at: Array) -> tuple[Any, Array]:
    """The points to the right of `at`, and how far along between it and the one before; before the first point, there."""
    right = np.clip(np.searchsorted(sizes, at), 1, len(sizes) - 1)
    return right, np.maximum((at - sizes[right - 1]) / (sizes[right] - sizes[right - 1]), 0.0)


@dataclass(frozen=True, eq=False)
class KernelTable:
    """A `PerfModel` of exactly the worker that was profiled; it does not look at the worker it is asked about.

    Seconds of the whole model, all layers: `dense` over the tokens of a step, `head` (output head and sampling) over its
    sequences, `prompts` over the pairs that prompt attention forms (n·(past + n/2)), `alone` for the attention of a decode batch
    by itself and `beside` for what it adds to a step with prompts, `host` per step.
    """

    dense: Line
    head: Line
    prompts: Line
    alone: Grid
    beside: Grid
    host: float = 0.0

    def prefill(self, worker: Worker, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        """Seconds of a step of `batch` prompts of `tokens` new tokens each."""
        tokens, past, batch = _arrays(tokens, past, batch)
        return self._timing(self._rows(tokens * batch, batch) + self._attention(tokens, past) * batch, tokens * batch)

    def decode(self, worker: Worker, batch: Any, context: Any) -> Timing:
        """Seconds of one token for each of `batch` sequences."""
        batch, context = _arrays(batch, context)
        return self._timing(self._rows(batch, batch) + self.alone.at(batch, context), batch, batch, context)

    def mixed(self, worker: Worker, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        """Seconds of a step of `tokens` prompt tokens beside `batch` decoding sequences."""
        tokens, past, batch, context = _arrays(tokens, past, batch, context)
        seconds = self._rows(tokens + batch, batch + 1) + self._attention(tokens, past) + self.beside.at(batch, context)
        return self._timing(seconds, tokens + batch, batch, context)

    def _rows(self, tokens: Array, sequences: Array) -> Array:
        return self.host + self.dense.at(tokens) + self.head.at(sequences)

    def _attention(self, tokens: Array, past: Array) -> Array:
        return self.prompts.at(tokens * (past + tokens / 2))

    def _timing(self, seconds: Array, tokens: Array, batch: Any = 0.0, context: Any = 0.0) -> Timing:
        grid = self.alone
        outside = (tokens > self.dense.size[-1]) | (batch > grid.sequences[-1]) | (context > grid.context[-1])
        return Timing(seconds, np.zeros_like(seconds), Basis.MEASURED, BAND, outside)


def _arrays(*values: Any) -> list[Array]:
    return [np.asarray(value, dtype=float) for value in np.broadcast_arrays(*values)]
