"""Workers known by a probe of themselves: their own steps at some sizes, lines between them, and what was held out to see how far
those lines are off.

A prompt of n tokens takes what was measured at the sizes around n, straight between them; tokens that are in KV already add
k·n·past. A decode step of B sequences with S tokens of context in all takes a(B) + c·S, with a(B) straight between the batches
that were measured. k and c are fitted by relative least squares. A step with both takes their sum, as an engine that computes one
after the other does. Seconds throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.design.axes import Worker
from diptych.perf.estimate import Array, Basis, Timing

LEAST_BAND = 0.02
"""A probe is never better than this: two of the same machine differ by as much."""


@dataclass(frozen=True, slots=True)
class PromptStep:
    """`tokens` of a prompt after `past` that were in KV took `seconds`. `held` out of the fit, it only checks it."""

    tokens: float
    past: float
    seconds: float
    held: bool = False


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """A token for each of `batch` sequences with a mean of `context` tokens took `seconds`."""

    batch: float
    context: float
    seconds: float
    held: bool = False


@dataclass(frozen=True)
class Prompts:
    """Seconds of prompts: `sizes` ascending with what they took, and what a pair of a token and one before it adds."""

    sizes: Array
    seconds: Array
    pair: float
    band: float

    @classmethod
    def fit(cls, steps: Sequence[PromptStep]) -> Prompts:
        """The line through the points without a past, and the slope over those with one. At least one point has none."""
        plain = [step for step in steps if not step.past and not step.held]
        sizes, seconds = _medians((step.tokens, step.seconds) for step in plain)
        bare = cls(sizes, seconds, 0.0, 0.0)
        after = [step for step in steps if step.past and not step.held]
        pairs = np.array([step.tokens * step.past for step in after])
        more = np.array([step.seconds - float(bare.at(step.tokens, 0.0)) for step in after])
        pair = max(_slope(pairs, more, np.array([step.seconds for step in after])), 0.0) if after else 0.0
        fitted = cls(sizes, seconds, pair, 0.0)
        errors = [abs(float(fitted.at(each.tokens, each.past)) / each.seconds - 1) for each in steps]
        return cls(sizes, seconds, pair, max([LEAST_BAND, *errors]))

    def at(self, tokens: Any, past: Any) -> Array:
        """Seconds of `tokens` after `past`; below and beyond the sizes measured the nearest line goes on."""
        tokens, past = np.asarray(tokens, dtype=float), np.asarray(past, dtype=float)
        return np.asarray(_line(tokens, self.sizes, self.seconds) + self.pair * tokens * past)


@dataclass(frozen=True)
class Decodes:
    """Seconds of decode steps: `batches` ascending with their a(B), and c of a token of context."""

    batches: Array
    seconds: Array
    token: float
    most_context: float
    band: float

    @classmethod
    def fit(cls, steps: Sequence[DecodeStep]) -> Decodes:
        """c from batches measured at more than one context, then a(B) at each."""
        used = [step for step in steps if not step.held]
        token = max(_within_batches(used), 0.0)
        batches, seconds = _medians((step.batch, step.seconds - token * step.batch * step.context) for step in used)
        fitted = cls(batches, np.maximum(seconds, 0.0), token, max(step.context for step in used), 0.0)
        errors = [abs(float(fitted.at(each.batch, each.context)) / each.seconds - 1) for each in steps]
        return cls(batches, fitted.seconds, token, fitted.most_context, max([LEAST_BAND, *errors]))

    def at(self, batch: Any, context: Any) -> Array:
        """Seconds of a step of `batch` sequences with a mean of `context` tokens."""
        batch, context = np.asarray(batch, dtype=float), np.asarray(context, dtype=float)
        return np.asarray(_line(batch, self.batches, self.seconds) + self.token * batch * context)


@dataclass(frozen=True)
class Steps:
    """What one kind of worker was seen to do; a role that never does one of the two has none of it."""

    prompts: Prompts | None = None
    decodes: Decodes | None = None

    def beside(self, other: Steps) -> Steps:
        """These, with the other's where there are none here."""
        return Steps(self.prompts or other.prompts, self.decodes or other.decodes)


