"""One stage alone: what a pool of equal workers keeps at a rate, and the fewest that keep the SLO with a free handoff.

Stage tables are built once per worker and asked many times; a stage knows nothing of prices or of the other side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.catalog.memory import MemoryTier, TierKind
from diptych.design.axes import Worker
from diptych.metrics.slo import SLO, Objective
from diptych.perf.decode_pool import DecodeState, normal_quantile
from diptych.perf.estimate import Array
from diptych.perf.memory import kv_capacity, kv_replication
from diptych.perf.model import PerfModel
from diptych.perf.pools import ColocatedPool, ColocatedState, DecodePool, PrefillPool
from diptych.planner.delay import Delay, no_wait
from diptych.planner.rushes import ANSWERS, PROMPTS, Steps
from diptych.planner.seen import Seen
from diptych.planner.size import fewest, fluid
from diptych.workload.lengths import Lengths

Margins = dict[str, Array]
"""How far inside each promise a fleet is, by name; any value below zero breaks it. All values shrink as load grows."""


@dataclass(frozen=True, eq=False)
class Load:
    """What a stage is judged under: the lengths, the SLO, the steps of the rate, the tiers beyond HBM.

    `quickest` bounds what the other stage does to a request's end-to-end time: seconds of the prompt by length point, (K,) or 0,
    and of a token.
    """

    lengths: Lengths
    slo: SLO
    steps: Steps
    tiers: Mapping[TierKind, MemoryTier] = field(default_factory=dict)
    quickest: tuple[Any, float] = (0.0, 0.0)
    wires: dict[tuple[object, ...], tuple[float, float, float]] = field(init=False, repr=False, default_factory=dict)
    """What a request puts on a path (`Meeting.wire`), by what decides it."""
    seen: dict[tuple[object, ...], Seen] = field(init=False, repr=False, default_factory=dict)
    """What was seen of two pools and the boundary between them (`Meeting.keeps`)."""

    @property
    def cv2(self) -> float:
        """Squared variation of the arrival gaps inside a step."""
        return self.steps.cv2

    def fetching(self, worker: Worker) -> Any:
        """Seconds to fetch the cached part of each length point from a worker's own slower tier, 0 from HBM."""
        tier = self.tiers.get(worker.residency)
        if worker.residency is TierKind.HBM or tier is None:
            return 0.0
        cached = self.lengths.cached
        size = worker.model.kv_bytes(cached, worker.precision.kv) * kv_replication(worker) / worker.accelerators
        return np.where(cached > 0, tier.latency + size / tier.read_bandwidth, 0.0)


def kept(margins: Margins) -> NDArray[np.bool_]:
    """Whether every promise holds, elementwise."""
    return np.asarray(np.logical_and.reduce(np.broadcast_arrays(*(margin >= 0 for margin in margins.values()))))


class PrefillStage:
    """A pool of prefill workers."""

    def __init__(self, perf: PerfModel, worker: Worker, load: Load) -> None:
        self.worker, self.load = worker, load
        self.pool = PrefillPool(perf, worker, load.lengths, load.fetching(worker))
        self.kv_capacity = kv_capacity(worker)

    @property
    def capacity(self) -> float:
        """Requests/s of one worker that never idles."""
        return self.pool.capacity

    def never_slower(self, other: PrefillStage) -> bool:
        """Whether a worker of this pool does whatever one of the other does, no later and in no less memory."""
        return self.kv_capacity >= other.kv_capacity and self.pool.never_slower(other.pool)

    def delay(self, rate: Any, workers: Any, extra: Any = 0.0, converting: float = 1.0) -> Delay:
        """Wait, prefill and `extra` seconds by length point; no link yet. Endless workers leave no wait.

        `rate` is that of every step (`Steps.at`); a worker that also converts is busy `converting` times as long.
        """
        steps, sure = self.load.steps, self.pool.service + np.asarray(extra)
        if np.all(np.isinf(workers)):
            sure = np.broadcast_to(sure, (*np.shape(rate), sure.shape[-1]))
            return Delay(sure, self.load.lengths.weight, no_wait(), no_wait(), steps)
        latency = self.pool.latency(rate, workers, extra, steps.cv2, steps.lasting, converting)
        busy = self.pool.utilisation(self._average(rate) * converting, workers)
        late = steps.held_up(PROMPTS, 1.0 / np.maximum(busy, 1e-12))
        return Delay(latency.sure, latency.weight, latency.wait, no_wait(), steps, late)

    def _average(self, rate: Any) -> Any:
        """The rate asked for, from that of every step."""
        return rate[0] / self.load.steps.factor(PROMPTS)[0]

    def keeps(self, rate: float, workers: Any) -> Any:
        """Whether a pool keeps every TTFT promise when the handoff is free."""
        rates, goals = self.load.steps.at(PROMPTS, rate, workers), self.load.slo.of("ttft")
        delay, busy = self.delay(rates, workers), self.pool.utilisation(rates, workers)[0] < 1
        kept = [delay.keeps(goal.quantile, goal.limit) >= 0 for goal in goals]
        return np.logical_and.reduce([busy, *kept, *self._in_time(delay)])

    def _in_time(self, delay: Delay) -> list[Any]:
        """Whether end-to-end promises hold when every answer comes as fast as any worker makes it."""
        longer = delay.after(answer_seconds(self.load, self.load.quickest[1]))
        return [longer.keeps(goal.quantile, goal.limit) >= 0 for goal in self.load.slo.of("e2e")]

    @cached_property
    def hopeless(self) -> bool:
        """Whether even an idle pool misses a promise."""
        alone = Delay(self.pool.service, self.load.lengths.weight, no_wait(), no_wait())
        late = any(bool(alone.keeps(goal.quantile, goal.limit) < 0) for goal in self.load.slo.of("ttft"))
        return late or not all(self._in_time(alone))

    def least(self, rate: float) -> int | None:
        """The fewest workers that keep every TTFT promise at `rate` when the handoff is free."""
        if self.hopeless:
            return None
        return fewest(lambda workers: self.keeps(rate, workers), fluid(rate, self.capacity))


