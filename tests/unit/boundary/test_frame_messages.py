"""Control messages: what is taken, what is refused, and that one schema serves push and pull."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.boundary.messages import (
    MAX_LEASE_MS,
    MAX_STATE,
    Abort,
    Accept,
    Cancel,
    Commit,
    Disagreement,
    Done,
    Hello,
    LayerReady,
    Malformed,
    Message,
    Offer,
    Reason,
    Reject,
    Release,
    Renew,
    Reserve,
    Said,
    Speaker,
    Validated,
    Verdict,
    agree,
    decode,
    encode,
)
from diptych.design.boundary import Ownership
from diptych.serving.effects import Effect
from diptych.serving.handoff import Event, State, step

HELLO = Hello(Speaker.DECODE, "d0", 1, 1, 3, b"x" * 32)
ONE_OF_EACH: tuple[Message, ...] = (
    HELLO, Reserve(b"s", 1, 2, 3), Offer(b"s", 1, 2, 3), Accept(2), Reject(Reason.NO_ROOM, 5, "full"), LayerReady(0, 1),
    Done(1, 2), Validated(Verdict.ARRIVED, 2, 0), Commit(), Release(), Abort(Reason.EXPIRED), Renew(1), Cancel(),
)  # fmt: skip


def test_every_message_comes_back() -> None:
    assert {type(each) for each in ONE_OF_EACH} == set(get_args(Said))
    for message in ONE_OF_EACH:
        assert decode(encode(message)) == message


def spelled(**fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated"),
        (b"\x80", "missing required field"),
        (spelled(type="steal"), "Invalid value"),
        (spelled(type="commit", extra=1), "unknown field"),
        (spelled(type="renew", lease_ms=0), ">= 1"),
        (spelled(type="renew", lease_ms=MAX_LEASE_MS + 1), "<="),
        (spelled(type="renew", lease_ms=1.5), "Expected `int`"),
        (spelled(type="renew", lease_ms=True), "Expected `int`"),
        (spelled(type="renew", lease_ms=-1), ">= 1"),
        (spelled(type="renew", lease_ms=2**64 - 1), "<="),
        (spelled(type="renew"), "missing required field"),
        (spelled(type="reject", reason="because", retry_ms=0, detail=""), "Invalid enum"),
        (spelled(type="reject", reason="no room", retry_ms=0, detail="x" * 501), "length <= 500"),
        (spelled(type="offer", state=b"s" * (MAX_STATE + 1), tokens=1, total_bytes=1, lease_ms=1), "length"),
        (spelled(type="offer", state=msgspec.msgpack.Ext(1, b"s"), tokens=1, total_bytes=1, lease_ms=1), "got `ext`"),
        (msgspec.msgpack.encode(msgspec.msgpack.Ext(1, b"pickle")), "got `ext`"),
        (msgspec.msgpack.encode(["commit"]), "got `array`"),
        (encode(Commit()) + b"\x00", "trailing"),
        (b"\x82\xa4type\xa6commit\xa4type\xa6commit", "spelled otherwise"),
        (b"\xde\x00\x01\xa4type\xa6commit", "spelled otherwise"),
        (b"\x82\xa8lease_ms\x01\xa4type\xa5renew", "spelled otherwise"),
        (b"\x82\xa4type\xa5renew\xa8lease_ms\xcd\x00\x01", "spelled otherwise"),
        (b"\x82\xa4type\xa6reject\xa6detail\xa1\xff", "UTF-8"),
        (b"\x82\xa1a" + b"\x81" * 100_000, ""),
        (b"\x82\xa1a" + b"\x91" * 1_000_000, ""),
        (b"\xdf" + struct.pack(">I", 2**32 - 1), "truncated"),
        (b"\x81\xa4type\xdb" + struct.pack(">I", 2**32 - 1) + b"commit", "truncated"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_a_short_sentence(data: bytes, why: str) -> None:
    refused = decode(data)
    assert isinstance(refused, Malformed)
    assert why in refused.why
    assert len(refused.why) <= 160
    assert refused.why.isascii()


def test_a_refusal_does_not_repeat_what_was_sent() -> None:
    refused = decode(spelled(type="x" * 100_000))
    assert isinstance(refused, Malformed)
    assert len(refused.why) <= 160


@given(
    st.binary(max_size=200)
    | st.sampled_from(ONE_OF_EACH).map(encode).flatmap(lambda d: st.permutations(list(d)).map(bytes))
)
def test_any_bytes_are_a_message_or_a_refusal(data: bytes) -> None:
    found = decode(data)
    assert isinstance(found, Malformed) or encode(found) == data


def test_a_message_that_would_be_refused_is_not_sent() -> None:
    with pytest.raises(AssertionError, match="would be refused"):
        encode(Renew(0))


@pytest.mark.parametrize(
    ("ours", "theirs", "version"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 2), (2, 3), 2),
        ((2, 3), (1, 2), 2),
        ((1, 3), (1, 2), 2),
        ((1, 1), (2, 2), None),
        ((3, 4), (1, 2), None),
    ],
)
def test_the_newest_version_of_both(ours: tuple[int, int], theirs: tuple[int, int], version: int | None) -> None:
    def hello(span: tuple[int, int]) -> Hello:
        return msgspec.structs.replace(HELLO, oldest=span[0], newest=span[1])

    found = agree(hello(ours), hello(theirs), HELLO.state)
    assert (
        found == version if version else isinstance(found, Disagreement) and "no frame version in common" in found.why
    )


def test_another_state_than_the_contract_was_checked_with_is_told() -> None:
    found = agree(HELLO, HELLO, b"y" * 32)
    assert isinstance(found, Disagreement)
    assert "78" * 32 in found.why
    assert "79" * 32 in found.why


PUSH = (
    Reserve(b"s", 9, 9, 9),
    Accept(9),
    LayerReady(0, 1),
    Done(1, 9),
    Validated(Verdict.ARRIVED, 9, 0),
    Commit(),
    Release(),
)
PULL = (
    Offer(b"s", 9, 9, 9),
    Accept(9),
    LayerReady(0, 1),
    Done(1, 9),
    Validated(Verdict.ARRIVED, 9, 0),
    Commit(),
    Release(),
)


@pytest.mark.parametrize(("ownership", "words"), [(Ownership.PUSH, PUSH), (Ownership.PULL, PULL)])
def test_one_schema_serves_push_and_pull(ownership: Ownership, words: tuple[Message, ...]) -> None:
    """The rules' own table, walked with what the messages of one handoff tell it, asks for exactly the messages that come."""
    state, asked = State.OPEN, []

    def take(event: Event) -> None:
        nonlocal state
        found = step(ownership, state, event)
        assert found is not None, f"{event!r} is not expected in {state!r}"
        state = found[0]
        asked.extend(found[1])

    take(Event.ROUTED)
    for word in words:
        match word:
            case Reserve() | Offer():
                if isinstance(word, Offer):
                    take(Event.PRODUCED)
                assert asked[-1] is Effect.ASK_ROOM
            case Accept():
                take(Event.ROOM)
                assert asked[-1] is (Effect.PREFILL if ownership is Ownership.PUSH else Effect.START_TRANSFER)
            case LayerReady():
                assert state in (State.ROOMY, State.MOVING)
            case Done():
                if ownership is Ownership.PUSH:
                    take(Event.PRODUCED)
                assert state is State.MOVING
            case Validated():
                take(Event.ARRIVED)
                assert asked[-2:] == [Effect.COMMIT, Effect.ACKNOWLEDGE]
            case Commit():
                assert state is State.COMMITTED
            case Release():
                take(Event.ACKNOWLEDGED)
    assert state is State.RELEASED
    assert asked[-1] is Effect.FREE_SOURCE


def test_the_page_tells_every_message_in_words_of_the_rules() -> None:
    page = (Path(__file__).parents[3] / "docs/wire.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.M))
    assert [tag for tag in rows if tag in TAGS] == TAGS
    named = {word for tag in TAGS for word in re.findall(r"\b[A-Z]{4,}(?:_[A-Z]+)*\b", rows[tag])}
    known = {*Event.__members__, *Effect.__members__}
    assert named <= known, named - known
    assert {event.name for event in Event} - named == {"ROUTED"}, (
        "every event but the gateway's own is told by a message"
    )


TAGS = [str(kind.__struct_config__.tag) for kind in get_args(Said)]
