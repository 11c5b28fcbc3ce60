"""What fits in a worker's memory: weights, activations, the engine's own share, and what is left for KV.

vLLM takes a fixed share of the device memory (`gpu_memory_utilization` 0.9) and SGLang nearly the same
(`mem_fraction_static`, 0.88 on large parts); what weights and activations do not use of it is KV cache. TensorRT-LLM takes
0.9 of what they leave (`free_gpu_memory_fraction`). A data sheet's 80 GB is 80 GiB less a little for the driver: 81,559 MiB
on H100, 143,771 on H200 (141 GB), 183,359 on B200 (180 GB), 196,288 on MI300X (192 GB); GDDR parts lose another 1/16 to ECC
(L40S: 46,068 MiB).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.model import Attention, Experts, Model
from diptych.design.axes import Worker
from diptych.perf.efficiency import GDDR_LIMIT
from diptych.perf.estimate import Array
from diptych.perf.layout import SIXTEEN, matrix_format, mixer_format
from diptych.units import GB, GIB

UTILISATION = 0.9
DEVICE_SHARE, GDDR_SHARE = 0.995 * GIB / GB, 15 / 16 * GIB / GB  # bytes a device shows per byte of its data sheet
RUNTIME_BYTES = 1.5e9  # context, communication buffers, CUDA graphs: measured 0.5 to 3 GB by engine and TP
STEP_TOKENS = 8192  # prefill tokens of one step when the worker names none (vLLM's API server default)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on each accelerator of a worker. `kv` is what is left for the cache, negative when the rest does not fit."""

    capacity: float
    weights: float
    activations: float
    runtime: float
    kv: float

    @property
    def fits(self) -> bool:
        return self.kv > 0

    @property
    def shortfall(self) -> float:
        """Bytes missing per accelerator before the first token can be cached; 0 when there are none missing."""
        return max(0.0, -self.kv)


def memory_plan(worker: Worker) -> MemoryPlan:
    """How one accelerator's memory is used by `worker`."""
    capacity = device_bytes(worker.accelerator)
    weights, activations = weight_bytes(worker), activation_bytes(worker)
    used = weights + activations + RUNTIME_BYTES
    if worker.engine.startswith("trtllm") and capacity > used:
        return MemoryPlan(capacity, weights, activations, RUNTIME_BYTES, UTILISATION * (capacity - used))
    return MemoryPlan(capacity, weights, activations, RUNTIME_BYTES, UTILISATION * capacity - used)


def device_bytes(accelerator: Accelerator) -> float:
    """Bytes that the device shows to a process, from the size its data sheet names."""
    gddr = accelerator.memory_bandwidth < GDDR_LIMIT and accelerator.vendor in ("NVIDIA", "Intel")
    return accelerator.memory_bytes * (GDDR_SHARE if gddr else DEVICE_SHARE)


def weight_bytes(worker: Worker) -> float:
    """Bytes of weights on one accelerator: projections split over TP and replicated over DP, experts over all ranks.

    4-bit formats carry their scales; MoE models in 4 bit keep attention, router and embeddings in 16 bit.
    """
    model, parallel = worker.model, worker.parallelism
    form = matrix_format(worker.accelerator, worker.precision, model.native)
    mixer = mixer_format(worker.accelerator, worker.precision, model)
    ranks = parallel.tp * parallel.dp
    total = model.embedding_parameters * SIXTEEN.weight_bytes / parallel.tp
    for group in model.layers:
        if group.mixer is not None:
            total += group.count * group.mixer.parameters(model.hidden) * mixer.weight_bytes / parallel.tp
        if isinstance(group.mlp, Experts):
            routed = group.mlp.count * group.mlp.expert_parameters(model.hidden)
            always = group.mlp.parameters(model.hidden) - routed
            total += group.count * form.weight_bytes * (routed / ranks + always / parallel.tp)
        elif group.mlp is not None:
            total += group.count * group.mlp.parameters(model.hidden) * form.weight_bytes / parallel.tp
    return float(total / parallel.pp)


def activation_bytes(worker: Worker) -> float:
    """Peak activations of one step on one accelerator: a few hidden vectors and the widest intermediate per token."""
    model = worker.model
    tokens = worker.max_batched_tokens or STEP_TOKENS
    widest = max((_feed_forward_width(group.mlp) for group in model.layers if group.mlp is not None), default=0.0)
    return float(tokens * 2.0 * (6.0 * model.hidden + 2.0 * widest / worker.parallelism.tp))


def _feed_forward_width(mlp: Any) -> float:
    if isinstance(mlp, Experts):
        return float(mlp.per_token * mlp.intermediate + mlp.shared_intermediate)
    return float(mlp.intermediate)


def kv_replication(worker: Worker) -> float:
    """Copies of each sequence's cache that the TP ranks of a worker hold: TP over KV heads when larger; TP for MLA."""
    return _replication(worker.model, worker.parallelism.tp)


def _replication(model: Model, tp: int) -> float:
    """Byte-weighted mean over the attention layers of max(tp, kv_heads) / kv_heads."""
    layers = [(count * attention.kv_elements, attention) for count, attention in model.attention_groups()]
    total = sum(size for size, _ in layers)
    if not total:
        return 1.0
    return sum(size * _copies(attention, tp) for size, attention in layers) / total


def _copies(attention: Attention, tp: int) -> float:
    heads = 1 if attention.is_mla else attention.kv_heads
    return max(tp, heads) / heads


def kv_capacity_bytes(worker: Worker) -> float:
    """Bytes left for KV on one accelerator; 0 when weights do not leave any."""
    return max(0.0, memory_plan(worker).kv)


def kv_capacity(worker: Worker) -> float:
    """Bytes of KV, counted as `Model.kv_bytes` counts them (no replication), that the whole worker can hold.

    TP ranks share one copy of each KV head until they outnumber the heads; DP ranks hold different requests, PP stages
    different layers.
    """
    return kv_capacity_bytes(worker) * worker.accelerators / kv_replication(worker)


def max_sequences(worker: Worker, context: Any) -> Array:
    """Sequences of `context` tokens that fit in the worker (scalar or array), fractional."""
    each = worker.model.kv_bytes(np.asarray(context, dtype=float), worker.precision.kv)
    return np.asarray(kv_capacity(worker) / np.maximum(each, 1.0), dtype=float)


def fit_problem(worker: Worker, context: float = 0.0) -> str:
    """Why the worker cannot hold its model and one sequence of `context` tokens, '' if it can: what is short, by how much."""
    plan = memory_plan(worker)
    name, model = worker.accelerator.name, worker.model.name
    if not plan.fits:
        return (
            f"{model} ({worker.precision}) needs {(plan.weights + plan.activations + plan.runtime) / GB:.1f} GB on each of "
            f"{worker.accelerators} {name} ({worker.parallelism}), which offer {UTILISATION * plan.capacity / GB:.1f} of "
            f"{plan.capacity / GB:.0f} GB device memory: short by {plan.shortfall / GB:.1f} GB each"
        )
    one = float(worker.model.kv_bytes(context, worker.precision.kv))
    room = kv_capacity(worker)
    if one > room:
        return (
            f"one sequence of {context:,.0f} tokens of {model} needs {one / GB:.1f} GB of KV in device memory, and "
            f"{worker.accelerators} {name} ({worker.parallelism}) leave {room / GB:.1f} GB: short by {(one - room) / GB:.1f} GB"
        )
    return ""
