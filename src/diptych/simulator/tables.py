"""Step times of one worker as integer tables, asked of a `PerfModel` once.

Decode is a(B) + c(B)·S with B sequences and S tokens of context in all, piecewise in S where a model's windows make it so; a
prompt step is a table in its tokens with a slope per token pair of attention; a mixed step is their sum and what the two share
(weights read once), a table in (tokens, B). The shipped model has exactly this shape; `error` says how far another one is off.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

import numpy as np

from diptych.catalog.model import Attention
from diptych.design.axes import Worker
from diptych.perf.estimate import Array
from diptych.perf.model import PerfModel
from diptych.simulator.clock import NEVER, PS

Segment = tuple[int, int, int]  # (first S beyond it, a, c): the step takes a + c·S

_ROWS: Final = 64  # decode batches tabulated at once
_TOKENS: Final = 96  # prompt sizes asked for; between them straight lines
_PASTS = (0, 2048, 16384, 131072)
_FINE: Final = 1 << 20  # parts of a picosecond in which a slope is kept
_LIKE: Final = 1e-5  # segments whose slopes differ by less are one


class StepTable:
    """Picoseconds of one worker's steps."""

    def __init__(self, perf: PerfModel, worker: Worker, budget: int) -> None:
        self.perf, self.worker, self.budget = perf, worker, budget
        self._decode: list[tuple[Segment, ...]] = [()]
        self._knots = _knots(worker)
        self._coupling: dict[int, list[int]] = {}
        self._beyond: dict[int, int] = {}
        self._grid = _token_grid(budget)
        self._sizes = [int(n) for n in self._grid]
        self._alone, self._slope = self._prompt_tables()

    def segment(self, batch: int, context: int) -> Segment:
        """The segment of a step of `batch` sequences with `context` tokens in all."""
        while batch >= len(self._decode):
            self._tabulate()
        for segment in self._decode[batch]:
            if context < segment[0]:
                return segment
        raise AssertionError(f"no segment for {context} tokens of {batch} sequences")

    def decode_ps(self, batch: int, context: int) -> int:
        """One decode step of `batch` sequences with `context` tokens in all."""
        _, a, c = self.segment(batch, context)
        return a + c * context

    def prompt_ps(self, tokens: int, pairs: int) -> int:
        """One step of prompts: `tokens` new ones that attend to pairs/2 tokens (n·(2·past + n) each)."""
        extra = pairs - tokens * tokens
        if tokens > self.budget:  # one prompt that an engine doesn't cut
            return self._longer(tokens) + self._slope[self.budget] * extra // _FINE
        return self._alone[tokens] + self._slope[tokens] * extra // _FINE if extra else self._alone[tokens]

    def mixed_ps(self, tokens: int, pairs: int, batch: int, context: int) -> int:
        """A step of prompts beside a decode batch; never shorter than either alone."""
        prompt, decode = self.prompt_ps(tokens, pairs), self.decode_ps(batch, context)
        return max(prompt + decode + self._shared(tokens, batch), prompt, decode)

    def _longer(self, tokens: int) -> int:
        """A prompt above the budget in one step, asked of the model itself: there are few, and attention bends the line."""
        found = self._beyond.get(tokens)
        if found is None:
            seconds = float(self.perf.prefill(self.worker, tokens).seconds)
            found = self._beyond[tokens] = max(round(seconds * PS), self._alone[self.budget])
        return found

    # --- building ---------------------------------------------------------------------------------------------------

    def _tabulate(self) -> None:
        first = len(self._decode)
        batches = np.arange(first, first + _ROWS)
        seconds = self.perf.decode(self.worker, batches[:, None], self._knots[None, :]).seconds
        if first > 1:
            floor = np.array([self.decode_ps(first - 1, int(knot) * (first - 1)) for knot in self._knots]) / PS
            seconds = np.maximum(seconds, floor)
        seconds = np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=1)
        for batch, row in zip(batches, seconds, strict=True):
            self._decode.append(_segments(int(batch), self._knots, row))

    def _prompt_tables(self) -> tuple[list[int], list[int]]:
        """(ps of n tokens without past, ps/2²⁰ per doubled pair beyond n²), n from 0 to the budget."""
        grid, pasts = self._grid.astype(float), np.array(_PASTS, dtype=float)
        seconds = self.perf.prefill(self.worker, grid[:, None], pasts[None, :]).seconds
        alone = np.maximum.accumulate(seconds[:, 0])
        pairs = 2 * grid[:, None] * pasts[None, 1:]
        slope = np.sum((seconds[:, 1:] - alone[:, None]) * pairs, axis=1) / np.sum(pairs * pairs, axis=1)
        every = np.arange(self.budget + 1)
        times = np.rint(np.interp(every, grid, alone) * PS).astype(np.int64)
        slopes = np.rint(np.maximum(np.interp(every, grid, slope), 0.0) * PS * _FINE).astype(np.int64)
        return [int(t) for t in times], [int(s) for s in slopes]

    def _shared(self, tokens: int, batch: int) -> int:
        """What a mixed step saves against its two halves apart: usually negative."""
        row = self._coupling.get(batch)
        if row is None:
            row = self._coupling[batch] = self._couple(batch)
        grid = self._sizes
        at = min(max(bisect_right(grid, tokens), 1), len(grid) - 1)
        low, high = grid[at - 1], grid[at]
        return row[at - 1] + (row[at] - row[at - 1]) * (tokens - low) // (high - low)

    def _couple(self, batch: int) -> list[int]:
        context = 512.0
        together = self.perf.mixed(self.worker, self._grid, 0.0, float(batch), context).seconds
        apart = (
            self.perf.prefill(self.worker, self._grid).seconds + self.perf.decode(self.worker, batch, context).seconds
        )
        return [int(x) for x in np.rint((together - apart) * PS)]


def _token_grid(budget: int) -> Array:
    small = np.arange(1, min(17, budget + 1))
    return np.unique(np.concatenate([small, np.rint(np.geomspace(1, budget, _TOKENS)), [budget]])).astype(float)


def _knots(worker: Worker) -> Array:
    """Mean contexts at which the slope may change: windows and sparse top-k of the model, and a few between."""
    edges = {1.0, 1024.0, 8192.0, 32768.0, 131072.0, 1048576.0}
    for _, attention in worker.model.attention_groups():
        edges.update(float(edge) for edge in _edges(attention) if edge > 1)
    return np.array(sorted(edges))


def _edges(attention: Attention) -> list[Any]:
    return [edge for edge in (attention.window, attention.index_topk) if edge]


def _segments(batch: int, knots: Array, seconds: Array) -> tuple[Segment, ...]:
    """Straight lines through the knots, equal slopes joined; rounded down so that no step is shorter at a longer context."""
    totals = [int(knot) * batch for knot in knots]
    values = [round(float(value) * PS) for value in seconds]
    found: list[Segment] = []
    start = 0
    while start < len(totals) - 1:
        end = start + 1
        slope = (values[end] - values[start]) / (totals[end] - totals[start])
        while end + 1 < len(totals):
            further = (values[end + 1] - values[end]) / (totals[end + 1] - totals[end])
            if abs(further - slope) > _LIKE * max(abs(further), abs(slope)):
                break
            end += 1
        c = (values[end] - values[start]) // (totals[end] - totals[start])
        beyond = totals[end] if end < len(totals) - 1 else NEVER
        found.append((beyond, values[start] - c * totals[start], c))
        start = end
    return tuple(found)
