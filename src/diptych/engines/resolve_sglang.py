"""SGLang 0.5.23's own resolution, repeated: what is stored, in pages of how many tokens, and the word its bootstrap compares.

SGLang compares a *string* and a page size on decode's first contact with a prefill server (`disaggregation/common/conn.py`,
`try_ensure_parallel_info`), while both depend on the accelerator: that is where unlike roles go wrong unseen.
"""

from __future__ import annotations

from diptych.boundary.element import Element
from diptych.catalog.accelerator import Accelerator
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Attention, Model
from diptych.design.capability import family
from diptych.engines.role import RoleConfig

KV_QUANT = "kv-cache-quant-algo"
"""The option under which a checkpoint's own `kv_cache_quant_algo` is kept, where whoever made the role could read it."""

_MODEL_DTYPES = {
    "half": Element.FP16,
    "float16": Element.FP16,
    "bfloat16": Element.BF16,
    "float": Element.FP32,
    "float32": Element.FP32,
}
_FLAGS = {
    "fp8_e5m2": Element.E5M2,
    "fp8_e4m3": Element.E4M3FN,
    "mxfp8": Element.E4M3FN,
    "bf16": Element.BF16,
    "bfloat16": Element.BF16,
    "nvfp4": Element.NVFP4,
}

_PAGES = {
    "flashmla": ((64,), 64),
    "trtllm_mla": ((32, 64), 64),
    "cutedsl_mla": ((32, 64), 64),
    "trtllm_mha": ((16, 32, 64, 128), 64),
    "hpc_ops": ((64,), 64),
}
"""Pages an attention backend takes, and the one it is moved to (`arg_groups/overrides.py`, `_mla_backend_page_constraints`)."""


def model_element(role: RoleConfig, model: Model | None, gpu: Accelerator | None = None) -> Element:
    """The element that the model computes in, which `auto` stores.

    `--dtype auto` is the checkpoint's own type, float16 for a float32 one that is not Gemma's, and float16 below sm80
    (`configs/model_config.py`, `load_model_utils.py`). A model that is not known counts as bfloat16, as nearly all are.
    """
    if _family(gpu) in ("volta", "turing"):
        return Element.FP16
    if role.dtype in _MODEL_DTYPES:
        return _MODEL_DTYPES[role.dtype]
    native = Dtype.BF16 if model is None else model.native
    if native is Dtype.FP32:
        return Element.BF16 if model is not None and model.name.casefold().startswith("gemma") else Element.FP16
    return Element.FP16 if native is Dtype.FP16 else Element.BF16


def kv_flag(role: RoleConfig, model: Model | None, gpu: Accelerator | None) -> str:
    """`--kv-cache-dtype` after the model's own defaults: what is neither said nor changed stays 'auto'.

    Sparse DeepSeek attention takes fp8_e4m3 on sm100 and newer and bfloat16 before; DeepSeek V4 fp8_e4m3 everywhere
    (`arg_groups/overrides.py`, `_dsa_kv_cache_dtype_default`, `_deepseek_v4_kv_cache_dtype`).
    """
    if role.kv_cache_dtype == "auto" and model is not None and _is_deepseek_v4(model):
        return "fp8_e4m3"
    if model is None or not _is_sparse_mla(model):
        return role.kv_cache_dtype
    if gpu is None or gpu.vendor not in ("NVIDIA", "AMD"):
        return role.kv_cache_dtype
    if role.kv_cache_dtype == "auto":
        return "fp8_e4m3" if _family(gpu).startswith("blackwell") else "bfloat16"
    return "bfloat16" if role.kv_cache_dtype == "bf16" else role.kv_cache_dtype


def stored_element(role: RoleConfig, model: Model | None, gpu: Accelerator | None) -> Element | None:
    """The element format in memory; None for a `--kv-cache-dtype` that SGLang or we do not know (fp4_mx_block16).

    Every 8-bit flag on gfx94x (MI300X, MI325X), fp8_e5m2 too, stores e4m3fnuz (`mem_cache/kv_cache_dtype.py`).
    """
    flag = kv_flag(role, model, gpu)
    if flag == "auto":
        element = Element.E4M3FN if _is_fp8_checkpoint(role) else model_element(role, model, gpu)
    elif flag in _FLAGS:
        element = _FLAGS[flag]
    else:
        return None
    if element in (Element.E4M3FN, Element.E5M2) and flag != "mxfp8" and _is_amd(gpu):
        return Element.E4M3FNUZ if _is_fnuz(gpu) else Element.E4M3FN
    return element


