"""What is fine of a vLLM pair though it looks wrong, and what cannot be decided from what was said."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.boundary.descriptor import Layout
from diptych.boundary.element import Element
from diptych.catalog.dtype import Dtype
from diptych.engines.engine import Engine
from diptych.engines.resolve import Joint
from diptych.engines.resolve_gpu import platform
from diptych.engines.resolve_stored import same_bytes
from diptych.engines.role import RoleConfig
from diptych.engines.rule import Broken, Remark
from diptych.engines.rules.vllm_pair import are_apart, both, is_hashed, is_nixl


def alike_unpinned(joint: Joint, found: tuple[Broken, ...]) -> Iterator[Remark]:
    """Unlike accelerators that choose one backend, unasked."""
    prefill, decode = joint.prefill, joint.decode
    if not is_hashed(joint) or (prefill.attention_backend and decode.attention_backend) or prefill.gpu == decode.gpu:
        return
    ours, theirs = joint.prefill_stored.backends, joint.decode_stored.backends
    if len(ours) == 1 and ours == theirs:
        sentence = "both accelerators choose one attention backend; another release may choose otherwise"
        change = "set --attention-backend on both roles"
        yield Remark(ours[0], theirs[0], sentence, change, both(joint, "attention_backend"))


def permuted(joint: Joint, found: tuple[Broken, ...]) -> Iterator[Remark]:
    """Layouts that differ and are permuted on receipt."""
    layouts = joint.prefill_stored.layout, joint.decode_stored.layout
    told = {place for each in found for place in each.clash.places}
    places = both(joint, "VLLM_KV_CACHE_LAYOUT")
    if is_nixl(joint) and layouts == (Layout.LBHNC, Layout.LBNHC) and places[1] not in told:
        yield Remark(layouts[0], layouts[1], "decode permutes what it receives (enable_permute_local_kv)", "", places)


def drifting_kernels(joint: Joint, found: tuple[Broken, ...]) -> Iterator[Remark]:
    """One FP8 format on both sides that FlashAttention 3 itself does not read alike (vllm#54035)."""
    if same_bytes(joint.prefill_stored, joint.decode_stored) is not True:
        return
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
            yield Remark(f"{stored.element} KV", f"{stored.element} KV", sentence)
            return


def doubtful_backend(joint: Joint) -> Iterator[str]:
    """Whether the backends agree, where each or one of them is not known for sure."""
    ours, theirs = joint.prefill_stored.backends, joint.decode_stored.backends
    is_sure = len(ours) == len(theirs) == 1 or (ours and theirs and not set(ours) & set(theirs))
    if is_hashed(joint) and not is_sure and _settings(joint.prefill) != _settings(joint.decode):
        yield "whether both roles choose one attention backend, as the handshake wants: set --attention-backend on both"


def _settings(role: RoleConfig) -> tuple[str, str, str]:
    """What a backend follows from; equal on both sides, it is equal too."""
    return role.gpu, role.kv_cache_dtype, role.attention_backend


def doubtful_dtype(joint: Joint) -> Iterator[str]:
    """The dtype of a quantised checkpoint, taken for bfloat16, where one side names another or says nothing."""
    model = joint.model
    is_taken = model is not None and model.native not in (Dtype.BF16, Dtype.FP16, Dtype.FP32)
    if is_taken and joint.prefill.engine is Engine.VLLM and joint.prefill.dtype != joint.decode.dtype:
        yield "whether the checkpoint's own dtype is bfloat16, as was taken: set --dtype on both roles"


def doubtful_fp8(joint: Joint) -> Iterator[str]:
    """FP8 of an accelerator that is not named, beside one of the two kinds."""
    elements = {joint.prefill_stored.element, joint.decode_stored.element}
    if Element.E4M3FNUZ in elements and len(elements) > 1 and None in (joint.prefill_gpu, joint.decode_gpu):
        yield "which FP8 the accelerator that is not named stores: e4m3fnuz on MI300X and MI325X, e4m3fn elsewhere"


def doubtful_address(joint: Joint) -> Iterator[str]:
    """A side channel at localhost, of roles that may be on one host or not."""
    name = "VLLM_NIXL_SIDE_CHANNEL_HOST"
    if is_nixl(joint) and are_apart(joint) is None and name not in joint.prefill.env:
        yield f"whether prefill and decode share a host: {name} is not set, which is wrong across two"


REMARKS = (alike_unpinned, permuted, drifting_kernels)
DOUBTS = (doubtful_backend, doubtful_dtype, doubtful_fp8, doubtful_address)
