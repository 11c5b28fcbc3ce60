"""What no worker can beat, from the data sheet alone: bounds that dismiss a worker before its times are computed.

Each bound counts only part of the work (projections and feed-forward multiplies; weights and KV read once) at the full peak, or
at the share of it that the performance model vouches never to exceed (`ceilings`). So it lies at or below every time the model
gives: a dismissed worker is provably too dear or too slow, and one that is not dismissed is timed properly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Attention, Experts, LayerGroup, Model
from diptych.design.axes import Role, Worker
from diptych.perf.estimate import Array
from diptych.perf.layout import matrix_format
from diptych.perf.memory import kv_capacity, weight_bytes
from diptych.perf.model import PerfModel
from diptych.perf.roofline import memory_bandwidth, peak_flops
from diptych.planner.rushes import ANSWERS
from diptych.planner.stages import Load


def _sheet(worker: Worker) -> tuple[float, float]:
    """The data sheet itself: all of the peak, all of the bandwidth."""
    return 1.0, 1.0


@dataclass(frozen=True, eq=False)
class Floors:
    """Bounds for the workers of one model under one load."""

    model: Model
    load: Load
    multiplies: float
    read_elements: float
    held_elements: float
    steps: float
    ceilings: Callable[[Worker], tuple[float, float]] = field(default=_sheet)

    @classmethod
    def of(cls, model: Model, load: Load, perf: PerfModel) -> Floors:
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
        multiplies = sum(group.count * _multiplied(group, model.hidden) for group in model.layers)
        return cls(model, load, multiplies, reading, holding, steps, getattr(perf, "ceilings", _sheet))

    def prefill_seconds(self, worker: Worker) -> Array:
        """Seconds below which no prompt of each length point is prefilled, all ranks sharing it evenly. Shape (K,)."""
        new = np.maximum(self.load.lengths.isl - self.load.lengths.cached, 1.0)
        return np.asarray(2.0 * self.multiplies * new / (self._peak(worker) * worker.accelerators))

    def prefill_capacity(self, worker: Worker) -> float:
        """Requests/s that no worker exceeds."""
        return 1.0 / max(self.load.lengths.mean(self.prefill_seconds(worker)), 1e-30)

    def lone_step(self, worker: Worker) -> float:
        """Seconds below which no worker makes one token of one sequence: the weights it must read."""
        return self._weights(worker) / self._bandwidth(worker)

    def decode_capacities(self, worker: Worker, role: Role) -> Iterator[tuple[float, float]]:
        """(multiple of the rate, requests/s that no worker exceeds at it): the largest batch admitted over the least step at it.

        The step is at least (W + B·kv)/bandwidth and 2·P·B/peak; both sides of B/step grow with B, so the largest B bounds: what
        memory holds, at the rate itself; and what TPOT admits, at the step of the rate at which it must still hold for some: a
        promise to a share q loses at least half the requests of a step whose average batch is beyond it, so only 2(1 − q) of them
        may arrive at such steps.
        """
        bandwidth, ranks, steps = self._bandwidth(worker), worker.accelerators, self.load.steps
        weights = self._weights(worker) / bandwidth
        each = self.read_elements * worker.precision.kv.bytes / (bandwidth * ranks)
        held = max(self.held_elements * worker.precision.kv.bytes + self.model.state_bytes, 1.0)
        room = max(kv_capacity(worker) / held, 1.0)
        yield float(steps.work[:, 0].min()), self._carried(worker, role, room, weights, each)
        for goal in self.load.slo.of("tpot"):
            most = min(room, max((goal.limit - weights) / max(each, 1e-30), 1.0) + 1.0)
            mix = ANSWERS if role is Role.DECODE else None
            least = steps.least(2 * goal.quantile - 1 if goal.quantile is not None else 0.0, mix)
            yield least, self._carried(worker, role, most, weights, each)

    def _carried(self, worker: Worker, role: Role, batch: float, weights: float, each: float) -> float:
        """Requests/s at no more than `batch` sequences; a colocated worker's multipliers also compute the prompts."""
        multiply = 2.0 * self.multiplies / (self._peak(worker) * worker.accelerators)
        decode = batch / (self.steps * max(weights + batch * each, multiply * batch))
        if role is Role.DECODE:
            return decode
        prompts = self.load.lengths.mean(self.prefill_seconds(worker))
        return min(1.0 / max(prompts + multiply * self.steps, 1e-30), decode)

    def _peak(self, worker: Worker) -> float:
        return _peak(worker) * self.ceilings(worker)[0]

    def _bandwidth(self, worker: Worker) -> float:
        return memory_bandwidth(worker.accelerator) * self.ceilings(worker)[1]

    def _weights(self, worker: Worker) -> float:
        """Bytes one rank reads per step at least: all its weights when dense; attention and the routed few when MoE."""
        stages = worker.parallelism.pp
        if not self.model.is_moe:
            embedding = self.model.embedding_parameters * 2.0 / worker.parallelism.tp
            return max(weight_bytes(worker) * stages - embedding, 0.0)
        return 0.0


def _multiplied(group: LayerGroup, hidden: int) -> float:
    """Parameters of a layer that each token multiplies with for certain: the feed-forward part without its router, and the
    projections of plain attention."""
    mixer = group.mixer.parameters(hidden) if isinstance(group.mixer, Attention) and not group.mixer.is_mla else 0.0
    if isinstance(group.mlp, Experts):
        return mixer + group.mlp.per_token * group.mlp.expert_parameters(hidden)
    return mixer + (group.mlp.parameters(hidden) if group.mlp is not None else 0.0)


def _peak(worker: Worker) -> float:
    """The fastest multiply any of its kernels may use."""
    form = matrix_format(worker.accelerator, worker.precision, worker.model.native)
    return max(peak_flops(worker.accelerator, form.compute), peak_flops(worker.accelerator, Dtype.BF16))
