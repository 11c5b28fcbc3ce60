"""Pages, formats and weights: what SGLang's bootstrap compares at decode's first contact, and what it does not (SG1 to SG3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diptych.boundary.element import Element
from diptych.engines.engine import Engine
from diptych.engines.resolve import Joint
from diptych.engines.resolve_sglang import page_size
from diptych.engines.resolve_stored import same_bytes
from diptych.engines.rule import Clash, Rule, Severity
from diptych.engines.rules.names import different_models
from diptych.engines.rules.sglang_pair import CONN

_PAGES = (64, 128, 32, 16, 1)
"""Pages to advise, the most widely taken first."""


def _same_page(joint: Joint) -> Iterator[Clash]:
    prefill, decode = joint.prefill, joint.decode
    sizes = (joint.prefill_stored.block_tokens, joint.decode_stored.block_tokens)
    is_unset = prefill.block_size is None and decode.block_size is None
    is_guess = is_unset and (joint.prefill_gpu is None or joint.decode_gpu is None)
    if None in sizes or sizes[0] == sizes[1] or is_guess:
        return
    common = next((size for size in _PAGES if _is_common(joint, size)), None)
    yield Clash(
        _pages(sizes[0]),
        _pages(sizes[1]),
        f"set --page-size {common} on both roles" if common else "choose accelerators whose attention takes one page",
        (prefill.place("block_size"), decode.place("block_size")),
        "an unset page follows the default attention backend: 64 on sm100, 1 elsewhere" if is_unset else "",
    )


def _is_common(joint: Joint, size: int) -> bool:
    """Whether both roles keep pages of `size` when told to: some backends and models have their own will."""
    decode_model = joint.decode_model or joint.model
    told = [replace(role, block_size=size) for role in (joint.prefill, joint.decode)]
    kept = (page_size(told[0], joint.model, joint.prefill_gpu), page_size(told[1], decode_model, joint.decode_gpu))
    return kept[0] == kept[1] is not None


def _pages(size: int | None) -> str:
    return "pages of 1 token" if size == 1 else f"pages of {size} tokens"


def _same_kv(joint: Joint) -> Iterator[Clash]:
    """What is compared is a word, what counts is the element: both ways it can go wrong."""
    mine, theirs = joint.prefill_stored, joint.decode_stored
    words, stored = (mine.word, theirs.word), (mine.element, theirs.element)
    if words[0] == words[1] and (stored[0] == stored[1] or None in stored):
        return
    setting = "kv_cache_dtype" if words[0] != words[1] or words[0] != "auto" else "dtype"
    yield Clash(
        mine.says,
        theirs.says,
        _kv_change(words, stored),
        (joint.prefill.place(setting), joint.decode.place(setting)),
        _kv_detail(words, stored),
        Severity.SILENT if words[0] == words[1] else Severity.REQUEST,
        is_spurious=words[0] != words[1] and same_bytes(mine, theirs) is True,
    )


def _kv_change(words: tuple[str, str], stored: tuple[Element | None, Element | None]) -> str:
    if words[0] == words[1] == "auto":
        return "set the same --dtype on both roles, or --kv-cache-dtype bfloat16 on both"
    if words[0] == words[1]:
        return "store bfloat16 on both roles, or translate e4m3fnuz at the boundary: SGLang does not"
    if stored[0] == stored[1] and words[1] != "auto":
        return f"write --kv-cache-dtype {words[1]} on both roles"
    if stored[0] == stored[1]:
        return f"write --kv-cache-dtype {words[0]} on both roles"
    return "set the same --kv-cache-dtype on both roles: SGLang does not convert"


def _kv_detail(words: tuple[str, str], stored: tuple[Element | None, Element | None]) -> str:
    if words[0] == words[1]:
        return "the words agree, so the bootstrap accepts the pair and decode reads the bytes as another format"
    return "the bytes are the same, only the spelling differs" if stored[0] == stored[1] else ""


def _same_weights(joint: Joint) -> Iterator[Clash]:
    prefill, decode = joint.prefill, joint.decode
    if different_models(prefill.model, decode.model):
        yield Clash(
            prefill.model,
            decode.model,
            "serve one model on both roles",
            (prefill.place("model"), decode.place("model")),
            "the bootstrap does not name the model",
        )
    elif prefill.revision and decode.revision and prefill.revision != decode.revision:
        yield Clash(
            f"revision {prefill.revision}",
            f"revision {decode.revision}",
            "pin one --revision on both roles",
            (prefill.place("revision"), decode.place("revision")),
        )


RULES = (
    Rule(
        "SG1",
        Engine.SGLANG,
        Severity.REQUEST,
        "Both roles keep pages of one size.",
        f"{CONN} (try_ensure_parallel_info); the default by accelerator: arg_groups/overrides.py",
        _same_page,
        message="Page size mismatch: prefill server has page_size=",
    ),
    Rule(
        "SG2",
        Engine.SGLANG,
        Severity.REQUEST,
        "Both roles write --kv-cache-dtype alike and store the same element.",
        f"{CONN}, mem_cache/kv_cache_dtype.py: only the word is compared; the wrong output that follows is derived, not run",
        _same_kv,
        message="KV cache dtype mismatch: prefill server has kv_cache_dtype=",
    ),
    Rule(
        "SG3",
        Engine.SGLANG,
        Severity.SILENT,
        "Both roles serve the same weights at the same revision.",
        f"{CONN}: PrefillServerInfo has no model field; derived, not run",
        _same_weights,
    ),
)
