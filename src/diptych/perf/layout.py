"""A worker laid out: which op of which size runs on one accelerator.

TP shards heads and columns (KV heads are replicated once TP exceeds them), DP splits the requests of the attention layers,
experts span all TP·DP ranks by EP. PP divides the layers over stages; a step passes all of them, so the ops of all stages count.
"""

from __future__ import annotations

from collections.abc import Iterator

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Attention, Experts, LayerGroup, Mlp, Model, StateSpace
from diptych.design.axes import Precision, Worker
from diptych.perf.ops import (
    Collective,
    DecodeAttention,
    Elementwise,
    Format,
    Linear,
    Op,
    OpKind,
    PrefillAttention,
    RoutedExperts,
    StateUpdate,
)

SIXTEEN = Format("bf16", 2.0, 2.0, Dtype.BF16)
SCALED_4BIT = 0.5625  # NVFP4: a byte of scale per 16 weights
SCALED_INT4 = 0.53125  # a 16-bit scale per 64 weights, or MXFP4's byte per 32
KERNELS_PER_LAYER = 6  # two norms with residual, rotary embedding with KV write, activation, two (de)quantisations


def matrix_format(accelerator: Accelerator, precision: Precision, native: Dtype) -> Format:
    """How the accelerator really multiplies weights and activations of these formats, for a model stored in `native`.

    A format without tensor-core support is read at its size and multiplied in 16 bit (weight-only kernels). A model stored in
    4 bit is MXFP4 (gpt-oss), which Blackwell engines multiply with FP8 activations; one stored in FP8 has block scales.
    """
    weights, activations = precision.weights, precision.activations
    narrow = activations.bytes <= 1.0
    if weights in (Dtype.FP4, Dtype.INT4):
        if weights is Dtype.FP4 and narrow and Dtype.FP4 in accelerator.peak_flops and native is Dtype.FP4:
            return Format("mxfp4_mxfp8", SCALED_INT4, 1.0, Dtype.FP8)
        if weights is Dtype.FP4 and narrow and Dtype.FP4 in accelerator.peak_flops:
            return Format("fp4", SCALED_4BIT, SCALED_4BIT, Dtype.FP4)
        return Format("mxfp4" if weights is Dtype.FP4 else "int4", SCALED_INT4, 2.0, Dtype.BF16)
    if weights.is_fp8:
        if narrow and any(dtype.is_fp8 for dtype in accelerator.peak_flops):
            return Format("fp8_block" if native.is_fp8 else "fp8", 1.0, 1.0, Dtype.FP8)
        return Format("w8a16", 1.0, 2.0, Dtype.BF16)
    if weights is Dtype.INT8:
        if narrow and Dtype.INT8 in accelerator.peak_flops:
            return Format("int8", 1.0, 1.0, Dtype.INT8)
        return Format("w8a16", 1.0, 2.0, Dtype.BF16)
    return SIXTEEN if weights.bytes <= 2.0 else Format("bf16", weights.bytes, 2.0, Dtype.BF16)


def mixer_format(accelerator: Accelerator, precision: Precision, model: Model) -> Format:
    """The format of attention projections: 4-bit checkpoints of MoE models keep them wider.

    gpt-oss stores only its experts in MXFP4 (model card, 2025-08); NVIDIA's DeepSeek-R1-FP4 and Kimi-K2 INT4 quantise the
    experts and keep attention in 16 bit.
    """
    if model.is_moe and precision.weights in (Dtype.FP4, Dtype.INT4):
        return SIXTEEN
    return matrix_format(accelerator, precision, model.native)


def attention_formats(accelerator: Accelerator, precision: Precision, mla: bool) -> tuple[Format, Format]:
    """(prefill, decode): the cache is read at its size; scores multiply in 16 bit, but MLA decode in FP8 over an FP8 cache."""
    size = precision.kv.bytes
    prefill = Format("bf16", size, 2.0, Dtype.BF16)
    if size >= 2.0:
        return prefill, prefill
    in_fp8 = mla and Dtype.FP8 in accelerator.peak_flops
    return prefill, Format("fp8", size, 2.0, Dtype.FP8 if in_fp8 else Dtype.BF16)


def operations(worker: Worker) -> tuple[Op, ...]:
    """The ops of one forward step on one accelerator of `worker`, equal ones merged into one with a count."""
    return tuple(_operations(worker))


def _operations(worker: Worker) -> Iterator[Op]:
    model, tp = worker.model, worker.parallelism.tp
    for group in model.layers:
        yield from _mixer(worker, group)
        yield from _feed_forward(worker, group)
        yield from _small_kernels(worker, group)
    yield Linear("lm_head", 1.0, model.hidden, model.vocab / tp, SIXTEEN, sampled_only=True)
    if worker.parallelism.pp > 1:
        hops = float(worker.parallelism.pp - 1)
        yield Collective(OpKind.POINT_TO_POINT, hops, 2, 2.0 * model.hidden / tp, SIXTEEN)


def _mixer(worker: Worker, group: LayerGroup) -> Iterator[Op]:
    model = worker.model
    form = mixer_format(worker.accelerator, worker.precision, model)
    if isinstance(group.mixer, StateSpace):
        yield from _state_space(group.count, group.mixer, model.hidden, worker.parallelism.tp, form)
    elif isinstance(group.mixer, Attention) and group.mixer.is_mla:
        yield from _latent_attention(worker, group.count, group.mixer, form)
    elif isinstance(group.mixer, Attention):
        yield from _attention(worker, group.count, group.mixer, form)
    if group.mixer is not None:
        yield from _all_reduce(worker, group.count)