@dataclass(frozen=True, eq=False)
class Probed:
    """A `PerfModel` of exactly the workers that were probed."""

    steps: Mapping[Worker, Steps]

    def prefill(self, worker: Worker, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        """Seconds of a step of `batch` prompts: as of one of as many tokens, less the pairs that it would have more."""
        prompts = self._prompts(worker)
        tokens, past, batch = _arrays(tokens, past, batch)
        seconds = prompts.at(tokens * batch, past)
        alone = prompts.at(tokens, past)
        seconds = np.maximum(seconds - prompts.pair * tokens**2 * batch * (batch - 1) / 2, alone)
        outside = tokens * batch > prompts.sizes[-1]
        return Timing(seconds, np.zeros_like(seconds), Basis.MEASURED, prompts.band, outside)

    def decode(self, worker: Worker, batch: Any, context: Any) -> Timing:
        """Seconds of one token for each of `batch` sequences."""
        decodes = self._decodes(worker)
        batch, context = _arrays(batch, context)
        seconds = decodes.at(batch, context)
        outside = (batch > decodes.batches[-1]) | (context > 2 * decodes.most_context)
        return Timing(seconds, np.zeros_like(seconds), Basis.MEASURED, decodes.band, outside)

    def mixed(self, worker: Worker, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        """One after the other."""
        prompt, beside = self.prefill(worker, tokens, past), self.decode(worker, batch, context)
        seconds = np.where(np.asarray(tokens) > 0, prompt.seconds + beside.seconds, beside.seconds)
        band = max(prompt.band, beside.band)
        return Timing(seconds, np.zeros_like(seconds), Basis.MEASURED, band, prompt.outside | beside.outside)

    def _prompts(self, worker: Worker) -> Prompts:
        """Its own, or those of the worker that has some: prompts of a decode worker that computes none of its own accord."""
        found = self.steps[worker].prompts
        return found or next(each.prompts for each in self.steps.values() if each.prompts)

    def _decodes(self, worker: Worker) -> Decodes:
        found = self.steps[worker].decodes
        return found or next(each.decodes for each in self.steps.values() if each.decodes)


def affine(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Non-negative (a, b) of a + b·x with the least squared error; one point, or one that falls, gives a constant."""
    x, y = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    spread = x - x.mean()
    b = float(spread @ y) / float(spread @ spread) if np.any(spread) else 0.0
    a = float(y.mean() - b * x.mean())
    if b <= 0:
        return float(y.mean()), 0.0
    return (a, b) if a >= 0 else (0.0, _slope(x, y, np.ones_like(y)))


def _within_batches(steps: Sequence[DecodeStep]) -> float:
    """The slope over context tokens of steps of equal batches: each batch has a constant of its own."""
    x, y, weight = [], [], []
    for batch in {step.batch for step in steps}:
        mine = [step for step in steps if step.batch == batch]
        held = np.array([step.batch * step.context for step in mine])
        took = np.array([step.seconds for step in mine])
        x += (held - held.mean()).tolist()
        y += (took - took.mean()).tolist()
        weight += took.tolist()
    return _slope(np.array(x), np.array(y), np.array(weight))


def _slope(x: Array, y: Array, size: Array) -> float:
    """b of b·x nearest to y, errors relative to `size`."""
    x, y = x / size, y / size
    total = float(x @ x)
    return float(x @ y) / total if total else 0.0


def _medians(points: Iterable[tuple[float, float]]) -> tuple[Array, Array]:
    """Sizes ascending, and what each took: the median, and where a larger one took less the mean of both (isotonic)."""
    by_size: dict[float, list[float]] = {}
    for size, seconds in points:
        by_size.setdefault(float(size), []).append(seconds)
    levels: list[tuple[float, int]] = []
    for size in sorted(by_size):
        level, count = float(np.median(by_size[size])), 1
        while levels and levels[-1][0] > level:
            before, many = levels.pop()
            level, count = (before * many + level * count) / (many + count), many + count
        levels.append((level, count))
    return np.array(sorted(by_size)), np.array([level for level, count in levels for _ in range(count)])


def _line(at: Array, sizes: Array, seconds: Array) -> Array:
    """Straight between points; below the first one as at it, beyond the last one the last slope goes on."""
    inside = np.interp(at, sizes, seconds)
    if len(sizes) < 2:
        return np.asarray(np.where(at > sizes[-1], seconds[-1] * at / sizes[-1], inside))
    slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    return np.asarray(np.where(at > sizes[-1], seconds[-1] + slope * (at - sizes[-1]), inside))


def _arrays(*values: Any) -> list[Array]:
    return [np.asarray(value, dtype=float) for value in np.broadcast_arrays(*values)]
