"""A pool of decode workers: what batch a rate settles at, and what a token then costs."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from diptych.design.axes import Worker
from diptych.metrics.slo import SLO
from diptych.perf.estimate import Array
from diptych.perf.memory import kv_capacity
from diptych.perf.model import PerfModel
from diptych.perf.stepping import kv_taken, stepping
from diptych.workload.lengths import Lengths

GRID_POINTS = 40


def normal_quantile(q: float | None) -> float:
    """Standard normal deviate of the quantile `q`; 0 for the mean (None) and below the median."""
    return NormalDist().inv_cdf(q) if q is not None and q > 0.5 else 0.0


@dataclass(frozen=True, slots=True)
class DecodeState:
    """A decode pool in balance; every field has the broadcast shape of (rate, workers).

    `batch` sequences per worker, `step` seconds at that batch, TPOT over requests, `kv_bytes` held on average and
    `kv_bytes_p99` at the peak of its fluctuation; `feasible` when the rate can be sustained and the peak fits.
    """

    batch: Array
    step: Array
    tpot_mean: Array
    tpot_p50: Array
    tpot_p90: Array
    tpot_p99: Array
    kv_bytes: Array
    kv_bytes_p99: Array
    feasible: Array


class DecodePool:
    """Equal decode workers, requests spread evenly over them.

    By Little's law a worker at λ requests/s holds b = λ·E[OSL−1]·TPOT sequences. Poisson arrivals show each request one more
    sequence than the average (itself), so TPOT = D(1+b): the two meet at one b, read from a table that is monotone in b.
    """

    def __init__(self, perf: PerfModel, worker: Worker, lengths: Lengths, kv_bytes: float | None = None) -> None:
        self.worker, self.lengths = worker, lengths
        steps = np.maximum(lengths.osl - 1.0, 0.0)
        self.steps_per_request = max(lengths.mean(steps), 1e-9)
        time_weight = lengths.weight * steps / self.steps_per_request if np.any(steps > 0) else lengths.weight
        held = lengths.isl + lengths.osl / 2
        self.context = float(np.dot(time_weight, held))
        kv = kv_taken(worker, lengths.isl, lengths.osl)
        self.kv_per_sequence = float(np.dot(time_weight, kv))
        self.kv_deviation = float(np.sqrt(np.dot(time_weight, kv**2)))
        self.kv_capacity = _kv_capacity(worker) if kv_bytes is None else kv_bytes
        longest = float(np.max(worker.model.kv_bytes(lengths.isl + lengths.osl, worker.precision.kv)))
        self.holds_longest = longest <= self.kv_capacity
        self.most = max(1.0, min(stepping(worker).sequences, self.kv_capacity / max(self.kv_per_sequence, 1.0)))
        self._batch = batch_grid(self.most)
        self._step = np.maximum.accumulate(perf.decode(worker, self._batch, self.context).seconds)
        self._rate = (self._batch - 1.0) / (self.steps_per_request * self._step)

    @property
    def capacity(self) -> float:
        """Requests/s of one worker whose memory is full."""
        return float(np.max(self._rate))

    def step(self, batch: Any) -> Array:
        """Seconds of one step at `batch` sequences on one worker."""
        return np.asarray(np.interp(batch, self._batch, self._step))

    def never_slower(self, other: DecodePool) -> bool:
        """Whether under any load no token takes longer here and no more is held, for sequences of the same size.

        Steps and balances are straight between the points of a table, so that they are compared at the points of both.
        """
        if self.kv_capacity < other.kv_capacity or self.most < other.most or self.capacity < other.capacity:
            return False
        batch = np.union1d(self._batch[self._batch <= other.most], other._batch)
        mine, theirs = np.maximum.accumulate(self._rate), np.maximum.accumulate(other._rate)
        rate = np.union1d(mine[mine <= theirs[-1]], theirs)
        settled = np.interp(rate, mine, self._batch), np.interp(rate, theirs, other._batch)
        return bool(np.all(self.step(batch) <= other.step(batch)) and np.all(settled[0] <= settled[1] + 1e-9))

    def batch_within(self, seconds: Any) -> Array:
        """The most sequences (itself counted) whose step takes no longer than `seconds`; −∞ for none, ∞ for any number."""
        limit = np.asarray(seconds, dtype=float)
        above = np.searchsorted(self._step, limit, side="right")
        low, high = np.clip(above - 1, 0, None), np.clip(above, None, len(self._step) - 1)
        rise = np.maximum(self._step[high] - self._step[low], 1e-300)
        between = self._batch[low] + (limit - self._step[low]) / rise * (self._batch[high] - self._batch[low])
        return np.where(above == 0, -np.inf, np.where(above == len(self._step), np.inf, between))

    def at(self, rate: Any, workers: Any, cv2: float = 1.0) -> DecodeState:
        """The balance at `rate` requests/s over `workers`; `cv2` is the squared variation of the arrival gaps."""
        rate, workers = np.broadcast_arrays(np.asarray(rate, dtype=float), np.asarray(workers, dtype=float))
        each = rate / workers
        table = np.maximum.accumulate(self._rate)
        batch = np.interp(each, table, self._batch - 1.0)
        # Beyond the table there is no balance: the step time stays and the batch is what Little's law would ask for.
        tpot = np.where(each > 0, batch / np.maximum(each * self.steps_per_request, 1e-300), self._step[0])
        over = each > table[-1]
        tpot = np.where(over, self._step[-1], np.maximum(tpot, self._step[0]))
        batch = np.where(over, each * self.steps_per_request * tpot, batch)
        swing = np.sqrt(batch * max(cv2, 1.0) / workers)
        kv = batch * self.kv_per_sequence
        peak = kv + normal_quantile(0.99) * swing * self.kv_deviation
        p90, p99 = (np.maximum(self.step(1.0 + batch + normal_quantile(q) * swing), tpot) for q in (0.9, 0.99))
        return DecodeState(
            batch, self.step(1.0 + batch), tpot, tpot, p90, p99, kv, peak, ~over & (peak <= self.kv_capacity) & self.holds_longest
        )  # fmt: skip

    def tpot(self, rate: Any, workers: Any, q: float | None, cv2: float = 1.0) -> Array:
        """TPOT that a share `q` of the requests does not exceed (None for the mean)."""
        state = self.at(rate, workers, cv2)
        swing = np.sqrt(state.batch * max(cv2, 1.0) / np.asarray(workers, dtype=float))
        return np.asarray(np.maximum(self.step(1.0 + state.batch + normal_quantile(q) * swing), state.tpot_mean))

    def knee(self, slo: SLO, cv2: float = 1.0) -> float:
        """Most requests/s of one worker that keeps every TPOT objective and fits in memory; 0 when none does."""
        if not self.holds_longest:
            return 0.0
        batch, swing = self._batch - 1.0, np.sqrt((self._batch - 1.0) * max(cv2, 1.0))
        slack = self.kv_capacity - batch * self.kv_per_sequence
        margins = [slack - normal_quantile(0.99) * swing * self.kv_deviation]
        margins += [
            objective.limit - self.step(1.0 + batch + normal_quantile(objective.quantile) * swing)
            for objective in slo.of("tpot")
        ]
        edge = min(_crossing(margin, np.maximum.accumulate(self._rate)) for margin in margins)
        return max(edge, 0.0)


def batch_grid(most: float, points: int = GRID_POINTS) -> Array:
    """Batches from 1 to `most`: every small one, then evenly in the logarithm. Shape (≤ points,)."""
    small = np.arange(1.0, min(8.0, most) + 1e-9)
    return np.unique(np.concatenate([small, np.geomspace(1.0, max(most, 1.0), points)]))


def _crossing(margin: Array, rate: Array) -> float:
    """The largest rate up to which `margin`, non-increasing, stays at or above zero."""
    if margin[0] < 0:
        return 0.0
    return float(np.interp(0.0, np.maximum.accumulate(-margin), rate)) if margin[-1] < 0 else float(rate[-1])


def _kv_capacity(worker: Worker) -> float:
    return float(kv_capacity(worker))
