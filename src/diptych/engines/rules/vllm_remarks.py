"""What is fine of a vLLM pair though it looks wrong, and what could not be decided from what was said."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.boundary.descriptor import Layout
from diptych.boundary.element import Element
from diptych.engines.engine import Engine
from diptych.engines.resolve import Joint
from diptych.engines.resolve_gpu import platform
from diptych.engines.rule import Broken, Remark
from diptych.engines.rules.vllm_pair import are_apart, both, is_hashed, is_nixl


def unpinned_backend(joint: Joint, found: tuple[Broken, ...]) -> Iterator[Remark]:
    """Unlike accelerators whose backends agree, or may."""
    prefill, decode = joint.prefill, joint.decode
    if not is_hashed(joint) or (prefill.attention_backend and decode.attention_backend):
        return
    ours, theirs = joint.prefill_stored.backends, joint.decode_stored.backends
    change = "set --attention-backend on both roles"
    said = (" or ".join(ours) or "unknown", " or ".join(theirs) or "unknown")
    if len(ours) == 1 and ours == theirs and prefill.gpu != decode.gpu:
        sentence = "both accelerators choose one attention backend; another release may choose otherwise"
    elif (not ours or not theirs or set(ours) & set(theirs)) and (ours != theirs or len(ours) > 1):
        sentence = "whether both roles choose one attention backend is not known"
    else:
        return
    yield Remark(*said, sentence, change, both(joint, "attention_backend"))


def unset_side_channel(joint: Joint, found: tuple[Broken, ...]) -> Iterator[Remark]:
    """A side channel at localhost, of roles that may be on one host or not."""
    name = "VLLM_NIXL_SIDE_CHANNEL_HOST"
    if is_nixl(joint) and are_apart(joint) is None and name not in joint.prefill.env:
        sentence = f"{name} is not set: right on one host, wrong across two"
        yield Remark("localhost (default)", "", sentence, f"set {name} on prefill", (joint.prefill.place(name),))


def permuted(joint: Joint, found: tuple[Broken, ...]) -> Iterator[Remark]:
    """Layouts that differ and are permuted on receipt."""
    layouts = joint.prefill_stored.layout, joint.decode_stored.layout
    told = {place for each in found for place in each.clash.places}
    places = both(joint, "VLLM_KV_CACHE_LAYOUT")
    if is_nixl(joint) and layouts == (Layout.LBHNC, Layout.LBNHC) and places[1] not in told:
        yield Remark(layouts[0], layouts[1], "decode permutes what it receives (enable_permute_local_kv)", "", places)


def drifting_kernels(joint: Joint, found: tuple[Broken, ...]) -> Iterator[Remark]:
    """One FP8 format on both sides that FlashAttention 3 itself does not read alike (vllm#54035)."""
    for role, stored, gpu in (
        (joint.prefill, joint.prefill_stored, joint.prefill_gpu),
        (joint.decode, joint.decode_stored, joint.decode_gpu),
    ):
        found_platform = platform(gpu)
        if role.engine is not Engine.VLLM or found_platform is None or found_platform.capability[0] != 9:
            continue
        if stored.element is Element.E4M3FN and stored.backends == ("FLASH_ATTN",):
            sentence = (
                "FP8 KV on Hopper: prefill and decode kernels differ slightly from position 96 on, colocated or not"
            )
            yield Remark(joint.prefill_stored.says, joint.decode_stored.says, sentence)
            return


REMARKS = (unpinned_backend, unset_side_channel, permuted, drifting_kernels)
