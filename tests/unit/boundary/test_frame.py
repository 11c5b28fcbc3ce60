"""Frames one by one: the layout of a header, and each way a frame can be refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from wire_parts import HELLO, OTHER, SIZE, frame, greeted, held, refusals, told

from diptych.boundary.element import Element
from diptych.boundary.frame import (
    DTYPE_CODES,
    HEADER_BYTES,
    MAGIC,
    MAX_MESSAGE,
    MAX_PAYLOAD,
    NO_RESERVATION,
    Header,
    Refusal,
    Scope,
    seal,
)
from diptych.boundary.messages import Commit, Release
from diptych.boundary.receiver import Arrived, Heard, Receiver
from diptych.boundary.sender import Sender
from diptych.boundary.wire_table import Reservation, WireTable

GOLDEN = (
    "44504b56010002000100000000000000303132333435363738396162636465660200000000000000030000000400000005000000060007000300000000000000"
    "adce9cfce858a06e39704c4209dbe18f"
    "ec0419d2e135cb28"
)
PAGE = (Path(__file__).parents[3] / "docs/wire.md").read_text(encoding="utf-8")


def test_the_layout_is_the_documented_one() -> None:
    """Every row of the page's table, read out of a real header."""
    header = Header(MAGIC, 1, 2, 0, 0x0102, bytes(range(16)), 0x0304, 5, 6, 7, 8, 9, 0, 0x0A0B)
    data = seal(header, (b"payload",))
    section = PAGE.partition("## A frame")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", section, re.M)
    assert sum(int(size) for _, size, _ in rows) == HEADER_BYTES == len(data)
    at = 0
    for offset, size, name in rows:
        assert int(offset) == at
        at += int(size)
        if name not in ("digest", "check"):
            value = getattr(header, name)
            assert data[int(offset) : at] == (
                value if isinstance(value, bytes) else value.to_bytes(int(size), "little")
            ), name


def test_a_frame_of_today_reads_tomorrow() -> None:
    """The bytes are fixed, digests included: XXH3 as its library gives it, in its canonical order."""
    data = seal(Header(MAGIC, 1, 2, 0, 1, b"0123456789abcdef", 2, 3, 4, 5, 6, 7, 0, 3), (b"abc",))
    assert data.hex() == GOLDEN


def test_dtype_codes_are_of_every_element_and_never_change() -> None:
    assert list(DTYPE_CODES) == list(Element)
    assert list(DTYPE_CODES.values()) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if at >= 0 else damaged(data, at + len(data))


BAD: dict[Refusal, Callable[[Reservation], bytes]] = {
    Refusal.NOT_A_FRAME: lambda source: damaged(frame(source), 3),
    Refusal.WRONG_VERSION: lambda source: frame(source, says={"version": 2}),
    Refusal.DAMAGED_HEADER: lambda source: damaged(frame(source), 48),
    Refusal.UNKNOWN_TYPE: lambda source: frame(source, says={"type": 3}),
    Refusal.NOT_ZERO: lambda source: frame(source, says={"flags": 1}),
    Refusal.TOO_LONG: lambda source: frame(source, says={"length": MAX_PAYLOAD + 1}),
    Refusal.DAMAGED_MESSAGE: lambda source: damaged(told(Commit()), -1),
    Refusal.BAD_MESSAGE: lambda source: told(Commit(), NO_RESERVATION),
    Refusal.WRONG_DTYPE: lambda source: frame(source, says={"dtype": DTYPE_CODES[Element.FP16]}),
    Refusal.NO_SUCH_LAYER: lambda source: frame(source, says={"layer": 2}),
    Refusal.NO_SUCH_GROUP: lambda source: frame(source, says={"group": 2}),
    Refusal.NO_SUCH_BLOCK: lambda source: frame(source, says={"block": 4}),
    Refusal.WRONG_LENGTH: lambda source: frame(source, says={"length": SIZE - 1})[:-1],
    Refusal.UNKNOWN_RESERVATION: lambda source: frame(source, says={"reservation": OTHER}),
    Refusal.STALE_EPOCH: lambda source: frame(source, says={"epoch": 2}),
    Refusal.EARLY_EPOCH: lambda source: frame(source, says={"epoch": 4}),
    Refusal.DAMAGED_BLOCKS: lambda source: damaged(frame(source), -1),
}
ELSEWHERE = {  # need more than one frame: test_frame_receiver.py
    Refusal.NO_HELLO,
    Refusal.CUT,
    Refusal.ENDED,
    Refusal.DUPLICATE,
    Refusal.OVERLAPPING,
    Refusal.BUSY,
    Refusal.REPLAYED,
}


def test_every_refusal_is_tested_and_documented() -> None:
    assert set(BAD) | ELSEWHERE == set(Refusal)
    told = dict(re.findall(r"^\| ([a-z ]+) \| (frame|handoff|connection) \|", PAGE, re.M))
    assert told == {str(refusal): str(refusal.scope) for refusal in Refusal}


