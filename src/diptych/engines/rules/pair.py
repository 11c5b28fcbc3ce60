"""What holds of every pair, whatever runs it: its rules, and what is fine of it though it looks wrong."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.engines.resolve import Joint
from diptych.engines.resolve_stored import same_bytes
from diptych.engines.rule import Broken, Clash, Remark, Rule, Severity


def _one_engine(joint: Joint) -> Iterator[Clash]:
    prefill, decode = joint.prefill, joint.decode
    if prefill.engine is not decode.engine:
        places = (prefill.place("engine"), decode.place("engine"))
        yield Clash(
            prefill.engine, decode.engine, "run one engine on both roles", places, "no engine reads another's KV"
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
)
REMARKS = (same_format, unlike_sizes)
