"""What KV costs to move: bytes on the wire, the path they take, what of it a request feels, and what converting them costs.

Bandwidths are bytes/s of one direction. Token counts and bytes may be arrays. A transfer is never free: every path has a
bandwidth, every conversion reads and writes memory, and TP above the KV heads sends copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link, LinkKind
from diptych.catalog.model import Attention, Model
from diptych.design.axes import Worker
from diptych.design.boundary import Overlap
from diptych.perf.estimate import Array
from diptych.perf.queueing import Wait, wait

STREAM_MBU = 0.8
"""Share of memory bandwidth that a streaming kernel reaches: the low end of what decode attention was measured at when it
reads more than 512 MB (0.8 to 0.9 on A100, H100, H200, B200, GB200, L40S, RTX PRO 6000 and B60)."""

CONVERSION_OPERATIONS = 2.0
"""Of one element that is converted: multiply by the old scale, then by the new one."""


class Granularity(StrEnum):
    """What shares one quantisation scale."""

    NONE = "none"
    TENSOR = "per-tensor"
    TOKEN = "per-token"  # noqa: S105  one per token, layer, KV head and side (K, V)
    GROUP = "per-group"


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales that travel with quantised KV: `size` bytes each (zero point included); `group` elements share one."""

    granularity: Granularity = Granularity.NONE
    size: float = 4.0
    group: int = 64

    def per_token(self, attention: Attention) -> float:
        """Bytes of scales of one kept token in one layer."""
        if self.granularity is Granularity.GROUP:
            return attention.kv_elements / self.group * self.size
        if self.granularity is Granularity.TOKEN:
            return _parts(attention) * attention_heads(attention) * self.size / attention.compress
        return 0.0

    def per_layer(self, attention: Attention) -> float:
        """Bytes of scales of one layer whatever the length."""
        return _parts(attention) * self.size if self.granularity is Granularity.TENSOR else 0.0


def default_scales(wire: Dtype) -> Scales:
    """The scales engines keep with a KV format: none for 16 bit, per tensor for FP8, per token for INT8, groups for 4 bit."""
    if wire.bytes >= 2:
        return Scales()
    if wire.is_fp8:
        return Scales(Granularity.TENSOR)
    return Scales(Granularity.TOKEN) if wire is Dtype.INT8 else Scales(Granularity.GROUP, size=2.0)


def attention_heads(attention: Attention) -> int:
    """KV heads that TP can split; a shared latent is one for all."""
    return 1 if _is_shared(attention) else attention.kv_heads


def replication(attention: Attention, tp: Any, latent_copies: Any = 1) -> Array:
    """Copies of each KV element that the ranks of one side hold together: max(TP, n_kv)/n_kv, at least 1.

    A latent that all heads share (MLA) is needed whole by every rank. It crosses the path once when one rank receives and
    shares it over the scale-up link (`latent_copies` 1), once per rank when each pulls its own (`latent_copies` = TP).
    """
    if _is_shared(attention):
        return np.maximum(1.0, _array(latent_copies))
    return np.maximum(1.0, _array(tp) / attention.kv_heads)


def wire_bytes(
    model: Model,
    tokens: Any,
    wire_dtype: Dtype,
    prefill_tp: Any = 1,
    decode_tp: Any = 1,
    *,
    held: Any = 0,
    scales: Scales | None = None,
    latent_copies: Any = 1,
) -> Array:
    """Bytes that cross the path for one request of `tokens` prompt tokens, `held` of which the decode side already has.

    Only tokens that a layer keeps travel (sliding windows); fixed-size state always does. Each side's ranks exchange all they
    hold, so the side with the larger TP sets the replication. `scales` default to those usual for the format.
    """
    tokens, held = _array(tokens), _array(held)
    scales = default_scales(wire_dtype) if scales is None else scales
    tp = np.maximum(prefill_tp, decode_tp)
    total: Array = np.zeros(np.broadcast_shapes(tokens.shape, held.shape, np.shape(tp), np.shape(latent_copies)))
    for count, attention in model.attention_groups():
        per_token = attention.kv_elements * wire_dtype.bytes + scales.per_token(attention)
        missing = attention.kept_tokens(np.maximum(tokens - held, 0.0))
        copies = replication(attention, tp, latent_copies)
        total = total + count * copies * (per_token * missing + scales.per_layer(attention) * (missing > 0))
    return total + model.state_bytes


def pieces(model: Model, tokens: Any, block: int = 16, prefill_tp: int = 1, decode_tp: int = 1) -> Array:
    """Descriptors that one rank posts: layers × blocks × (K, V), times the ranks each block is split over when TP differs."""
    split = max(prefill_tp, decode_tp) / min(prefill_tp, decode_tp)
    posted: Array = np.zeros(np.shape(tokens))
    for count, attention in model.attention_groups():
        blocks = np.ceil(attention.kept_tokens(_array(tokens)) / block)
        posted = posted + count * _parts(attention) * (1 if _is_shared(attention) else split) * blocks
    return posted


