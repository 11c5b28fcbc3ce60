"""A pool of prefill workers fed by an open stream of prompts."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from diptych.design.axes import Worker
from diptych.perf.estimate import Array
from diptych.perf.latency import Latency
from diptych.perf.model import PerfModel
from diptych.perf.queueing import Wait, wait
from diptych.perf.stepping import prompt_costs
from diptych.workload.lengths import Lengths


class PrefillPool:
    """Equal prefill workers behind one queue, first come first served.

    A prompt waits for a worker (M/G/N, its packed engine time being the service), then shares its step with the prompts
    that came meanwhile. All methods take scalars or arrays of `rate` (requests/s of the pool) and `workers`, which broadcast.
    """

    def __init__(self, perf: PerfModel, worker: Worker, lengths: Lengths, fetch: Any = 0.0) -> None:
        """`fetch` seconds (scalar, or (K,)) come before each prompt: a prefix read from a slower tier, not overlapped."""
        costs = prompt_costs(perf, worker, lengths)
        self.worker, self.lengths = worker, lengths
        self.service: Array = costs.alone[:, 0] + fetch
        self._packed: Array = costs.packed[:, 0] + fetch

    @cached_property
    def mean_service(self) -> float:
        """Engine seconds of one prompt when steps are full."""
        return self.lengths.mean(self._packed)

    @cached_property
    def cv2_service(self) -> float:
        """Squared coefficient of variation of the engine seconds over the length distribution."""
        return max(self.lengths.mean(self._packed**2) / self.mean_service**2 - 1.0, 0.0)

    @property
    def capacity(self) -> float:
        """Requests/s of one worker that never idles."""
        return 1.0 / self.mean_service

    def utilisation(self, rate: Any, workers: Any) -> Array:
        """Busy share of each worker; 1 and above is overload."""
        return np.asarray(np.asarray(rate, dtype=float) * self.mean_service / np.asarray(workers, dtype=float))

    def latency(
        self,
        rate: Any,
        workers: Any,
        extra: Any = 0.0,
        cv2: float = 1.0,
        lasting: float = math.inf,
        converting: float = 1.0,
    ) -> Latency:
        """Wait, service and `extra` seconds (a transfer, a conversion; scalar, or (K,) by length point).

        `lasting` is for how many seconds the rate holds (`queueing.wait_while`); a worker that also converts is busy `converting`
        times as long.
        """
        rate, workers = np.broadcast_arrays(np.asarray(rate, dtype=float), np.asarray(workers, dtype=float))
        queue = wait(rate * converting, workers, self.mean_service, self.cv2_service, cv2, lasting)
        shared = self._company(rate / workers, converting)
        sure = self.service + np.asarray(extra, dtype=float) + shared[..., None]
        return Latency(sure, self.lengths.weight, Wait(np.asarray(queue.prob), np.asarray(queue.mean_if_waiting)))

    @cached_property
    def _fixed(self) -> float:
        """Seconds of a step beside what its prompts add."""
        return self.lengths.mean(self.service) - self.mean_service

    @cached_property
    def _full(self) -> float:
        """The most prompts that share a step."""
        return max(self.lengths.mean(self.service / np.maximum(self._packed, 1e-12)), 1.0)

    def never_slower(self, other: PrefillPool) -> bool:
        """Whether under any load no prompt waits or takes longer here: every part of its time is no longer."""
        pairs = (
            (self.mean_service, other.mean_service),
            (self.mean_service * self.cv2_service, other.mean_service * other.cv2_service),
            (self._fixed, max(other._fixed, 0.0)),
            ((self._full - 1) * self.mean_service, (other._full - 1) * other.mean_service),
        )
        return bool(np.all(self.service <= other.service)) and all(mine <= theirs for mine, theirs in pairs)

    def _company(self, rate: Array, converting: float) -> Array:
        """Seconds a step lasts longer because prompts that came during the last one share it.

        A step of k prompts takes fixed + k·packed seconds; k settles where the arrivals of one step fill the next.
        """
        if self._fixed <= 0:
            return np.zeros_like(rate)
        slack = np.maximum(1.0 - rate * converting * self.mean_service, 1e-9)
        prompts = np.clip(rate * self._fixed / slack, 1.0, self._full)
        return np.asarray((prompts - 1.0) * self.mean_service)

    def attainment(self, rate: Any, workers: Any, limit: Any, extra: Any = 0.0, cv2: float = 1.0) -> Array:
        """Share of requests whose wait + service + extra stays within `limit` seconds."""
        return self.latency(rate, workers, extra, cv2).attainment(limit)

    def quantile(self, rate: Any, workers: Any, q: float, extra: Any = 0.0, cv2: float = 1.0) -> Array:
        """Seconds of wait + service + extra that a share `q` of the requests does not exceed."""
        return self.latency(rate, workers, extra, cv2).quantile(q)