class DecodeStage:
    """A pool of decode workers."""

    def __init__(self, perf: PerfModel, worker: Worker, load: Load) -> None:
        self.worker, self.load = worker, load
        self.pool = DecodePool(perf, worker, load.lengths)
        self.kv_capacity = self.pool.kv_capacity
        self._known: dict[tuple[float, float, int], DecodeState] = {}

    @property
    def capacity(self) -> float:
        """Requests/s of one worker whose memory is full."""
        return self.pool.capacity

    def never_slower(self, other: DecodeStage) -> bool:
        """Whether a worker of this pool does whatever one of the other does, no later and in no less memory."""
        return self.pool.never_slower(other.pool)

    def state(self, rate: Any, workers: Any) -> DecodeState:
        return self.pool.at(rate, workers, self.load.cv2)

    def balance(self, rate: float, workers: Any, axes: int = 0) -> DecodeState:
        """The state of every step, shape (R, 1, ...) with `axes` ones; remembered for single fleets: many meetings ask."""
        if np.ndim(workers):
            return self.state(self.load.steps.at(ANSWERS, rate, np.empty((1,) * axes), workers), workers)
        key = (rate, float(workers), axes)
        if key not in self._known:
            self._known[key] = self.state(self.load.steps.at(ANSWERS, rate, np.empty((1,) * axes)), workers)
        return self._known[key]

    def margins(self, rate: float, workers: Any, slower: Any = 1.0, reserved: Any = 0.0, axes: int = 0) -> Margins:
        """TPOT and memory; `slower` stretches every step (conversions), `reserved` bytes are held beside the live KV.

        Both may differ by step of the rate, shape (R, ...); `axes` is how many axes the counts of the whole fleet have.
        """
        return self.judged(self.balance(rate, workers, axes), workers, slower, reserved)[0]

    def judged(self, state: DecodeState, workers: Any, slower: Any, reserved: Any) -> tuple[Margins, NDArray[np.bool_]]:
        """The margins of a state, and in which steps everything fits, shape (R, ...)."""
        room = (self.kv_capacity - state.kv_bytes_p99 - reserved) / max(self.kv_capacity, 1.0)
        room = np.where(np.logical_or(state.feasible, room < 0), room, -1.0)
        margins: Margins = {"decode memory": room[0]}
        fits = room >= 0
        if self.worker.max_batch:
            left = seats_left(self.worker.max_batch, state.batch, workers, self.load.cv2)
            margins["decode batch limit"], fits = left[0], fits & (left >= 0)
        for goal in self.load.slo.of("tpot"):
            name = f"tpot_{statistic(goal.quantile)}"
            if goal.quantile is None:
                mean = np.where(fits, state.tpot_mean * slower, np.inf)
                margins[name] = np.maximum((goal.limit - self.load.steps.mean(mean)) / goal.limit, -1.0)
            else:
                within = np.where(fits, self.within(state, workers, goal.limit, slower), 0.0)
                margins[name] = self.load.steps.mean(within) - max(goal.quantile, 0.5) + 1e-12
        return margins, fits

    def seats(self, rate: float, workers: float) -> float:
        """Sequences to admit per worker at `rate` requests/s: the batch with its swing, as far as memory holds it."""
        return seats(float(self.state(rate, workers).batch), self.load.cv2, self.pool.most)

    def within(self, state: DecodeState, workers: Any, seconds: Any, slower: Any = 1.0) -> Array:
        """Share of requests of each step whose TPOT does not exceed `seconds`."""
        batch = self.pool.batch_within(np.asarray(seconds) / slower)
        share = swing_share(batch - 1.0 - state.batch, state.batch, workers, self.load.cv2)
        return np.where(state.tpot_mean * slower <= np.asarray(seconds) * (1 + 1e-9), share, 0.0)

    def tpot(self, rate: float, workers: Any, q: float | None, slower: Any = 1.0) -> float:
        """TPOT over all requests (None for the mean) of one fleet whose steps are `slower`, a value or one for each step."""
        state, steps = self.balance(rate, workers), self.load.steps
        if q is None:
            return float(steps.mean(state.tpot_mean * slower))
        own = self.pool.tpot(steps.at(ANSWERS, rate), workers, q, self.load.cv2) * slower
        return over_steps(steps, own, lambda seconds: self.within(state, workers, seconds, slower), q)

    def least(self, rate: float) -> int | None:
        """The fewest workers that keep every TPOT promise at `rate` and hold the KV."""
        if self.hopeless:
            return None
        return fewest(lambda workers: self._keeps(rate, workers), fluid(rate, self.capacity))

    def _keeps(self, rate: float, workers: Any) -> Any:
        state = self.balance(rate, workers)
        margins, fits = self.judged(state, workers, 1.0, 0.0)
        return np.logical_and.reduce([kept(margins), *self._in_time(state.tpot_mean, self.load.steps, fits)])

    def _in_time(self, tpot: Any, steps: Steps | None = None, fits: Any = True) -> list[Any]:
        """Whether end-to-end promises hold when every prompt is computed as fast as any worker does it, and nothing waits."""
        sure = self.load.quickest[0] + answer_seconds(self.load, tpot)
        whole = Delay(sure, self.load.lengths.weight, no_wait(), no_wait(), steps)
        return [whole.keeps(goal.quantile, goal.limit, fits) >= 0 for goal in self.load.slo.of("e2e")]

    @cached_property
    def hopeless(self) -> bool:
        """Whether one lone sequence already misses a promise, or does not fit."""
        lone = float(self.pool.step(1.0))
        slow = any(lone > goal.limit for goal in self.load.slo.of("tpot")) or not all(self._in_time(lone))
        return self.capacity <= 0 or slow