def path(
    prefill_worker: Worker,
    decode_worker: Worker,
    link: Link,
    prefill_nic: float = 0.0,
    decode_nic: float = 0.0,
    staging_buffer: float | None = None,
) -> Link:
    """The link as one pair of workers sees it: the least of egress, fabric and ingress, all ranks moving their share at once.

    `link` is what one accelerator gets. `prefill_nic` and `decode_nic` are an offer's NIC share per accelerator (0: the
    accelerator's own, and when that is unknown too, the link's). Inside a server the scale-up link or PCIe bounds instead.
    A host-staged path adds the copies over PCIe: all of them when whole prompts are staged, else one `staging_buffer` (bytes)
    on either side while the slowest hop sets the rate. Memory shared with the host (PCIe bandwidth 0) needs no copy.
    """
    egress = _lanes(prefill_worker) * _lane_bandwidth(prefill_worker, link, prefill_nic)
    ingress = _lanes(decode_worker) * _lane_bandwidth(decode_worker, link, decode_nic)
    lanes = min(_lanes(prefill_worker), _lanes(decode_worker))
    wire = replace(link, bandwidth=min(egress, ingress), half_size=link.half_size * lanes)
    if link.kind is not LinkKind.HOST_STAGED:
        return wire
    sides = (prefill_worker, decode_worker)
    copies = [_lanes(side) * side.accelerator.pcie_bandwidth for side in sides if side.accelerator.pcie_bandwidth > 0]
    if staging_buffer is None:
        return replace(wire, bandwidth=1 / (1 / wire.achievable + sum(1 / copy for copy in copies)) / link.efficiency)
    fill = sum(staging_buffer / copy for copy in copies)
    return replace(wire, alpha=link.alpha + fill, bandwidth=min(wire.achievable, *copies) / link.efficiency)


def pool_bandwidth(link: Link, prefill_workers: Any, decode_workers: Any, fabric: Any = np.inf) -> Array:
    """Bytes/s between two pools: every worker adds its `path`, the fabric between them caps the sum."""
    return _array(np.minimum(np.minimum(prefill_workers, decode_workers) * link.achievable, fabric))


def transfer_seconds(link: Link, size: Any, posted: Any = 0) -> Array:
    """Seconds to move `size` bytes posted as `posted` descriptors, alone on the path; 0 when nothing moves."""
    size = _array(size)
    return np.where(size > 0, link.seconds(size, posted), 0.0)


def exposed_seconds(
    transfer: Any, prefill: Any, layers: int, overlap: Overlap = Overlap.SERIAL, chunks: Any = 1, sync: float = 0.0
) -> Array:
    """What of a `transfer` a request still waits for after its `prefill` (s).

    KV leaves in S equal steps, as prefill produces it: S = chunks (chunked prefill), times layers when layer-wise. Step i can
    leave when it is computed and the one before has left, so max(T/S, T − P·(S−1)/S) stays visible: the last step's share when
    prefill is slower than the link, the excess when it is faster. `sync` is the completion handshake of a streamed transfer
    (5 to 8 ms in Splitwise); a sender that would lose by streaming sends at the end.
    """
    transfer, prefill = _array(transfer), _array(prefill)
    steps = _array(chunks) * (layers if overlap is Overlap.LAYERWISE else 1)
    streamed = np.maximum(transfer / steps, transfer - prefill * (steps - 1) / steps)
    return _array(np.where(steps > 1, np.minimum(transfer, streamed + sync), transfer))


def conversion_seconds(
    model: Model,
    tokens: Any,
    source: Dtype,
    target: Dtype,
    worker: Worker,
    mbu: float = STREAM_MBU,
) -> Array:
    """Seconds `worker` needs to rewrite the KV of `tokens` tokens from `source` to `target`; 0 when they are the same format.

    Every element is read once and written once in the memory of the ranks that hold it (replicated heads are converted on each
    rank), or multiplied once if the vector units are slower. fp8 e4m3fn and e4m3fnuz are different formats: same bits, half or
    twice the value, so passing one for the other is a re-scale too.
    """
    if source is target:
        return np.zeros(np.shape(tokens))
    elements = _held_elements(model, tokens, worker.parallelism.tp)
    return rewrite_seconds(elements * (source.bytes + target.bytes), worker, CONVERSION_OPERATIONS * elements, mbu)


def rewrite_seconds(moved: Any, worker: Worker, operations: Any = 0.0, mbu: float = STREAM_MBU) -> Array:
    """Seconds the ranks of `worker` need to read and write `moved` bytes between them, or for `operations` if that is longer."""
    ranks = worker.parallelism.tp * worker.parallelism.pp
    memory = _array(moved) / (worker.accelerator.memory_bandwidth * mbu * ranks)
    vector = worker.accelerator.peak_flops.get(Dtype.FP32, 0.0)
    return np.maximum(memory, _array(operations) / (vector * ranks)) if vector else memory


