"""Rules on one worker: what its engine executes, how it may be split, what fits in its memory.

A rule returns None when the worker keeps it, else the detail that makes its docstring, the sentence a person reads, concrete.
"""

from __future__ import annotations

from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.catalog.model import Attention
from diptych.catalog.offer import Offer
from diptych.design.axes import Worker
from diptych.design.capability import UNSERVED, engines, family, named_engine
from diptych.design.ruling import Quality, Setting
from diptych.units import format_bytes, format_seconds

LARGEST_SERVER = 16
"""Accelerators of the largest common server; a larger scale-up world spans servers."""


def engine_serves_accelerator(worker: Worker, setting: Setting) -> str | None:
    """Some engine must run on the accelerator at all."""
    if family(worker.accelerator) == UNSERVED:
        return f"no open engine serves {worker.accelerator.name}"
    return None


def activations_are_multiplied(worker: Worker, setting: Setting) -> str | None:
    """The silicon must multiply the activations' format; where it does not, a format is weight-only."""
    if worker.accelerator.peak_flops.get(worker.precision.activations):
        return None
    return f"{worker.accelerator.name} does not multiply {worker.precision.activations}"


def sixteen_bits_are_one_choice(worker: Worker, setting: Setting) -> str | None:
    """bf16 and fp16 cost the same; an accelerator's bf16 stands for both where it has it."""
    formats = (worker.precision.weights, worker.precision.activations, worker.precision.kv)
    spare = Dtype.FP16 if worker.accelerator.peak_flops.get(Dtype.BF16) else Dtype.BF16
    if family(worker.accelerator) in ("apple", "qaic"):
        spare = Dtype.BF16
    return f"{spare} on {worker.accelerator.name}" if spare in formats else None


def weights_not_wider(worker: Worker, setting: Setting) -> str | None:
    """Weights wider than the activations are converted to them at load, which is another design."""
    weights, activations = worker.precision.weights, worker.precision.activations
    return f"{weights} weights under {activations}" if weights.bytes > activations.bytes else None


def engine_executes_precision(worker: Worker, setting: Setting) -> str | None:
    """Precision is an executable capability: kernels, runtime and tooling must run this combination on the accelerator."""
    if engines(worker.accelerator, worker.precision):
        return None
    return f"no engine runs {worker.precision} on {worker.accelerator.name}"


def pinned_engine_executes_precision(worker: Worker, setting: Setting) -> str | None:
    """An engine that was asked for must itself run this combination on the accelerator."""
    if named_engine(worker.engine, engines(worker.accelerator, worker.precision)):
        return None
    return f"{worker.engine} does not run {worker.precision} on {worker.accelerator.name}"


def quality_is_kept(worker: Worker, setting: Setting) -> str | None:
    """Weights narrower than the quality floor change the answers, so they need the user's word."""
    weights, native = worker.precision.weights, worker.model.native
    as_published = weights is native or weights.bytes > native.bytes or weights.bytes == native.bytes > 1
    if setting.quality is Quality.ANY or as_published:
        return None
    if setting.quality is Quality.EIGHT_BIT and weights.bytes >= 1:
        return None
    return f"{weights} weights of a model published in {native}"


def tp_stays_in_scaleup(worker: Worker, setting: Setting) -> str | None:
    """Tensor parallelism beyond the scale-up world crosses the NIC at every layer."""
    world, tp = max(worker.accelerator.scaleup.world, 1), worker.parallelism.tp
    return f"tp{tp} over a scale-up world of {world}" if tp > world else None


def tp_divides_heads(worker: Worker, setting: Setting) -> str | None:
    """Every rank must hold a whole number of attention heads, and of KV heads or of copies of one."""
    tp = worker.parallelism.tp
    for _, attention in worker.model.attention_groups():
        if attention.heads % tp or not _splits(attention, tp):
            return f"tp{tp} over {attention.heads} heads and {attention.kv_heads} KV heads"
    return None


def stages_hold_layers(worker: Worker, setting: Setting) -> str | None:
    """Every pipeline stage must hold at least one layer."""
    pp, layers = worker.parallelism.pp, worker.model.num_layers
    return f"pp{pp} over {layers} layers" if pp > layers else None


