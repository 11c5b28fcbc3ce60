"""A roofline one can compute by hand: half of the peak, 80 % of the bandwidth, a fixed start. Respects every physical floor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.design.axes import Worker
from diptych.perf.estimate import Basis, Timing


@dataclass(frozen=True, slots=True)
class ToyPerf:
    """Seconds of a step are the work over the achieved rates, plus `start`; TP adds `hop` per layer."""

    mfu: float = 0.5
    mbu: float = 0.8
    start: float = 2e-3
    hop: float = 5e-6

    def prefill(self, worker: Worker, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        return self._timing(worker, self._prompt(worker, tokens, past) * np.asarray(batch, dtype=float))

    def decode(self, worker: Worker, batch: Any, context: Any) -> Timing:
        return self._timing(worker, self._decode(worker, batch, context))

    def mixed(self, worker: Worker, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        return self._timing(worker, self._prompt(worker, tokens, past) + self._decode(worker, batch, context))

    def _prompt(self, worker: Worker, tokens: Any, past: Any) -> Any:
        tokens, past = np.asarray(tokens, dtype=float), np.asarray(past, dtype=float)
        attention = sum(count * layer.heads * layer.score_width for count, layer in worker.model.attention_groups())
        flop = 2 * worker.model.active_parameters * tokens + 2 * attention * tokens * (past + tokens / 2)
        return flop / (_peak(worker) * self.mfu * worker.accelerators)

    def _decode(self, worker: Worker, batch: Any, context: Any) -> Any:
        batch, context = np.asarray(batch, dtype=float), np.asarray(context, dtype=float)
        bandwidth = worker.accelerator.memory_bandwidth * self.mbu * worker.accelerators
        weights = worker.model.weight_bytes(worker.precision.weights) * worker.parallelism.pp * worker.parallelism.dp
        kv = batch * worker.model.kv_bytes(context, worker.precision.kv)
        return (weights + kv) / bandwidth + batch * 2 * worker.model.active_parameters / (
            _peak(worker) * worker.accelerators
        )

    def _timing(self, worker: Worker, seconds: Any) -> Timing:
        hops = self.hop * worker.model.num_layers * np.log2(worker.parallelism.tp)
        total = np.asarray(seconds, dtype=float) + self.start + hops
        return Timing(total, total * min(self.mfu, self.mbu), Basis.FITTED, 0.2)


def _peak(worker: Worker) -> float:
    return worker.accelerator.peak_flops[worker.precision.activations]
