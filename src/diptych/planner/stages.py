"""One stage alone: what a pool of equal workers keeps at a rate, and the fewest that keep the SLO with a free handoff.

Stage tables are built once per worker and asked many times; a stage knows nothing of prices or of the other side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.design.axes import Worker
from diptych.metrics.slo import SLO
from diptych.perf.decode_pool import DecodeState
from diptych.perf.estimate import Array
from diptych.perf.memory import kv_capacity
from diptych.perf.model import PerfModel
from diptych.perf.pools import ColocatedPool, DecodePool, PrefillPool
from diptych.planner.delay import Delay, no_wait
from diptych.planner.size import fewest, fluid
from diptych.workload.lengths import Lengths

Margins = dict[str, Array]
"""How far inside each promise a fleet is, by name; any value below zero breaks it. All values shrink as load grows."""


@dataclass(frozen=True, eq=False)
class Load:
    """What a stage is judged under: the lengths, the SLO, the squared variation of the arrival gaps."""

    lengths: Lengths
    slo: SLO
    cv2: float


def kept(margins: Margins) -> NDArray[np.bool_]:
    """Whether every promise holds, elementwise."""
    return np.asarray(np.logical_and.reduce(np.broadcast_arrays(*(margin >= 0 for margin in margins.values()))))


class PrefillStage:
    """A pool of prefill workers."""

    def __init__(self, perf: PerfModel, worker: Worker, load: Load) -> None:
        self.worker, self.load = worker, load
        self.pool = PrefillPool(perf, worker, load.lengths)
        self.kv_capacity = kv_capacity(worker)

    @property
    def capacity(self) -> float:
        """Requests/s of one worker that never idles."""
        return self.pool.capacity

    def delay(self, rate: Any, workers: Any, extra: Any = 0.0) -> Delay:
        """Wait, prefill and `extra` seconds by length point; no link yet. Endless workers leave no wait."""
        if np.all(np.isinf(workers)):
            return Delay(self.pool.service + np.asarray(extra), self.load.lengths.weight, no_wait(), no_wait())
        latency = self.pool.latency(rate, workers, extra, self.load.cv2)
        return Delay(latency.sure, latency.weight, latency.wait, no_wait())

    @cached_property
    def hopeless(self) -> bool:
        """Whether even an idle pool misses a TTFT promise."""
        alone = Delay(self.pool.service, self.load.lengths.weight, no_wait(), no_wait())
        return any(bool(alone.keeps(goal.quantile, goal.limit) < 0) for goal in self.load.slo.of("ttft"))

    def least(self, rate: float) -> int | None:
        """The fewest workers that keep every TTFT promise at `rate` when the handoff is free."""
        if self.hopeless:
            return None

        def keeps(workers: Array) -> Any:
            delay = self.delay(rate, workers)
            busy = self.pool.utilisation(rate, workers) < 1
            return np.logical_and.reduce(
                [busy, *(delay.keeps(goal.quantile, goal.limit) >= 0 for goal in self.load.slo.of("ttft"))]
            )

        return fewest(keeps, fluid(rate, self.capacity))


class DecodeStage:
    """A pool of decode workers."""

    def __init__(self, perf: PerfModel, worker: Worker, load: Load) -> None:
        self.worker, self.load = worker, load
        self.pool = DecodePool(perf, worker, load.lengths)
        self.kv_capacity = self.pool.kv_capacity
        self._known: dict[tuple[float, float], tuple[DecodeState, tuple[Array, ...]]] = {}

    @property
    def capacity(self) -> float:
        """Requests/s of one worker whose memory is full."""
        return self.pool.capacity

    def state(self, rate: Any, workers: Any) -> DecodeState:
        return self.pool.at(rate, workers, self.load.cv2)

    def balance(self, rate: Any, workers: Any) -> tuple[DecodeState, tuple[Array, ...]]:
        """The state and the TPOT of each objective, remembered for single fleets: many meetings ask for the same."""
        if np.ndim(rate) or np.ndim(workers):
            return self._balance(rate, workers)
        key = (float(rate), float(workers))
        if key not in self._known:
            self._known[key] = self._balance(*key)
        return self._known[key]

    def _balance(self, rate: Any, workers: Any) -> tuple[DecodeState, tuple[Array, ...]]:
        goals = self.load.slo.of("tpot")
        return self.state(rate, workers), tuple(self.tpot(rate, workers, goal.quantile) for goal in goals)

    def margins(self, rate: Any, workers: Any, slower: Any = 1.0, reserved: Any = 0.0) -> Margins:
        """TPOT and memory; `slower` stretches every step (conversions), `reserved` bytes are held beside the live KV."""
        state, tpots = self.balance(rate, workers)
        margins = {
            f"tpot_{statistic(goal.quantile)}": np.asarray((goal.limit - tpot * slower) / goal.limit)
            for goal, tpot in zip(self.load.slo.of("tpot"), tpots, strict=True)
        }
        room = (self.kv_capacity - state.kv_bytes_p99 - reserved) / max(self.kv_capacity, 1.0)
        margins["decode memory"] = np.where(np.logical_or(state.feasible, room < 0), room, -1.0)
        return margins

    def tpot(self, rate: Any, workers: Any, q: float | None) -> Array:
        return self.pool.tpot(rate, workers, q, self.load.cv2)

    def least(self, rate: float) -> int | None:
        """The fewest workers that keep every TPOT promise at `rate` and hold the KV."""
        if self.hopeless:
            return None
        return fewest(lambda workers: kept(self.margins(rate, workers)), fluid(rate, self.capacity))

    @cached_property
    def hopeless(self) -> bool:
        """Whether one lone sequence already misses a TPOT promise, or does not fit."""
        lone = float(self.pool.step(1.0))
        return self.capacity <= 0 or any(lone > goal.limit for goal in self.load.slo.of("tpot"))


class ColocatedStage:
    """A pool of workers that do both, prompts in chunks between or beside decode steps."""

    def __init__(self, perf: PerfModel, worker: Worker, load: Load) -> None:
        self.worker, self.load = worker, load
        self.pool = ColocatedPool(perf, worker, load.lengths)
        self.kv_capacity = kv_capacity(worker)

    @property
    def capacity(self) -> float:
        return self.pool.capacity

    def delay(self, rate: Any, workers: Any, extra: Any = 0.0) -> Delay:
        latency = self.pool.at(rate, workers, self.load.cv2).ttft
        return Delay(latency.sure + extra, latency.weight, latency.wait, no_wait())

    def tpot(self, rate: Any, workers: Any, q: float | None) -> Array:
        return self.pool.tpot(rate, workers, q, self.load.cv2)

    def margins(self, rate: Any, workers: Any) -> Margins:
        state = self.pool.at(rate, workers, self.load.cv2)
        delay = Delay(state.ttft.sure, state.ttft.weight, state.ttft.wait, no_wait())
        margins = {f"ttft_{statistic(g.quantile)}": delay.keeps(g.quantile, g.limit) for g in self.load.slo.of("ttft")}
        for goal in self.load.slo.of("tpot"):
            tpot = self.tpot(rate, workers, goal.quantile)
            margins[f"tpot_{statistic(goal.quantile)}"] = (goal.limit - tpot) / goal.limit
        for goal in self.load.slo.of("e2e"):
            longer = Delay(
                delay.sure + answer_seconds(self.load, state.tpot_mean), delay.weight, delay.first, delay.second
            )
            margins[f"e2e_{statistic(goal.quantile)}"] = longer.keeps(goal.quantile, goal.limit)
        room = (self.kv_capacity - state.kv_bytes_p99) / max(self.kv_capacity, 1.0)
        margins["memory"] = np.where(np.logical_or(state.feasible, room < 0), room, -1.0)
        return margins

    def least(self, rate: float) -> int | None:
        """The fewest workers that keep the SLO at `rate`."""
        if self.capacity <= 0:
            return None
        start = fluid(rate, self.capacity)
        alone = self.margins(1e-9, 1.0)
        if not bool(np.all(kept(alone))):
            return None
        return fewest(lambda workers: kept(self.margins(rate, workers)), start)


def answer_seconds(load: Load, tpot: Any) -> Array:
    """Seconds from the first token to the last by length point, shape (..., K)."""
    return np.asarray(np.asarray(tpot)[..., None] * np.maximum(load.lengths.osl - 1.0, 0.0))


def statistic(q: float | None) -> str:
    """'p90', or 'mean' for None."""
    return "mean" if q is None else f"p{q * 100:g}"