def expert_parallelism_needs_experts(worker: Worker, setting: Setting) -> str | None:
    """Expert parallelism, and attention data parallelism beside it, are for models with experts."""
    shape = worker.parallelism
    if (shape.ep > 1 or shape.dp > 1) and not worker.model.is_moe:
        return f"{shape} for a dense model"
    return None


def expert_ranks_are_the_workers(worker: Worker, setting: Setting) -> str | None:
    """Experts span all ranks of a stage or none: EP is 1 or TP × DP, and DP without EP would be separate workers."""
    shape = worker.parallelism
    ranks = shape.tp * shape.dp
    if shape.ep not in (1, ranks) or (shape.dp > 1 and shape.ep == 1):
        return f"ep{shape.ep} on {ranks} ranks"
    return None


def live_kv_is_in_hbm(worker: Worker, setting: Setting) -> str | None:
    """Engines decode from HBM; slower tiers keep only KV that nobody is reading."""
    if worker.residency is TierKind.HBM:
        return None
    tier = setting.tiers.get(worker.residency)
    if tier is None or not tier.read_bandwidth:
        return f"live KV in {worker.residency}"
    size = float(worker.model.kv_bytes(setting.max_context, worker.precision.kv)) / worker.accelerators
    far, near = size / tier.read_bandwidth, size / worker.accelerator.memory_bandwidth
    return (
        f"live KV in {worker.residency}: every token of a sequence of {setting.max_context:.0f} tokens would read "
        f"{format_bytes(size)} on each {worker.accelerator.name} in {format_seconds(far)}, {format_seconds(near)} from HBM"
    )


def weights_fit(worker: Worker, setting: Setting) -> str | None:
    """Weights must fit beside the engine's own memory."""
    weights, left = setting.memory(worker)
    if left > 0:
        return None
    ranks = worker.accelerators
    return (
        f"{worker.model.name} in {worker.precision.weights} needs {format_bytes(weights)} on {ranks} × "
        f"{worker.accelerator.name}; short by {format_bytes(max(-left, 1.0))}"
    )


def no_larger_than_needed(worker: Worker, setting: Setting) -> str | None:
    """A worker of more than eight times the memory its weights need spreads a small model over many failures for no latency."""
    weights, _ = setting.memory(worker)
    least = max(weights / (worker.parallelism.dp * worker.accelerator.memory_bytes), 1.0)
    if worker.accelerators <= max(8 * least, LARGEST_SERVER / 2):
        return None
    return f"{worker.accelerators} × {worker.accelerator.name} for {format_bytes(weights)} of weights"


def longest_request_fits(worker: Worker, setting: Setting) -> str | None:
    """The KV of the longest request must fit in what the weights leave."""
    _, left = setting.memory(worker)
    need = float(worker.model.kv_bytes(setting.max_context, worker.precision.kv))
    room = left / worker.parallelism.dp  # attention DP keeps a request on one rank
    if need <= room:
        return None
    return (
        f"{setting.max_context:.0f} tokens need {format_bytes(need)}, {worker.label} has {format_bytes(max(room, 0.0))}; "
        f"short by {format_bytes(need - room)}"
    )


def server_holds_the_group(worker: Worker, offer: Offer) -> str | None:
    """The rented server must hold the whole tensor- or expert-parallel group, as far as the scale-up link joins it."""
    shape, world = worker.parallelism, max(worker.accelerator.scaleup.world, 1)
    if world > LARGEST_SERVER or min(shape.tp * shape.dp, world) <= offer.gpus:
        return (
            None  # a domain larger than a server spans servers; what exceeds the domain crosses the NIC and is charged
        )
    return f"{shape} on {offer.instance} with {offer.gpus}"


def _splits(attention: Attention, tp: int) -> bool:
    if attention.is_mla:
        return True
    return attention.kv_heads % tp == 0 or tp % attention.kv_heads == 0


def stock_engine_starts_the_worker(worker: Worker, setting: Setting) -> str | None:
    """The stock engine that was asked for starts the worker from the model's own checkpoint, its KV where and as it keeps it."""
    return setting.engine.worker(worker) if setting.engine else None
