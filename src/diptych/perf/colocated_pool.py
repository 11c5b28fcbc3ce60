"""A pool of workers that do both: prompts are prefilled in chunks between or beside the decode steps of the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.design.axes import Worker
from diptych.metrics.slo import SLO
from diptych.perf.decode_pool import DecodePool, batch_grid, normal_quantile
from diptych.perf.estimate import Array
from diptych.perf.latency import Latency
from diptych.perf.model import PerfModel
from diptych.perf.queueing import wait
from diptych.perf.stepping import prompt_costs
from diptych.workload.lengths import Lengths

GRID_POINTS = 20


@dataclass(frozen=True, slots=True)
class ColocatedState:
    """A colocated pool in balance; arrays have the broadcast shape of (rate, workers).

    `batch` sequences are held on average; a request sees a step of `seen`, itself counted.
    """

    batch: Array
    seen: Array
    step: Array
    ttft: Latency
    tpot_mean: Array
    tpot_p50: Array
    tpot_p90: Array
    tpot_p99: Array
    kv_bytes: Array
    kv_bytes_p99: Array
    prefill_share: Array
    feasible: Array


class ColocatedPool:
    """Equal colocated workers, requests spread evenly over them.

    A worker at λ requests/s spends λ·x of each second on prompts, x being what a prompt adds to the steps it rides in. Decodes
    progress in the rest: TPOT = D(1+b)/(1 − λ·x), and by Little's law b = λ·E[OSL−1]·TPOT, so λ(b) = b/(b·x + E[OSL−1]·D).
    Prompts queue for steps, one server per worker, whose service is their packed engine time.
    """

    def __init__(self, perf: PerfModel, worker: Worker, lengths: Lengths, kv_bytes: float | None = None) -> None:
        self._decode = DecodePool(perf, worker, lengths, kv_bytes)
        self.worker, self.lengths = worker, lengths
        self.most = self._decode.most
        self._batch = batch_grid(self.most, GRID_POINTS)
        self._step = self._decode.step(self._batch)
        costs = prompt_costs(perf, worker, lengths, self._batch, self._decode.context)
        self._alone, self._packed = costs.alone.T, lengths.weight @ costs.packed
        self._extra = lengths.weight @ costs.extra
        self._cv2 = np.maximum(lengths.weight @ costs.packed**2 / self._packed**2 - 1.0, 0.0)
        held = self._batch - 1.0
        rate = held / (held * self._extra + self._decode.steps_per_request * self._step)
        self._rate = np.maximum.accumulate(np.minimum(rate, 1.0 / self._packed))

    @property
    def prompt_share(self) -> float:
        """Share of the time of a full worker that goes into prompts."""
        prompt = float(self._extra[-1])
        return prompt / (prompt + self._decode.steps_per_request * float(self._step[-1] / self._batch[-1]))

    @property
    def capacity(self) -> float:
        """Requests/s of one worker at full memory or with prompts in every step."""
        return float(self._rate[-1])

    def batch_within(self, seconds: float, rate: Any) -> Array:
        """The largest batch at which a worker at `rate` requests/s makes a token within `seconds`; −∞ for none, ∞ for any.

        Between two batches of the table both step and prompt work are straight lines, so the crossing is exact.
        """
        each = np.asarray(rate, dtype=float)[..., None]
        over = self._step - seconds * np.maximum(1.0 - each * self._extra, 1e-6) > 0
        above = np.where(over.any(axis=-1), np.argmax(over, axis=-1), len(self._batch))
        low, high = np.clip(above - 1, 0, None), np.clip(above, None, len(self._batch) - 1)
        each = each[..., 0]
        step, more = self._step[low], self._step[high] - self._step[low]
        work, extra = self._extra[low], self._extra[high] - self._extra[low]
        slope = more + seconds * each * extra
        part = (seconds * (1.0 - each * work) - step) / np.where(slope > 0, slope, np.inf)
        between = self._batch[low] + np.clip(part, 0.0, 1.0) * (self._batch[high] - self._batch[low])
        return np.where(above == 0, -np.inf, np.where(above == len(self._batch), np.inf, between))

    def at(self, rate: Any, workers: Any, cv2: float = 1.0, lasting: float = math.inf) -> ColocatedState:
        """The balance at `rate` requests/s over `workers`; `lasting` is for how many seconds it holds (`wait_while`)."""
        rate, workers = np.broadcast_arrays(np.asarray(rate, dtype=float), np.asarray(workers, dtype=float))
        each = rate / workers
        batch = np.interp(each, self._rate, self._batch)
        tpot = self._tpot(batch, each)
        over = each > self._rate[-1]
        held = np.maximum(batch - 1.0, each * self._decode.steps_per_request * tpot)
        swing = np.sqrt(held * max(cv2, 1.0) / workers)
        kv, peak = self._kv(held, swing)
        p90, p99 = (self._tpot(batch + normal_quantile(q) * swing, each) for q in (0.9, 0.99))
        return ColocatedState(
            held, batch, self._at(self._step, batch), self._ttft(batch, each, workers, cv2, lasting), tpot, tpot, p90, p99,
            kv, peak, each * self._at(self._extra, batch),
            ~over & (peak <= self._decode.kv_capacity) & self._decode.holds_longest,
        )  # fmt: skip

    def tpot(self, rate: Any, workers: Any, q: float | None, cv2: float = 1.0) -> Array:
        """TPOT that a share `q` of the requests does not exceed (None for the mean)."""
        rate, workers = np.broadcast_arrays(np.asarray(rate, dtype=float), np.asarray(workers, dtype=float))
        each = rate / workers
        batch = np.interp(each, self._rate, self._batch)
        swing = np.sqrt((batch - 1.0) * max(cv2, 1.0) / workers)
        return self._tpot(batch + normal_quantile(q) * swing, each)

    def knee(self, slo: SLO, cv2: float = 1.0, workers: float = 1.0) -> float:
        """Most requests/s per worker at which every TTFT and TPOT objective holds in a pool of `workers`; 0 when none does."""
        low, high = 0.0, self.capacity
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self._holds(slo, middle * workers, workers, cv2) else (low, middle)
        return low

    def _holds(self, slo: SLO, rate: float, workers: float, cv2: float) -> bool:
        state = self.at(rate, workers, cv2)
        ttft = (
            state.ttft.mean if goal.quantile is None else state.ttft.quantile(goal.quantile) for goal in slo.of("ttft")
        )
        late = any(float(value) > goal.limit for value, goal in zip(ttft, slo.of("ttft"), strict=True))
        slow = any(float(self.tpot(rate, workers, goal.quantile, cv2)) > goal.limit for goal in slo.of("tpot"))
        return bool(state.feasible) and not late and not slow

    def _tpot(self, batch: Array, rate: Array) -> Array:
        """D(batch)/(1 − λ·x): decode steps run in the time that prompts leave."""
        left = np.maximum(1.0 - rate * self._at(self._extra, batch), 1e-6)
        return np.asarray(self._at(self._step, batch) / left)

    def _ttft(self, batch: Array, rate: Array, workers: Array, cv2: float, lasting: float) -> Latency:
        """Wait for a step of prompts, the decode step that is running, the prompt's own steps.

        Prompts go to the next free worker, as they do before a prefill pool (M/G/N), so both kinds of fleet queue alike.
        """
        packed = self._at(self._packed, batch)
        queue = wait(rate * workers, workers, packed, self._at(self._cv2, batch), cv2, lasting)
        grid = np.interp(batch, self._batch, np.arange(len(self._batch)))
        low = np.minimum(grid.astype(int), len(self._batch) - 2) if len(self._batch) > 1 else grid.astype(int)
        share = (grid - low)[..., None]
        high = np.minimum(low + 1, len(self._batch) - 1)
        alone = self._alone[low] * (1 - share) + self._alone[high] * share
        busy = np.minimum(rate * self._decode.steps_per_request * self._at(self._step, batch), 1.0)
        running = busy * self._at(self._step, batch) / 2
        return Latency(alone + running[..., None], self.lengths.weight, queue)

    def _kv(self, held: Array, swing: Array) -> tuple[Array, Array]:
        mean = held * self._decode.kv_per_sequence
        return mean, mean + normal_quantile(0.99) * swing * self._decode.kv_deviation

    def _at(self, table: Array, batch: Array) -> Array:
        return np.asarray(np.interp(batch, self._batch, table))