class ColocatedStage:
    """A pool of workers that do both, prompts in chunks between or beside decode steps."""

    def __init__(self, perf: PerfModel, worker: Worker, load: Load) -> None:
        self.worker, self.load = worker, load
        self.pool = ColocatedPool(perf, worker, load.lengths)
        self.kv_capacity = kv_capacity(worker)
        self.prompts = self.pool.prompt_share

    @property
    def capacity(self) -> float:
        return self.pool.capacity

    def state(self, rate: Any, workers: Any) -> ColocatedState:
        """The balance at `rate`, a number or that of every step."""
        return self.pool.at(rate, workers, self.load.cv2, self.load.steps.lasting)

    def rates(self, rate: Any, *counts: Any) -> Array:
        """The rate of every step: of the mix of prompts and answers that these workers spend their time on."""
        return self.load.steps.at(self.prompts, rate, *counts)

    def delay(self, rate: float, workers: Any) -> Delay:
        """TTFT over all requests."""
        return self._delay(self.state(self.rates(rate, workers), workers))

    def _delay(self, state: ColocatedState) -> Delay:
        return Delay(state.ttft.sure, state.ttft.weight, state.ttft.wait, no_wait(), self.load.steps)

    def seats(self, rate: float, workers: float) -> float:
        """Sequences to admit per worker at `rate` requests/s: the batch with its swing, as far as memory holds it."""
        return seats(float(self.state(rate, workers).batch), self.load.cv2, self.pool.most)

    def within(self, state: ColocatedState, rate: Any, workers: Any, seconds: Any) -> Array:
        """Share of requests of each step, at its `rate`, whose TPOT does not exceed `seconds`."""
        most = self.pool.batch_within(seconds, np.broadcast_to(rate / workers, state.batch.shape))
        share = swing_share(most - state.seen, state.seen - 1.0, workers, self.load.cv2)
        return np.where(state.tpot_mean <= np.asarray(seconds) * (1 + 1e-9), share, 0.0)

    def tpot(self, rate: float, workers: Any, q: float | None) -> float:
        """TPOT over all requests (None for the mean) of one fleet."""
        steps = self.load.steps
        rates = self.rates(rate)
        state = self.state(rates, workers)
        if q is None:
            return float(steps.mean(state.tpot_mean))
        own = self.pool.tpot(rates, workers, q, self.load.cv2)
        return over_steps(steps, own, lambda seconds: self.within(state, rates, workers, seconds), q)

    def margins(self, rate: float, workers: Any) -> Margins:
        slo, rates = self.load.slo, self.rates(rate, workers)
        state = self.state(rates, workers)
        room = (self.kv_capacity - state.kv_bytes_p99) / max(self.kv_capacity, 1.0)
        room = np.where(np.logical_or(state.feasible, room < 0), room, -1.0)
        margins: Margins = {"memory": room[0]}
        fits = room >= 0
        if self.worker.max_batch:
            left = seats_left(self.worker.max_batch, state.batch, workers, self.load.cv2)
            margins["batch limit"], fits = left[0], fits & (left >= 0)
        delay = self._delay(state)
        for goal in slo.of("ttft"):
            margins[f"ttft_{statistic(goal.quantile)}"] = delay.keeps(goal.quantile, goal.limit, fits)
        for goal in slo.of("tpot"):
            margins[f"tpot_{statistic(goal.quantile)}"] = self.tpot_margin(state, rates, workers, goal, fits)
        if slo.of("e2e"):
            longer = delay.after(answer_seconds(self.load, state.tpot_mean))
            for goal in slo.of("e2e"):
                margins[f"e2e_{statistic(goal.quantile)}"] = longer.keeps(goal.quantile, goal.limit, fits)
        return margins

    def tpot_margin(self, state: ColocatedState, rates: Any, workers: Any, goal: Objective, fits: Any) -> Array:
        """How far inside a promise on TPOT."""
        steps = self.load.steps
        if goal.quantile is None:
            mean = steps.mean(np.where(fits, state.tpot_mean, np.inf))
            return np.asarray(np.maximum((goal.limit - mean) / goal.limit, -1.0))
        within = np.where(fits, self.within(state, rates, workers, goal.limit), 0.0)
        return np.asarray(steps.mean(within) - max(goal.quantile, 0.5) + 1e-12)

    def least(self, rate: float) -> int | None:
        """The fewest workers that keep the SLO at `rate`."""
        if self.capacity <= 0:
            return None
        start = fluid(rate, self.capacity)
        alone = self.margins(1e-9, 1.0)
        if not bool(np.all(kept(alone))):
            return None
        return fewest(lambda workers: kept(self.margins(rate, workers)), start)


