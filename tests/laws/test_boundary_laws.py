"""Laws of the Runtime KV State and of the contract."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kv_states import identities, models, pairs, states

from diptych.boundary.contract import Contract, Verdict, contract
from diptych.boundary.conversion import Loss, Op, same_meaning
from diptych.boundary.descriptor import KVState, Layout, canonical, meaning
from diptych.boundary.difference import Weight
from diptych.boundary.element import Element, ScaleSource
from diptych.boundary.format import Format
from diptych.boundary.serial import Decoded, digest, from_builtins, from_json, from_msgpack, to_json, to_msgpack
from diptych.design.boundary import Side
from diptych.errors import InvalidInput

SIXTEEN = Format(Element.BF16)
READERS = (from_json, from_msgpack)


@given(states)
def test_a_state_reads_back_as_it_was_written(state: KVState) -> None:
    for read, write in zip(READERS, (to_json, to_msgpack), strict=True):
        assert read(write(state)) == Decoded(state)
    assert hash(from_json(to_json(state)).state) == hash(state)


@settings(max_examples=50)
@given(states, states)
def test_digests_are_equal_exactly_when_meanings_are(one: KVState, other: KVState) -> None:
    assert (digest(one) == digest(other)) == (meaning(one) == meaning(other))


@settings(max_examples=50)
@given(states, states, st.sampled_from(("identity", "layers", "format", "storage", "shard", "holding")))
def test_a_digest_follows_every_part_but_the_holder(one: KVState, other: KVState, part: str) -> None:
    try:
        changed = replace(one, **{part: getattr(other, part)})
    except InvalidInput:
        assume(False)
    assert (digest(one) == digest(changed)) == (part == "holding" or meaning(one) == meaning(changed))


@given(states, st.randoms(use_true_random=False))
def test_a_digest_is_blind_to_how_layers_are_listed(state: KVState, random: Any) -> None:
    """Split into single layers and shuffled, the model is the same."""
    singles = [
        replace(entry, count=1, index=entry.index[place : place + 1])
        for entry in state.layers
        for place in range(entry.count)
    ]
    random.shuffle(singles)
    assert digest(replace(state, layers=tuple(singles))) == digest(state)
    assert canonical(canonical(state)) == canonical(state)


@given(states, st.data())
def test_a_broken_document_is_a_state_or_findings(state: KVState, data: st.DataObject) -> None:
    for read, write in zip(READERS, (to_json, to_msgpack), strict=True):
        document = bytearray(write(state))
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(document) - 1))
            document[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
        assert _is_a_state_or_findings(read, bytes(document))


def _is_a_state_or_findings(read: Any, document: Any) -> bool:
    try:
        return isinstance(read(document).state, KVState)
    except InvalidInput as error:
        return bool(error.findings)


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(states, documents, st.data())
def test_any_value_in_any_place_is_a_state_or_findings(state: KVState, value: Any, data: st.DataObject) -> None:
    document = msgspec.to_builtins(state)
    place = document
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not (isinstance(place[key], dict) and data.draw(st.booleans())):
            break
        place = place[key]
    place[key] = value
    assert _is_a_state_or_findings(from_builtins, document)


@settings(max_examples=50)
@given(states, st.sampled_from(("", "identity", "storage", "shard", "layers")), st.booleans())
def test_what_a_newer_minor_adds_is_noted_or_refused(state: KVState, part: str, is_critical: bool) -> None:
    document = json.loads(to_json(state))
    inside = document if not part else document["layers"][0] if part == "layers" else document[part]
    inside["added"] = 7
    with pytest.raises(InvalidInput, match="added"):
        from_builtins(document)
    document["schema"] = "1.9"
    name = f"{part}.added" if part else "added"
    document["critical"] = [name] if is_critical else []
    if is_critical:
        with pytest.raises(InvalidInput, match="critical"):
            from_builtins(document)
    else:
        assert from_builtins(document) == Decoded(state, (f"{name} is of schema 1.9 and was ignored",))


@given(states)
def test_nothing_is_lost_between_two_equal_sides(state: KVState) -> None:
    found = contract(state, state)
    travels = state.format.scaling.source is not ScaleSource.DYNAMIC
    assert found.verdict is (Verdict.CONSUME if travels else Verdict.REJECT), str(found)
    assert found.loss is Loss.EXACT
    assert not any(step.op.converts or step.op.redistributes for step in found.plan)


@given(pairs(), st.none() | st.sampled_from(Side))
def test_a_plan_leads_from_one_side_to_the_other(pair: tuple[KVState, KVState], at: Side | None) -> None:
    found = contract(*pair, at=at)
    assert found.is_usable == (not found.reasons) == bool(found.plan)
    if not found.is_usable:
        return
    state = found.produced
    for step in found.plan:
        assert step.before == state
        state = step.after
    assert state.format == found.consumed.format or same_meaning(state.format, found.consumed.format) is not False
    assert (state.storage, state.shard, state.holding) == (
        found.consumed.storage,
        found.consumed.shard,
        found.consumed.holding,
    )
    assert [step.op for step in found.plan].count(Op.TRANSFER) == 1
    assert found.verdict is _verdict(found)
    assert [side for side in Side if any(step.side is side for step in found.plan)] == _sides_in_order(found)


def _verdict(found: Contract) -> Verdict:
    moves, converts = (any(getattr(step.op, name) for step in found.plan) for name in ("redistributes", "converts"))
    return {
        (False, False): Verdict.CONSUME,
        (True, False): Verdict.REDISTRIBUTE,
        (False, True): Verdict.CONVERT,
        (True, True): Verdict.BOTH,
    }[moves, converts]


def _sides_in_order(found: Contract) -> list[Side]:
    return list(dict.fromkeys(step.side for step in found.plan))


@settings(max_examples=50)
@given(pairs(), identities(), st.data())
def test_no_plan_passes_the_identity_gate(pair: tuple[KVState, KVState], other: Any, data: st.DataObject) -> None:
    """One fact of identity that both sides state, and state differently, is enough."""
    name = data.draw(st.sampled_from(("model", "revision", "weights", "adapter", "tokenizer")))
    values = data.draw(st.lists(st.sampled_from(("a", "b", "c")), min_size=2, max_size=2, unique=True))
    produced, consumed = (
        replace(side, identity=replace(side.identity, **{name: value}))
        for side, value in zip(pair, values, strict=True)
    )
    found = contract(produced, consumed)
    assert not found.is_usable
    assert not found.plan
    assert f"identity.{name}" in [reason.where for reason in found.reasons]
    assert (found.wire_bytes(100), found.loss) == (0.0, Loss.EXACT)


@settings(max_examples=50)
@given(states, models())
def test_other_layers_are_another_model(state: KVState, others: Any) -> None:
    try:
        consumed = replace(state, layers=others)
    except InvalidInput:
        assume(False)
    shapes = [
        [replace(entry, index=(), state_format="fp32") for entry in canonical(side).layers]
        for side in (state, consumed)
    ]
    assume(sorted(map(str, shapes[0])) != sorted(map(str, shapes[1])))
    assert not contract(state, consumed).is_usable


@given(pairs())
def test_an_unknown_layout_is_never_passed_in_silence(pair: tuple[KVState, KVState]) -> None:
    layouts = [side.storage.layout for side in pair]
    said = [each for each in contract(*pair).differences if each.where == "storage.layout"]
    if Layout.UNKNOWN in layouts:
        assert said
        assert all(each.weight in (Weight.UNVERIFIED, Weight.UNTRANSFORMABLE) for each in said)
    elif layouts[0] is layouts[1]:
        assert not said


@given(pairs())
def test_what_nobody_said_is_told(pair: tuple[KVState, KVState]) -> None:
    """Every identity fact that one side leaves open is on the list of what was taken on trust."""
    found = contract(*pair)
    unsaid = {
        f"identity.{name}"
        for name in ("revision", "weights", "adapter", "tokenizer")
        if None in (getattr(side.identity, name) for side in pair)
    }
    assert unsaid <= {each.where for each in found.unverified}


@given(pairs(), st.floats(0, 1e6), st.floats(0, 1e6))
def test_bytes_grow_with_the_tokens(pair: tuple[KVState, KVState], one: float, other: float) -> None:
    found, (few, many) = contract(*pair), sorted((one, other))
    assert found.wire_bytes(few) <= found.wire_bytes(many)
    for side in Side:
        assert 0 <= found.moved_bytes(few, side) <= found.moved_bytes(many, side)
    if found.is_usable:
        least = min(side.cache_bytes(many, once=True) for side in pair)
        assert found.wire_bytes(many) >= least - 1e-6 * least


@given(pairs(), st.data())
def test_a_chosen_wire_crosses_or_is_refused(pair: tuple[KVState, KVState], data: st.DataObject) -> None:
    wire = data.draw(st.sampled_from([pair[0].format, pair[1].format, SIXTEEN]))
    found = contract(*pair, wire=wire)
    if found.is_usable:
        crossing = next(step.before.format for step in found.plan if step.op is Op.TRANSFER)
        assert same_meaning(crossing, wire) is not False


def test_the_parts_of_a_state_are_what_the_laws_vary() -> None:
    assert [part.name for part in fields(KVState)] == [
        *("identity", "layers", "format", "storage", "shard", "holding", "schema"),
    ]
