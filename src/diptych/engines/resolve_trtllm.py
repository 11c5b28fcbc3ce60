"""TensorRT-LLM's resolution of what is stored: `kv_cache_config`, from a flag or from the LLM API's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diptych.boundary.element import Element
from diptych.engines.resolve_sglang import KV_QUANT
from diptych.engines.role import NOTHING, RoleConfig, whole

TOKENS_PER_BLOCK = 32
"""`kv_cache_config.tokens_per_block` where it is not set."""

_DTYPES = {
    "fp8": Element.E4M3FN,
    "nvfp4": Element.NVFP4,
    "int8": Element.INT8,
    "float16": Element.FP16,
    "fp16": Element.FP16,
    "half": Element.FP16,
    "bfloat16": Element.BF16,
    "bf16": Element.BF16,
    "float32": Element.FP32,
}


def kv_word(role: RoleConfig) -> str:
    """`kv_cache_config.dtype` as written, 'auto' where it is not."""
    return role.kv_cache_dtype if role.kv_cache_dtype != "auto" else str(_config(role).get("dtype") or "auto")


def stored_element(role: RoleConfig) -> Element | None:
    """The stored element: auto is the checkpoint's KV format or else the model's type. None for another word.

    A model's type that is not said counts as bfloat16.
    """
    word = kv_word(role)
    if word == "auto":
        word = str(role.options.get(KV_QUANT) or role.dtype)
    return Element.BF16 if word == "auto" else _DTYPES.get(word.casefold())


def tokens_per_block(role: RoleConfig) -> int:
    return whole(role.block_size, whole(_config(role).get("tokens_per_block"), TOKENS_PER_BLOCK))


def _config(role: RoleConfig) -> Mapping[str, Any]:
    config = role.options.get("kv_cache_config", NOTHING)
    return config if isinstance(config, Mapping) else NOTHING