def _state_space(count: int, layer: StateSpace, hidden: int, tp: int, form: Format) -> Iterator[Op]:
    width = layer.layer_parameters / hidden / 2.0 / tp  # in- and out-projection, about half each
    yield Linear("state_in", count, hidden, width, form)
    yield Linear("state_out", count, width, hidden, form)
    yield StateUpdate(count, layer.state_bytes / tp, layer.state_elements / tp, SIXTEEN)


def _cap(layer: Attention) -> float | None:
    limits = [float(limit) for limit in (layer.window, layer.index_topk) if limit is not None]
    return min(limits, default=None)


def _attention(worker: Worker, count: int, layer: Attention, form: Format) -> Iterator[Op]:
    hidden, tp = worker.model.hidden, worker.parallelism.tp
    heads, kv_heads = max(1.0, layer.heads / tp), max(1.0, layer.kv_heads / tp)
    kv_width = kv_heads * (layer.head_dim + layer.v_head_dim)
    query = heads * layer.head_dim * (2.0 if layer.gated_output else 1.0)
    yield Linear("qkv", count, hidden, query + kv_width, form)
    yield Linear("o", count, heads * layer.v_head_dim, hidden, form)
    prefill, decode = attention_formats(worker.accelerator, worker.precision, mla=False)
    yield PrefillAttention(count, heads, layer.score_width, kv_width / layer.compress, _cap(layer), False, prefill)
    yield DecodeAttention(count, heads, layer.score_width, kv_width / layer.compress, _cap(layer), False, decode)


def _latent_attention(worker: Worker, count: int, layer: Attention, form: Format) -> Iterator[Op]:
    hidden, heads = worker.model.hidden, max(1.0, layer.heads / worker.parallelism.tp)
    qk, latent = layer.nope_dim + layer.rope_dim, layer.latent_rank + layer.rope_dim
    if layer.q_rank:
        yield Linear("q_a+kv_a", count, hidden, layer.q_rank + latent, form)
        yield Linear("q_b", count, layer.q_rank, heads * qk, form)
    else:
        yield Linear("q+kv_a", count, hidden, heads * qk + latent, form)
    yield Linear("kv_b", count, layer.latent_rank, heads * (layer.nope_dim + layer.v_head_dim), form)
    yield Linear("o", count, heads * layer.v_head_dim, hidden, form)
    if layer.index_heads:
        width = layer.index_heads * layer.index_head_dim
        yield Linear("index", count, layer.q_rank or hidden, width + layer.index_head_dim, form)
        score = Format("fp8", 1.0, 1.0, Dtype.FP8)
        yield PrefillAttention(count, layer.index_heads, layer.index_head_dim, layer.index_head_dim, None, False, score)
        yield DecodeAttention(count, layer.index_heads, layer.index_head_dim, layer.index_head_dim, None, False, score)
    prefill, decode = attention_formats(worker.accelerator, worker.precision, mla=True)
    yield PrefillAttention(count, heads, layer.score_width, latent, _cap(layer), True, prefill)
    yield DecodeAttention(count, heads, latent + layer.latent_rank, latent, _cap(layer), True, decode)


def _feed_forward(worker: Worker, group: LayerGroup) -> Iterator[Op]:
    if group.mlp is None:
        return
    form = matrix_format(worker.accelerator, worker.precision, worker.model.native)
    if isinstance(group.mlp, Mlp):
        yield from _dense(worker, group.count, group.mlp.intermediate, group.mlp.gated, form)
        yield from _all_reduce(worker, group.count)
    else:
        yield from _experts(worker, group.count, group.mlp, form)


def _dense(worker: Worker, count: int, intermediate: float, gated: bool, form: Format) -> Iterator[Op]:
    hidden, columns = worker.model.hidden, intermediate / worker.parallelism.tp
    yield Linear("gate_up" if gated else "up", count, hidden, (2.0 if gated else 1.0) * columns, form)
    yield Linear("down", count, columns, hidden, form)


def _experts(worker: Worker, count: int, layer: Experts, form: Format) -> Iterator[Op]:
    hidden, parallel = worker.model.hidden, worker.parallelism
    ranks = parallel.tp * parallel.dp
    split = max(1.0, ranks / parallel.ep)
    yield Linear("router", count, hidden, layer.count, SIXTEEN)
    yield RoutedExperts(
        count, hidden, layer.intermediate / split, layer.count, layer.count / min(parallel.ep, ranks),
        layer.per_token, layer.matrices, form,
    )  # fmt: skip
    if layer.shared_intermediate:
        yield from _dense(worker, count, layer.shared_intermediate, layer.gated, form)
    if parallel.dp > 1:
        reach = min(float(layer.per_token), ranks - 1.0)
        sent = reach * hidden * (form.activation_bytes + 2.0) / parallel.tp  # dispatch as stored, combine in 16 bit
        yield Collective(OpKind.ALL_TO_ALL, 2.0 * count, ranks, sent / 2.0, SIXTEEN)
    yield from _all_reduce(worker, count)


def _all_reduce(worker: Worker, count: int) -> Iterator[Op]:
    """After every row-parallel matrix. Each accelerator sends 2·(n − 1)/n of the tensor (ring)."""
    tp = worker.parallelism.tp
    if tp > 1:
        sent = 2.0 * (tp - 1.0) / tp * 2.0 * worker.model.hidden
        yield Collective(OpKind.ALL_REDUCE, float(count), tp, sent, SIXTEEN)


def _small_kernels(worker: Worker, group: LayerGroup) -> Iterator[Op]:
    """Norms, rotary embedding, activation and quantisation: about 20 reads or writes of a hidden vector per layer."""
    yield Elementwise(
        float(KERNELS_PER_LAYER * group.count), 20.0 / KERNELS_PER_LAYER * 2.0 * worker.model.hidden, SIXTEEN
    )
