"""TensorRT-LLM's rules: what its cache transceiver asks of both sides before it sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diptych.engines.deployment import Deployment
from diptych.engines.engine import Engine, Version
from diptych.engines.resolve import Joint
from diptych.engines.resolve_trtllm import TOKENS_PER_BLOCK, stored_element, tokens_per_block
from diptych.engines.role import RoleConfig, whole
from diptych.engines.rule import Clash, Rule, Severity
from diptych.engines.rules.names import different_models

_HASHED = "TRTLLM_KVCACHE_AWARE_ROUTER_HASH_TOKENS_PER_BLOCK"
_PARTS = Version((1, 3, 0))
_FORMATTER = "TensorRT-LLM cpp/tensorrt_llm/batch_manager/cacheFormatter.cpp (CacheFormatter::inquireSupport)"
_REFUSED = "Disagg server does not currently support these cacheState"


def _same_cache_state(joint: Joint) -> Iterator[Clash]:
    prefill, decode = joint.prefill, joint.decode
    stored = (stored_element(prefill), stored_element(decode))
    if stored[0] != stored[1] and None not in stored:
        yield Clash(
            str(stored[0]),
            str(stored[1]),
            "set the same kv_cache_config.dtype on both roles: TensorRT-LLM does not convert",
            (prefill.place("kv_cache_dtype"), decode.place("kv_cache_dtype")),
        )
    blocks = (tokens_per_block(prefill), tokens_per_block(decode))
    if blocks[0] != blocks[1]:
        yield Clash(
            f"blocks of {blocks[0]} tokens",
            f"blocks of {blocks[1]} tokens",
            f"set kv_cache_config.tokens_per_block: {max(blocks)} on both roles",
            (prefill.place("block_size"), decode.place("block_size")),
        )
    if different_models(prefill.model, decode.model):
        yield Clash(
            prefill.model,
            decode.model,
            "serve one model on both roles: layers, heads and head size must agree",
            (prefill.place("model"), decode.place("model")),
        )


def _router_blocks(joint: Joint) -> Iterator[Clash]:
    for role in (joint.prefill, joint.decode):
        for hashed, place in _hashed(role, joint.deployment):
            if not _finds(role, hashed):
                blocks = f"blocks of {tokens_per_block(role)} tokens"
                yield Clash(
                    blocks if role is joint.prefill else "",
                    blocks if role is joint.decode else "",
                    f"hash blocks of {tokens_per_block(role)} tokens in the router, which hashes {hashed}",
                    (role.place("block_size"), place),
                )


def _hashed(role: RoleConfig, deployment: Deployment) -> Iterator[tuple[int, str]]:
    """Tokens of the blocks that a router hashes for this role's workers, and where that was set."""
    own = role.options.get("router")
    if isinstance(own, Mapping) and own.get("type") == "kv_cache_aware":
        told = own.get("tokens_per_block", role.env_text(_HASHED))
        yield whole(told, TOKENS_PER_BLOCK), role.place("router")
    router = deployment.router
    if router is not None and (told := whole(router.settings.get("kv-cache-block-size"), 0)):
        yield told, router.places.get("kv-cache-block-size", "router --kv-cache-block-size")


def _finds(role: RoleConfig, hashed: int) -> bool:
    """Whether blocks of `hashed` tokens match a worker's: the same, and from 1.3 on also a part of one."""
    block = tokens_per_block(role)
    return hashed == block or (role.release >= _PARTS and block % hashed == 0)


RULES = (
    Rule(
        "TR1",
        Engine.TRTLLM,
        Severity.REQUEST,
        "Both roles store one KV type in blocks of one size, of the same layers, heads and attention.",
        _FORMATTER,
        _same_cache_state,
        message=_REFUSED,
    ),
    Rule(
        "TR2",
        Engine.TRTLLM,
        Severity.SLOW,
        "The router hashes prompts in the workers' tokens_per_block, or in parts of it.",
        "https://github.com/NVIDIA/TensorRT-LLM/issues/14882 (32 against 64: no prefix hit at all); "
        "https://github.com/NVIDIA/TensorRT-LLM/pull/15005 takes divisors, here from 1.3 on",
        _router_blocks,
    ),
)
