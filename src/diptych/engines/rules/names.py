"""Whether two names of a model mean the same weights, as far as names can tell."""

from __future__ import annotations

import re

_QUANTIZED = re.compile(
    r"[-_.](fp8|fp4|nvfp4|mxfp4|mxfp8|int8|int4|awq|gptq|bnb|w[48]a(4|8|16)|quantized|dynamic|block|kv|modelopt|marlin"
    r"|bf16|fp16)(?=$|[-_.])",
    re.IGNORECASE,
)


def different_models(prefill: str, decode: str) -> bool:
    """Whether two names are surely two models. A repository against a folder is unknown, and so not different.

    A quantised copy is the same model: 'RedHatAI/Qwen3-8B-FP8-dynamic' for 'Qwen/Qwen3-8B'.
    """
    if not prefill or not decode or _is_folder(prefill) != _is_folder(decode):
        return False
    return base_name(prefill) != base_name(decode)


def base_name(model: str) -> str:
    """The last part of a name without its precision, in one case."""
    last = model.rstrip("/").rsplit("/", 1)[-1]
    while (shorter := _QUANTIZED.sub("", last)) != last:
        last = shorter
    return last.casefold()


def _is_folder(model: str) -> bool:
    return model.startswith(("/", ".", "~")) or "://" in model
