"""What no worker can beat, from the data sheet alone: bounds that dismiss a worker before its times are computed.

Each bound counts only part of the work (the feed-forward multiplies; weights and KV read once) at the full peak, so it lies at or
below every time that a performance model which respects physics can give. A dismissed worker is therefore provably too dear or
too slow; one that is not dismissed is timed properly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Experts, Mlp, Model
from diptych.design.axes import Worker
from diptych.perf.estimate import Array
from diptych.perf.layout import matrix_format
from diptych.perf.memory import kv_capacity, weight_bytes
from diptych.perf.roofline import memory_bandwidth, peak_flops
from diptych.planner.stages import Load


@dataclass(frozen=True, eq=False)
class Floors:
    """Bounds for the workers of one model under one load."""

    model: Model
    load: Load
    multiplies: float
    read_elements: float
    held_elements: float
    steps: float

    @classmethod
    def of(cls, model: Model, load: Load) -> Floors:
        """The sums over layers and lengths that all workers share."""
        lengths = load.lengths
        answers = np.maximum(lengths.osl - 1.0, 0.0)
        steps = max(lengths.mean(answers), 1e-9)
        held = lengths.isl + lengths.osl / 2
        weight = lengths.weight * answers / steps if np.any(answers > 0) else lengths.weight
        context = float(weight @ held)
        reading = sum(
            count * attention.kv_elements * float(attention.read_tokens(context))
            for count, attention in model.attention_groups()
        )
        holding = float(weight @ (model.kv_bytes(held, Dtype.FP8) - model.state_bytes))
        multiplies = sum(group.count * _routed(group.mlp, model.hidden) for group in model.layers)
        return cls(model, load, multiplies, reading, holding, steps)

    def prefill_seconds(self, worker: Worker) -> Array:
        """Seconds below which no prompt of each length point is prefilled, all ranks sharing it evenly. Shape (K,)."""
        new = np.maximum(self.load.lengths.isl - self.load.lengths.cached, 1.0)
        return np.asarray(2.0 * self.multiplies * new / (_peak(worker) * worker.accelerators))

    def prefill_capacity(self, worker: Worker) -> float:
        """Requests/s that no worker exceeds."""
        return 1.0 / max(self.load.lengths.mean(self.prefill_seconds(worker)), 1e-30)

    def lone_step(self, worker: Worker) -> float:
        """Seconds below which no worker makes one token of one sequence: the weights it must read."""
        return self._weights(worker) / memory_bandwidth(worker.accelerator)

    def decode_capacity(self, worker: Worker) -> float:
        """Requests/s that no worker exceeds: the largest batch that memory and TPOT admit, over the least step at that batch.

        The step is at least (W + B·kv)/bandwidth and 2·P·B/peak; both sides of B/step grow with B, so the largest B bounds.
        """
        bandwidth, ranks = memory_bandwidth(worker.accelerator), worker.accelerators
        weights = self._weights(worker) / bandwidth
        each = self.read_elements * worker.precision.kv.bytes / (bandwidth * ranks)
        held = max(self.held_elements * worker.precision.kv.bytes + self.model.state_bytes, 1.0)
        most = max(kv_capacity(worker) / held, 1.0)
        limits = [goal.limit for goal in self.load.slo.of("tpot")]
        if limits:
            most = min(most, max((min(limits) - weights) / max(each, 1e-30), 1.0) + 1.0)
        step = max(weights + most * each, 2.0 * self.multiplies * most / (_peak(worker) * ranks))
        return most / (self.steps * step)

    def colocated_capacity(self, worker: Worker) -> float:
        """Requests/s that no worker exceeds: prompts and decode steps share the multipliers, and decode its bandwidth."""
        prompts = self.load.lengths.mean(self.prefill_seconds(worker))
        multiplies = prompts + 2.0 * self.multiplies * self.steps / (_peak(worker) * worker.accelerators)
        return min(1.0 / max(multiplies, 1e-30), self.decode_capacity(worker))

    def _weights(self, worker: Worker) -> float:
        """Bytes one rank reads per step at least: all its weights when dense; attention and the routed few when MoE."""
        stages = worker.parallelism.pp
        if not self.model.is_moe:
            embedding = self.model.embedding_parameters * 2.0 / worker.parallelism.tp
            return max(weight_bytes(worker) * stages - embedding, 0.0)
        return 0.0


def _routed(mlp: Mlp | Experts | None, hidden: int) -> float:
    """Parameters of a feed-forward part that each token multiplies with, router aside."""
    if isinstance(mlp, Experts):
        return mlp.per_token * mlp.expert_parameters(hidden)
    return mlp.parameters(hidden) if mlp is not None else 0.0


def _peak(worker: Worker) -> float:
    """The fastest multiply any of its kernels may use."""
    form = matrix_format(worker.accelerator, worker.precision, worker.model.native.is_fp8)
    return max(peak_flops(worker.accelerator, form.compute), peak_flops(worker.accelerator, Dtype.BF16))
