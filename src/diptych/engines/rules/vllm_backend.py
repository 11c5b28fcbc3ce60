"""An attention backend that a vLLM role was told to use, and whether it runs there (VN31)."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.engines.resolve import Joint
from diptych.engines.resolve_gpu import Platform, platform
from diptych.engines.resolve_stored import Stored
from diptych.engines.resolve_vllm import is_mla, is_sparse
from diptych.engines.rule import Clash, Severity
from diptych.engines.rules.vllm_pair import one_sided, roles, vllm_rule

_ON_CUDA = {
    "FLASH_ATTN_MLA": (9,),
    "FLASHMLA": (9, 10),
    "FLASHINFER_MLA": (10,),
    "TOKENSPEED_MLA": (10,),
    "CUTLASS_MLA": (10,),
    "FLASHINFER": (8, 9, 10, 11, 12),
    "FLASH_ATTN": (8, 9, 10, 11, 12),
}
"""Major compute capabilities that a backend runs on (its `supports_compute_capability`)."""
_CUDA_ALONE = ("FLASHMLA", "FLASHINFER", "FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA")
_SIXTEEN_BIT = ("auto", "float16", "bfloat16")
_FP8 = ("fp8", "fp8_e4m3")


def _pinned(joint: Joint) -> Iterator[Clash]:
    """VN31."""
    sides = ((joint.prefill_stored, joint.prefill_gpu), (joint.decode_stored, joint.decode_gpu))
    for role, (stored, gpu) in zip(roles(joint), sides, strict=True):
        name = role.attention_backend.upper().rpartition(".")[2]
        place = platform(gpu)
        if not name or place is None or gpu is None or (joint.model is not None and is_sparse(joint.model)):
            continue
        if joint.model is not None and name in _ON_CUDA and ("MLA" in name) != is_mla(joint.model):
            why = f"{joint.model.name} {'has' if is_mla(joint.model) else 'has no'} MLA"
        else:
            why = _misfit(name, stored, place)
        if why:
            change = "leave --attention-backend to vLLM, or name one that fits"
            yield Clash(*one_sided(role, f"{name} on {gpu.name}: {why}"), change, (role.place("attention_backend"),))


def _misfit(name: str, stored: Stored, place: Platform) -> str:
    """Why a backend does not run there with this KV format; empty where it does, or where that is not known."""
    if place.device == "rocm":
        return "runs on CUDA alone" if name in _CUDA_ALONE else ""
    if place.device == "cuda" and name.startswith("ROCM_"):
        return "runs on ROCm alone"
    major = place.capability[0]
    if place.device != "cuda" or name not in _ON_CUDA:
        return ""
    if major not in _ON_CUDA[name]:
        return f"does not run on compute capability {place.generation}"
    if name == "FLASH_ATTN" and stored.word not in _SIXTEEN_BIT and (stored.word not in _FP8 or major not in (9, 10)):
        return f"does not read {stored.word} KV there"
    if name == "FLASH_ATTN_MLA" and stored.word not in _SIXTEEN_BIT:
        return f"does not read {stored.word} KV"
    return f"does not read {stored.word} KV" if name == "FLASHINFER" and stored.word.endswith("per_token_head") else ""


RULES = (
    vllm_rule(
        "VN31",
        Severity.STARTUP,
        "A pinned attention backend runs on the accelerator and reads the KV format.",
        _pinned,
        "vLLM 0.33 platforms/cuda.py and platforms/rocm.py (get_attn_backend_cls), v1/attention/backends",
        "is not valid for this configuration",
    ),
)