def seats_left(limit: int, batch: Any, workers: Any, cv2: float) -> Array:
    """Share of a pinned batch limit left at the p99 of the batch's Poisson swing, as KV is judged: nobody waits for a seat."""
    swing = np.sqrt(np.asarray(batch) * max(cv2, 1.0) / np.asarray(workers, dtype=float))
    return np.asarray((limit - batch - normal_quantile(0.99) * swing) / limit)


def seats(batch: float, cv2: float, most: float) -> float:
    """The p99 of a worker's batch, requests spread by chance, up to the `most` that memory holds."""
    return min(1 + batch + normal_quantile(0.99) * math.sqrt(batch * max(cv2, 1.0)), most)


def swing_share(slack: Any, batch: Any, workers: Any, cv2: float) -> Array:
    """Share of the time at which a Poisson swing of the batch stays within `slack` sequences of its mean."""
    swing = np.sqrt(np.asarray(batch) * max(cv2, 1.0) / np.asarray(workers, dtype=float))
    still = np.where(np.asarray(slack) >= 0, np.inf, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation = np.where(swing > 0, np.asarray(slack) / swing, still)
    return np.asarray(_below(deviation / -math.sqrt(2)), dtype=float) / 2


_below = np.frompyfunc(math.erfc, 1, 1)


def over_steps(steps: Steps, own: Array, within: Callable[[float], Array], q: float) -> float:
    """The value that a share `q` of all requests does not exceed, from every step's `own` and the share `within` a value."""
    used = np.asarray(own)[steps.share > 0]
    low, high = float(used.min()), float(used.max())
    for _ in range(40 if low < high else 0):
        middle = (low + high) / 2
        met = float(steps.mean(within(middle))) >= max(q, 0.5) - 1e-12
        low, high = (low, middle) if met else (middle, high)
    return high


def answer_seconds(load: Load, tpot: Any) -> Array:
    """Seconds from the first token to the last by length point, shape (..., K)."""
    return np.asarray(np.asarray(tpot)[..., None] * np.maximum(load.lengths.osl - 1.0, 0.0))


def statistic(q: float | None) -> str:
    """'p90', or 'mean' for None."""
    return "mean" if q is None else f"p{q * 100:g}"
