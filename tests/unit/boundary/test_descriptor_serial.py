"""JSON and msgpack forms: what files of any release must go on meaning, and what a wrong one is answered."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kv_examples import EXAMPLES

from diptych.boundary.descriptor import KVState
from diptych.boundary.layers import LayerKind
from diptych.boundary.serial import (
    MAX_BYTES,
    Decoded,
    digest,
    from_builtins,
    from_json,
    from_msgpack,
    to_json,
    to_msgpack,
)
from diptych.errors import InvalidInput

GOLDEN = Path(__file__).parents[2] / "golden"
DOCUMENTS = json.loads((GOLDEN / "kv_state.json").read_text(encoding="utf-8"))
LEAST = {
    "identity": {"model": "Qwen3-32B"},
    "layers": [{"kind": "full", "count": 64, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128}],
    "format": {"element": "bf16"},
    "storage": {"block_tokens": 16},
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_was_written_once_reads_for_ever(name: str) -> None:
    """A file of schema 1.0 means what it meant, and is written again to the byte. Never edit the golden file: add to it."""
    golden = DOCUMENTS[name]
    written = json.dumps(golden["state"], ensure_ascii=False, separators=(",", ":")).encode()
    assert from_json(written) == Decoded(EXAMPLES[name])
    assert to_json(EXAMPLES[name]) == written
    assert digest(EXAMPLES[name]) == golden["digest"]


def test_msgpack_of_all_reads_for_ever() -> None:
    packed = msgspec.msgpack.decode((GOLDEN / "kv_state.msgpack").read_bytes())
    assert {name: from_msgpack(body).state for name, body in packed.items()} == EXAMPLES
    assert {name: to_msgpack(state) for name, state in EXAMPLES.items()} == packed


def test_the_golden_states_use_every_field() -> None:
    """A field that no golden state sets could change its default unseen."""
    parts: dict[type, list[Any]] = {}

    def collect(part: Any) -> None:
        parts.setdefault(type(part), []).append(part)
        for each in fields(part):
            value = getattr(part, each.name)
            for inner in value if isinstance(value, tuple) else (value,):
                if hasattr(inner, "__dataclass_fields__"):
                    collect(inner)

    for state in EXAMPLES.values():
        collect(state)
    unused = [
        f"{kind.__name__}.{each.name}"
        for kind, found in parts.items()
        for each in fields(kind)
        if kind is not KVState and all(getattr(part, each.name) == each.default for part in found)
    ]
    assert not unused


def test_what_is_left_out_takes_its_default() -> None:
    """An older document, or one by hand, needs only what has no default, not even the schema."""
    assert from_builtins(LEAST) == Decoded(EXAMPLES["least"])


def test_a_newer_minor_is_read_as_ours() -> None:
    newer = json.loads(to_json(EXAMPLES["handoff"])) | {"schema": "1.4", "colour": "red"}
    found = from_builtins(newer)
    assert found == Decoded(EXAMPLES["handoff"], ("colour is of schema 1.4 and was ignored",))
    assert json.loads(to_json(found.state))["schema"] == "1.0"


def test_a_value_we_do_not_know_is_refused_at_any_version() -> None:
    newer = json.loads(to_json(EXAMPLES["least"])) | {"schema": "1.4", "format": {"element": "fp6"}}
    with pytest.raises(InvalidInput, match="unknown element format 'fp6'"):
        from_builtins(newer)


def test_aliases_are_one_state() -> None:
    spelled = LEAST | {
        "format": {"element": "torch.bfloat16"},
        "storage": {"block_tokens": 16, "layout": "HND"},
    }
    plain = LEAST | {"storage": {"block_tokens": 16, "layout": "LBHNC"}}
    assert from_builtins(spelled) == from_builtins(plain)


WRONG = [
    (b"", "is not JSON"),
    (b"[]", "is a list"),
    (b"null", "a mapping of fields"),
    (b'{"schema": "2.0"}', "schema: is '2.0'; expected a version 1.x"),
    (b'{"schema": "1.x"}', "schema: is '1.x'"),
    (b'{"schema": 1.0}', "schema: is '1.0'"),
    (b'{"schema": "1.\xd9\xa3"}', "schema: is"),
    (b'{"schema": "1.0", "critical": "all"}', "critical: is not a list"),
    (b"{}", "identity: is missing\nlayers: is missing\nformat: is missing\nstorage: is missing"),
    (b'{"layer": []}', "layer: is no field; did you mean layers?"),
    (b"[" * 100_000, "is not JSON"),
    (b'{"a": 1e999}', "is not JSON"),
    (b'{"identity": "Qwen"}', "identity: is 'Qwen'; expected a mapping of fields"),
    (b'{"layers": {}}', "layers: is a mapping; expected a list"),
    (b'{"layers": [' + b"1," * 2000 + b"1]}", "layers: is a list of 2001; expected 1024 at most"),
    (b'{"shard": {"tp": 1' + b"0" * 400 + b"}}", "shard.tp: is 1000"),
    (b" " * (MAX_BYTES + 1), f"{MAX_BYTES} at most"),
]


@pytest.mark.parametrize(("document", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_a_wrong_document_is_answered(document: bytes, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        from_json(document)
    assert message in str(caught.value)


def test_every_mistake_is_found_at_once_with_its_place() -> None:
    wrong = {
        "identity": {"model": "m", "positions": {}},
        "layers": [{"kind": "full", "count": "many"}, {"kind": "half", "count": 1}],
        "format": {"element": "fp8", "scaling": {"source": "units"}},
        "storage": {"block_tokens": 0, "layout": "HDN"},
    }
    with pytest.raises(InvalidInput) as caught:
        from_builtins(wrong)
    assert str(caught.value).splitlines() == [
        "identity.positions: is no field; did you mean position?",
        "layers[0].count: is 'many'; expected a whole number",
        "layers[1].kind: is 'half'; expected full, sliding, latent, state",
        "format.element: unknown element format 'fp8'; fp8 is e4m3fn, e4m3fnuz or e5m2",
        "format.scaling.source: is 'units'; expected none, unit, checkpoint, inline, dynamic",
        "storage.layout: unknown layout 'HDN'; did you mean NHD, HND?",
    ]


def test_extension_types_of_msgpack_are_refused() -> None:
    document = {**LEAST, "identity": {"model": msgspec.msgpack.Ext(7, b"x")}}
    with pytest.raises(InvalidInput, match="model"):
        from_msgpack(msgspec.msgpack.encode(document))
    with pytest.raises(InvalidInput, match="is not msgpack"):
        from_msgpack(b"\xc1")


def test_a_digest_tells_what_bytes_mean_and_not_who_has_them() -> None:
    state = EXAMPLES["handoff"]
    assert digest(replace(state, holding=EXAMPLES["least"].holding)) == digest(state)
    assert digest(replace(state, shard=replace(state.shard, tp_rank=6))) != digest(state)
    hybrid = EXAMPLES["hybrid"]
    assert digest(replace(hybrid, layers=hybrid.layers[::-1])) == digest(hybrid)
    assert {layers.kind for layers in hybrid.layers} == set(LayerKind)