@pytest.mark.parametrize("refusal", BAD)
def test_a_bad_frame_is_refused_and_nothing_else_is(refusal: Refusal) -> None:
    """With the right word; the frame after it is still taken, unless the connection closes; nothing bad counts as here."""
    source, target = held(), held(0)
    receiver = greeted(target)
    events = receiver.feed(BAD[refusal](source) + frame(source, block=1))
    assert refusals(events) == [refusal]
    assert receiver.closed == (refusal.scope is Scope.CONNECTION)
    assert receiver.closed != any(isinstance(event, Arrived) and event.block == 1 for event in events)
    assert target.arrived_bytes == (0 if receiver.closed else SIZE)
    assert (0, 0, 0, 1) in target.missing() or receiver.closed


@pytest.mark.parametrize(
    "says",
    [
        {"blocks": 0},
        {"blocks": 0, "length": 0},
        {"blocks": 5, "length": 5 * SIZE},
        {"block": 2**32 - 1},
        {"block": 3, "blocks": 2, "length": 2 * SIZE},
        {"blocks": 2**32 - 1, "length": MAX_PAYLOAD},
    ],
)
def test_places_outside_the_reservation_are_refused(says: dict[str, int]) -> None:
    receiver = greeted(held(0))
    assert refusals(receiver.feed(frame(held(), says=says)))[0] is Refusal.NO_SUCH_BLOCK


def test_a_block_before_the_first_is_refused() -> None:
    """A target that holds the first blocks already has no room for them."""
    source, target = held(), held(0)
    layers = {n: type(at)(at.element, SIZE, at.offsets[2:], at.groups, first=2) for n, at in target.layers.items()}
    target = Reservation(target.id, target.epoch, layers)
    receiver = greeted(target)
    assert refusals(receiver.feed(frame(source, block=1))) == [Refusal.NO_SUCH_BLOCK]
    assert not refusals(receiver.feed(frame(source, block=2, count=2)))


@pytest.mark.parametrize("length", [MAX_MESSAGE + 1, 2**31, 2**32, 2**63, 2**64 - 1])
@pytest.mark.parametrize("type", [1, 2])
def test_no_length_is_believed(length: int, type: int) -> None:
    says = {"type": type, "length": length, **dict.fromkeys(("layer", "blocks", "dtype") if type == 1 else (), 0)}
    refused = refusals(greeted(held(0)).feed(frame(held(), says=says)))
    assert refused[0] is (Refusal.WRONG_LENGTH if type == 2 and length < MAX_PAYLOAD else Refusal.TOO_LONG)


@pytest.mark.parametrize("field", ["layer", "block", "blocks", "group", "dtype", "zero", "flags"])
def test_a_message_names_no_place(field: str) -> None:
    assert refusals(greeted().feed(told(Commit(), says={field: 1}))) == [Refusal.NOT_ZERO]


def test_nothing_is_taken_before_the_hello() -> None:
    for first in (told(Commit()), frame(held())):
        receiver = Receiver(WireTable())
        assert refusals(receiver.feed(first)) == [Refusal.NO_HELLO]
        assert receiver.closed
        assert receiver.feed(Sender().message(HELLO)) == []
        assert receiver.buffers() == []


def test_a_hello_is_about_no_reservation() -> None:
    assert refusals(Receiver(WireTable()).feed(told(HELLO))) == [Refusal.BAD_MESSAGE]


def test_a_message_is_heard_once_in_whatever_order() -> None:
    receiver = greeted()
    frames = [
        told(message, sequence=number)
        for number, message in ((5, Commit()), (3, Release()), (5, Commit()), (3, Release()))
    ]
    events = [receiver.feed(each) for each in frames]
    assert [refusals(each) for each in events] == [[], [], [Refusal.REPLAYED], [Refusal.REPLAYED]]
    assert [each[0].message for each in events[:2] if isinstance(each[0], Heard)] == [Commit(), Release()]


def test_a_number_that_nobody_remembers_is_not_new() -> None:
    receiver = greeted()
    assert not refusals(receiver.feed(told(Commit(), sequence=2**64 - 1)))
    assert refusals(receiver.feed(told(Commit(), sequence=1))) == [Refusal.REPLAYED]
    assert not refusals(receiver.feed(told(Commit(), sequence=2**64 - 2)))


def test_a_long_message_is_read_whole() -> None:
    from diptych.boundary.messages import MAX_STATE, Offer
    from diptych.boundary.serial import MAX_BYTES

    assert MAX_STATE == MAX_BYTES, "a state that can be read can be sent"
    offer = Offer(b"s" * MAX_STATE, 1, 1, 1)
    [event] = greeted().feed(told(offer))
    assert isinstance(event, Heard)
    assert event.message == offer
