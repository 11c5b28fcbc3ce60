"""LMCache's rules, where it carries KV between vLLM roles: its buffer, its chunks, its key and its patience.

Settings are read from `LMCACHE_*` variables and from `lmcache.*` keys of the connector's extra configuration, as LMCache does. A
role with `LMCACHE_CONFIG_FILE` keeps them in a file that is not seen, and what is not seen is not complained of.
"""

from __future__ import annotations

from collections.abc import Iterator

from diptych.catalog.dtype import Dtype
from diptych.engines.engine import Engine
from diptych.engines.resolve import Joint
from diptych.engines.role import RoleConfig, whole
from diptych.engines.rule import Clash, Rule, Severity

_CONFIG = "LMCache 0.5.6 v1/config.py"
_ON = ("1", "true", "yes", "on")
_VLLM_BLOCK = 16


def carries(role: RoleConfig) -> bool:
    """Whether LMCache is among the connectors of a role."""
    return role.connector is not None and any(each.name.startswith("LMCache") for each in role.connector.all())


def setting(role: RoleConfig, name: str) -> str:
    """One setting of LMCache as text; empty where it is not said."""
    if text := role.env_text(f"LMCACHE_{name.upper()}"):
        return text
    connectors = role.connector.all() if role.connector is not None else ()
    return next((str(each.extra[key]) for each in connectors if (key := f"lmcache.{name}") in each.extra), "")


def is_pair(joint: Joint) -> bool:
    """Whether LMCache moves KV straight from prefill to decode (`enable_pd`), rather than through a store."""
    roles = (joint.prefill, joint.decode)
    return all(carries(role) for role in roles) and any(_is_pd(role) for role in roles)


def _is_pd(role: RoleConfig) -> bool:
    return setting(role, "enable_pd").casefold() in _ON or bool(setting(role, "pd_role"))


def _has_file(role: RoleConfig) -> bool:
    return "LMCACHE_CONFIG_FILE" in role.env


def _buffer(joint: Joint) -> Iterator[Clash]:
    longest = joint.deployment.expected.prompt_max
    if longest is None or joint.model is None or not is_pair(joint):
        return
    for role, stored in ((joint.prefill, joint.prefill_stored), (joint.decode, joint.decode_stored)):
        size = whole(setting(role, "pd_buffer_size"), 0)
        kv = stored.element.dtype if stored.element is not None else Dtype.BF16
        needed = float(joint.model.kv_bytes(longest, kv)) / min(role.tp, joint.model.kv_heads)
        if 0 < size < needed:
            short = f"{needed / 2**30:.2f} GiB of KV for {longest:g} tokens, in a buffer of {size / 2**30:.2f} GiB"
            yield Clash(
                short if role is joint.prefill else "",
                short if role is joint.decode else "",
                f"set pd_buffer_size to {int(needed) + 1} bytes or more, or cap prompts",
                (role.place("LMCACHE_PD_BUFFER_SIZE"),),
                severity=Severity.LEAK if setting(role, "pd_backend_mode") == "sync" else None,
            )


def _short_prompts(joint: Joint) -> Iterator[Clash]:
    """Prompts below one block of vLLM are never saved, so decode is never told (0.3.12; PD saves unfull chunks by itself)."""
    prompt = joint.deployment.expected.prompt_p50
    block = joint.prefill.block_size or _VLLM_BLOCK
    if prompt is not None and prompt < block and is_pair(joint):
        yield Clash(
            f"blocks of {block} tokens",
            f"waits for the KV of prompts of {prompt:g} tokens",
            f"set a --block-size below {prompt:g}, or keep such prompts on decode",
            (joint.prefill.place("block_size"),),
        )


def _same_key(joint: Joint) -> Iterator[Clash]:
    prefill, decode = joint.prefill, joint.decode
    if not (carries(prefill) and carries(decode)):
        return
    keys = (_key(prefill), _key(decode))
    for name, mine, yours in zip(("model", "kv_cache_dtype", "tp"), *keys, strict=True):
        if mine != yours:
            yield Clash(
                f"{_WORDS[name]} {mine}",
                f"{_WORDS[name]} {yours}",
                f"give both roles one {_WORDS[name]}: it is part of the key, and decode finds nothing under another",
                (prefill.place(name), decode.place(name)),
            )


_WORDS = {"model": "model name", "kv_cache_dtype": "KV dtype", "tp": "world size"}


def _key(role: RoleConfig) -> tuple[str, str, str]:
    """Model, KV type and ranks: `CacheEngineKey`. fp8 and fp8_e4m3 are one torch type."""
    kv = role.kv_cache_dtype
    if kv in ("auto", "bfloat16"):
        kv = role.dtype if role.dtype != "auto" and kv == "auto" else "bfloat16"
    return role.model, "fp8_e4m3" if kv == "fp8" else kv, str(role.tp * role.pp)


def _patience(joint: Joint) -> Iterator[Clash]:
    if not is_pair(joint):
        return
    for role in (joint.prefill, joint.decode):
        if not _has_file(role) and setting(role, "pd_allocation_timeout_sec") in ("", "inf"):
            yield Clash(
                "waits for ever" if role is joint.prefill else "",
                "waits for ever" if role is joint.decode else "",
                "set LMCACHE_PD_ALLOCATION_TIMEOUT_SEC, 10 for example",
                (role.place("LMCACHE_PD_ALLOCATION_TIMEOUT_SEC"),),
            )


RULES = (
    Rule(
        "LM1",
        Engine.VLLM,
        Severity.REQUEST,
        "The KV of the longest prompt fits pd_buffer_size.",
        "LMCache 0.5.6 v1/storage_backend/pd_backend_async.py, which refuses such a request; pd_backend.py and the releases of "
        "https://github.com/LMCache/LMCache/issues/4209 wait",
        _buffer,
        message="PD receiver buffer too small for req",
    ),
    Rule(
        "LM2",
        Engine.VLLM,
        Severity.LEAK,
        "Prompts fill at least one block, below which prefill never reports that it is done.",
        "https://github.com/LMCache/LMCache/issues/2459 (LMCache 0.3.12; later releases were not run)",
        _short_prompts,
    ),
    Rule(
        "LM3",
        Engine.VLLM,
        Severity.SLOW,
        "Both roles build one key: model name, KV dtype and world size.",
        "LMCache 0.5.6 utils.py (CacheEngineKey)",
        _same_key,
    ),
    Rule(
        "LM4",
        Engine.VLLM,
        Severity.LEAK,
        "pd_allocation_timeout_sec is set: by default an allocation is tried for ever.",
        f"{_CONFIG}; https://github.com/LMCache/LMCache/pull/1215",
        _patience,
        message="Failed to allocate memory object, retrying...",
    ),
)