def compared_dtype(role: RoleConfig, model: Model | None, gpu: Accelerator | None) -> str:
    """The word that decode compares with prefill's: the flag itself, but fp8_e4m3 for `auto` on a checkpoint with FP8 KV.

    It hides the model's dtype behind 'auto', and fn or fnuz behind 'fp8_e4m3' (`model_runner.py`, `kv_cache_dtype_str`).
    """
    flag = kv_flag(role, model, gpu)
    return "fp8_e4m3" if flag == "auto" and _is_fp8_checkpoint(role) else flag


def page_size(role: RoleConfig, model: Model | None, gpu: Accelerator | None) -> int | None:
    """Tokens of a page after the attention backend and the model had their say; None where the settings alone do not tell.

    Unset is 1, but 64 where the default backend needs it, which on sm100 it does: an unset page differs between H200 and B200.
    An accelerator that is not named counts as one that keeps 1.
    """
    if model is not None and _is_deepseek_v4(model):
        return 128 if gpu is not None and gpu.vendor == "Huawei" else 256
    if model is not None and gpu is not None and _is_sparse_mla(model) and gpu.vendor != "Huawei":
        # On ROCm it is 1 or 64, by the version of Triton (`model_overrides/deepseek_v2.py`).
        return 64 if gpu.vendor == "NVIDIA" else None
    backends = attention_backends(role, model, gpu)
    page = role.block_size
    if page is None and gpu is not None and gpu.vendor == "Huawei":
        return 128
    if page is None and gpu is not None and not backends:
        return None
    for backend in backends:
        allowed, otherwise = _PAGES.get(backend, ((), 0))
        if allowed and page not in allowed:
            page = otherwise
    if "fa4" in backends and _family(gpu) == "blackwell" and not _is_mla(model):
        return 128
    return 1 if page is None else page


def attention_backends(role: RoleConfig, model: Model | None, gpu: Accelerator | None) -> tuple[str, ...]:
    """The attention backends of a role, prefill's and decode's; empty when they follow an accelerator or model not known.

    The defaults by generation are those of `arg_groups/model_override_base.py` and `model_overrides/`.
    """
    named = (role.attention_backend, *(role.options.get(f"{part}-attention-backend") for part in ("prefill", "decode")))
    chosen = tuple(str(name) for name in named if name)
    if chosen or gpu is None:
        return chosen
    return _default_backends(role, model, gpu)


def attention_tp(role: RoleConfig) -> int:
    """Ranks that attention is sharded over: `--tp`, shared out by `--dp-size` under `--enable-dp-attention`."""
    return role.tp // role.dp if role.options.get("enable-dp-attention") and role.dp else role.tp


def _default_backends(role: RoleConfig, model: Model | None, gpu: Accelerator) -> tuple[str, ...]:
    if gpu.vendor == "AMD":
        return ("aiter",)
    if gpu.vendor != "NVIDIA":
        return ()
    if _family(gpu) == "hopper":
        return ("fa3",)
    if _family(gpu) == "blackwell":
        return _default_on_sm100(role, model)
    return ("triton" if _is_mla(model) else "flashinfer",)


def _default_on_sm100(role: RoleConfig, model: Model | None) -> tuple[str, ...]:
    """Blackwell's defaults. With speculation or on a hybrid they hang on settings that a role seldom says: not claimed."""
    if model is None or role.speculative or model.state_bytes > 0:
        return ()
    if _is_mla(model):
        return ("flashinfer",) if model.name.startswith("DeepSeek-V2") else ("trtllm_mla",)
    if any(attention.head_dim != attention.v_head_dim for attention in _attention(model)):
        return ("fa4",)
    return ("trtllm_mha",)


def _is_fp8_checkpoint(role: RoleConfig) -> bool:
    return str(role.options.get(KV_QUANT, "")).upper() == "FP8"


def _family(gpu: Accelerator | None) -> str:
    return "" if gpu is None else family(gpu)


def _is_amd(gpu: Accelerator | None) -> bool:
    return gpu is not None and gpu.vendor == "AMD"


def _is_fnuz(gpu: Accelerator | None) -> bool:
    return gpu is not None and gpu.fp8_format is Dtype.FP8_FNUZ


def _attention(model: Model | None) -> tuple[Attention, ...]:
    return () if model is None else tuple(attention for _, attention in model.attention_groups())


def _is_mla(model: Model | None) -> bool:
    return any(attention.is_mla for attention in _attention(model))


def _is_sparse_mla(model: Model) -> bool:
    return any(attention.is_mla and attention.index_topk for attention in _attention(model))


def _is_deepseek_v4(model: Model) -> bool:
    return model.name.startswith("DeepSeek-V4")
