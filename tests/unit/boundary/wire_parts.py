"""Small reservations and single frames to try the wire with."""

from __future__ import annotations

import os
from typing import Any

from diptych.boundary.element import Element
from diptych.boundary.frame import Refusal, seal, unseal
from diptych.boundary.messages import Hello, Message, Speaker
from diptych.boundary.receiver import Event, Receiver, Refused
from diptych.boundary.sender import Sender
from diptych.boundary.wire_table import Layer, Reservation, WireTable

HELLO = Hello(Speaker.PREFILL, "w0", 7, 1, 1, b"")
ID, OTHER = b"r" * 16, b"o" * 16
SIZE = 64  # bytes of a block


def held(
    fill: int | None = None, id: bytes = ID, epoch: int = 3, layers: int = 2, groups: int = 2, blocks: int = 4
) -> Reservation:
    """A reservation over memory of its own, random where `fill` is None."""
    made = {}
    for number in range(layers):
        memories = [bytearray(os.urandom(SIZE * blocks)) for _ in range(groups)]
        for memory in memories if fill is not None else ():
            memory[:] = bytes([fill or 0]) * len(memory)
        offsets = tuple(range(0, SIZE * blocks, SIZE))
        made[number] = Layer(Element.BF16, SIZE, offsets, tuple(map(memoryview, memories)))
    return Reservation(id, epoch, made)


def greeted(*targets: Reservation, table: WireTable | None = None) -> Receiver:
    """A receiver that has heard a hello, over a table with these reservations."""
    table = table or WireTable()
    for target in targets:
        assert table.reserve(target) is None
    receiver = Receiver(table)
    receiver.feed(Sender().message(HELLO))
    return receiver


def frame(
    source: Reservation,
    layer: int = 0,
    group: int = 0,
    block: int = 0,
    count: int = 1,
    says: dict[str, Any] | None = None,
) -> bytes:
    """One frame of blocks. What it `says` instead is sealed as if it were true."""
    head, *pieces = Sender().blocks(source, layer, group, block, count)
    found = unseal(memoryview(head))
    assert not isinstance(found, Refusal)
    return seal(found[0]._replace(**says or {}), pieces) + b"".join(pieces)


def told(
    message: Message, id: bytes = ID, epoch: int = 3, sequence: int = 9, says: dict[str, Any] | None = None
) -> bytes:
    """One frame of a message."""
    sender = Sender()
    sender.sequence = sequence
    data = sender.message(message, id, epoch)
    found = unseal(memoryview(data))
    assert not isinstance(found, Refusal)
    body = data[-found[0].length :]
    return seal(found[0]._replace(**says or {}), (body,)) + body


def refusals(events: list[Event]) -> list[Refusal]:
    return [event.refusal for event in events if isinstance(event, Refused)]


def same(ours: Reservation, theirs: Reservation) -> bool:
    """Whether two hold the same bytes."""
    return all(ours.layers[number].groups == theirs.layers[number].groups for number in theirs.layers)