def staged_conversion_seconds(model: Model, tokens: Any, source: Dtype, target: Dtype, host_bandwidth: float) -> Array:
    """Seconds to convert in a staging buffer beside the transfer, read and written over `host_bandwidth` (bytes/s)."""
    if source is target:
        return np.zeros(np.shape(tokens))
    return _array(_held_elements(model, tokens, 1) * (source.bytes + target.bytes) / host_bandwidth)


def break_even_bandwidth(raw: Any, reduced: Any, conversion: Any) -> Array:
    """The path bandwidth below which sending `reduced` instead of `raw` bytes repays `conversion` seconds; 0 if it never does."""
    saved, conversion = np.broadcast_arrays(np.maximum(_array(raw) - _array(reduced), 0.0), _array(conversion))
    free = np.where(saved > 0, np.inf, 0.0)
    return _array(np.divide(saved, conversion, out=free, where=conversion > 0))


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """A path under load: share of time busy, seconds of one transfer alone, and the wait before it (M/G/1)."""

    utilisation: Array
    seconds: Array
    wait: Wait


def link_load(link: Link, rate: Any, mean_bytes: Any, cv2_bytes: Any = 0.0, posted: Any = 0) -> LinkLoad:
    """The queue before a path that `rate` requests/s of `mean_bytes` share; `cv2_bytes` is the squared variation of the bytes.

    Service is affine in bytes, so only its variable part varies. At or above utilisation 1 the wait is ∞.
    """
    seconds = transfer_seconds(link, mean_bytes, posted)
    streaming, whole = np.broadcast_arrays(_array(mean_bytes) / link.achievable, seconds)
    share = np.divide(streaming, whole, out=np.zeros(whole.shape), where=whole > 0)
    return LinkLoad(_array(rate) * seconds, seconds, wait(rate, 1, seconds, _array(cv2_bytes) * share**2))


def required_bandwidth(kv_bytes: Any, batch: Any, seconds: Any, accelerators: Any) -> Array:
    """Bytes/s per accelerator that a worker must send or receive to keep up: kv_bytes·batch/(seconds·accelerators).

    `kv_bytes` is the KV of one prompt, K and V both counted. Egress: `batch` prompts leave every `seconds` = prefill time.
    Ingress: `batch` requests are replaced every `seconds` = TPOT·OSL. Egress need falls with ISL, as prefill time grows faster
    than KV; ingress falls with OSL ("Beyond the Buzz", arXiv:2506.05508).
    """
    return _array(_array(kv_bytes) * batch / (_array(seconds) * accelerators))


def fetch_bandwidth(kv_bytes: Any, recompute_seconds: Any) -> Array:
    """Bytes/s above which fetching KV beats computing it again: its bytes over the prefill time they save."""
    return _array(_array(kv_bytes) / _array(recompute_seconds))


def reuse_bandwidth(
    hidden: float, gqa: float, element_bytes: float, prefix: Any, flops: float, a: float = 4.0, b: float = 22.0
) -> Array:
    """The same from first principles (Mooncake, FAST'25, eq. 2): B > G·2·d·s / (gqa·(a·p·d + b·d²)).

    A layer's prefill of p tokens is a·p²·d + b·p·d² FLOP at `flops` = G FLOP/s; its KV 2·p·d·s/gqa bytes. The defaults of a and b
    are the paper's for LLaMA3-70B.

    >>> [round(float(reuse_bandwidth(8192, 8, 2, 8192, 8 * peak)) / 1e9, 1) for peak in (312e12, 989e12)]
    [5.9, 18.6]
    """
    prefix = _array(prefix)
    return _array(flops * 2 * hidden * element_bytes / (gqa * (a * prefix * hidden + b * hidden**2)))


def _array(value: Any) -> Array:
    return np.asarray(value, dtype=float)


def _parts(attention: Attention) -> int:
    """Tensors cached per layer: K and V, or the one latent."""
    return 1 if _is_shared(attention) else 2


def _is_shared(attention: Attention) -> bool:
    """One cached vector serves all heads, as key and as value."""
    return attention.is_mla or attention.key_is_value


def _held_elements(model: Model, tokens: Any, tp: int) -> Array:
    """KV elements that the ranks of one side hold for one request, copies included."""
    tokens = _array(tokens)
    held: Array = np.zeros_like(tokens)
    for count, attention in model.attention_groups():
        copies = replication(attention, tp, latent_copies=tp)
        held = held + count * copies * attention.kv_elements * attention.kept_tokens(tokens)
    return held


def _lanes(worker: Worker) -> int:
    """Accelerators that move one request's KV: attention DP keeps a request on one group of ranks."""
    return worker.parallelism.tp * worker.parallelism.pp


def _lane_bandwidth(worker: Worker, link: Link, nic: float) -> float:
    """What one accelerator can move: the link, or its own port where that is narrower (0: unknown)."""
    accelerator = worker.accelerator
    if link.kind is LinkKind.SCALEUP:
        port = accelerator.scaleup.bandwidth
    elif link.kind is LinkKind.PCIE:
        port = accelerator.pcie_bandwidth
    else:
        port = nic or accelerator.nic_bandwidth
    return min(link.bandwidth, port) if port > 0 else link.bandwidth
