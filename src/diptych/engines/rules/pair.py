"""What holds of every pair, whatever runs it: its rules, and what is fine of it though it looks wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from diptych.engines.engine import Engine, Launcher
from diptych.engines.resolve import Joint
from diptych.engines.resolve_stored import same_bytes
from diptych.engines.role import RoleConfig
from diptych.engines.rule import Broken, Clash, Remark, Rule, Severity
from diptych.engines.rules.names import different_models


def _one_engine(joint: Joint) -> Iterator[Clash]:
    prefill, decode = joint.prefill, joint.decode
    if prefill.engine is not decode.engine:
        places = (prefill.place("engine"), decode.place("engine"))
        yield Clash(
            prefill.engine, decode.engine, "run one engine on both roles", places, "no engine reads another's KV"
        )


def _one_reading(joint: Joint) -> Iterator[Clash]:
    """PD3. Decode numbers the prompt's tokens and places them by its own settings; prefill's KV was made by prefill's."""
    prefill, decode = joint.prefill, joint.decode
    ours, theirs = (role.tokenizer or role.model for role in (prefill, decode))
    is_named = (
        bool(prefill.tokenizer or decode.tokenizer) and joint.deployment.launcher is not Launcher.DYNAMO
    )  # it sends tokens
    if is_named and different_models(ours, theirs):
        places = (prefill.place("tokenizer"), decode.place("tokenizer"))
        yield Clash(f"tokenizer {ours}", f"tokenizer {theirs}", "give one tokenizer to both roles", places)
    mine, other = positions(prefill), positions(decode)
    if mine != other:
        name = _OVERRIDES.get(prefill.engine, "hf-overrides")
        places = (prefill.place(name), decode.place(name))
        change = f"give the same --{name} to both roles"
        yield Clash(_positions_said(mine), _positions_said(other), change, places)


_OVERRIDES = {Engine.VLLM: "hf-overrides", Engine.SGLANG: "json-model-override-args"}
_ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
_MAX_TEXT = 65536


def positions(role: RoleConfig) -> dict[str, Any]:
    """What a role's overrides of the model's configuration say of rope; empty where they say nothing or cannot be read."""
    given = role.options.get(_OVERRIDES.get(role.engine, ""))
    if isinstance(given, str) and len(given) <= _MAX_TEXT:
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return {}
    if not isinstance(given, Mapping):
        return {}
    inner = given.get("text_config")
    told = {**given, **(inner if isinstance(inner, Mapping) else {})}
    return {name: told[name] for name in _ROPE if name in told}


def _positions_said(told: Mapping[str, Any]) -> str:
    return (
        ", ".join(f"{name} {json.dumps(value, default=str)}" for name, value in told.items())
        or "rope as the model has it"
    )


def same_format(joint: Joint, found: tuple[Broken, ...]) -> Iterator[Remark]:
    """Two words for the same bytes that nothing refuses."""
    ours, theirs = joint.prefill_stored, joint.decode_stored
    if ours.word == theirs.word or not same_bytes(ours, theirs) or any(each.clash.is_spurious for each in found):
        return
    places = (joint.prefill.place("kv_cache_dtype"), joint.decode.place("kv_cache_dtype"))
    yield Remark(ours.says, theirs.says, "two words for one KV format: the bytes are the same", "", places)


def unlike_sizes(joint: Joint, found: tuple[Broken, ...]) -> Iterator[Remark]:
    """Ranks and blocks that differ and that the engine brings together; of a pair that fails nothing of the kind is said."""
    if any(each.severity in (Severity.SILENT, Severity.REQUEST, Severity.STARTUP) for each in found):
        return
    prefill, decode = joint.prefill, joint.decode
    if prefill.tp != decode.tp:
        places = (prefill.place("tp"), decode.place("tp"))
        yield Remark(
            f"TP {prefill.tp}", f"TP {decode.tp}", "unlike tensor-parallel sizes are brought together", "", places
        )
    blocks = joint.prefill_stored.moved_tokens, joint.decode_stored.moved_tokens
    if None not in blocks and blocks[0] != blocks[1]:
        places = (prefill.place("block_size"), decode.place("block_size"))
        said = tuple(f"blocks of {tokens} tokens" for tokens in blocks)
        yield Remark(said[0], said[1], "unlike blocks are brought together", "", places)


MEANING = Rule(
    "PD2",
    None,
    Severity.SILENT,
    "What prefill stores means the same to decode.",
    "the contract of the two Runtime KV States",
    lambda joint: (),
)
"""Told by `check` where the contract needs a conversion and no rule of the engine says so."""

RULES = (
    Rule(
        "PD1",
        None,
        Severity.REQUEST,
        "Both roles run one engine.",
        "vLLM 0.33 kv_connector/v1 and SGLang 0.5.23 disaggregation: each speaks a handshake of its own",
        _one_engine,
    ),
    MEANING,
    Rule(
        "PD3",
        None,
        Severity.SILENT,
        "Both roles number tokens and place them alike: one tokenizer, one change of the model's rope.",
        "derived, not run: vLLM 0.33 nixl/metadata.py and SGLang 0.5.23 disaggregation/common/conn.py compare neither",
        _one_reading,
    ),
)
REMARKS = (same_format, unlike_sizes)
