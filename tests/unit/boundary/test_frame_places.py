"""Frames that say where KV lies in memory that the receiver reads for itself: what is read, and what is refused."""

import os

import pytest
from wire_parts import HELLO, ID, SIZE, greeted, held, refusals, same

from diptych.boundary.frame import MAX_MESSAGE, FrameType, Refusal, seal, unseal
from diptych.boundary.receiver import Arrived, Completed, Freed, Receiver
from diptych.boundary.sender import Sender
from diptych.boundary.wire_table import WireTable


class Memory:
    """One buffer that a source's memories lie in, as the other side reads it."""

    def __init__(self, source):
        self.bytes, self.places = bytearray(), {}
        for layer in source.layers.values():
            for memory in layer.groups:
                self.places[id(memory)] = len(self.bytes)
                self.bytes += memory
        self.size = len(self.bytes)
        self.asked = []

    def place(self, memory):
        return self.places.get(id(memory))

    def read(self, places, size, into):
        self.asked += places
        wanted = b"".join(self.bytes[place : place + size] for place in places)
        for piece in into:
            piece[:], wanted = wanted[: len(piece)], wanted[len(piece) :]
            yield piece


def joined(source=None, target=None):
    """A receiver that reads the source's memory, and a sender that says places in it."""
    source, target = source or held(), target or held(0)
    memory, table = Memory(source), WireTable()
    assert table.reserve(target) is None
    receiver, sender = Receiver(table, reach=memory), Sender()
    receiver.feed(sender.message(HELLO))
    sender.lent = memory.place
    return source, target, memory, receiver, sender


def said(places, layer=0, says=None, **header):
    """One frame with these places, sealed over what they are said to hold."""
    source, _, _, _, sender = joined()
    found = unseal(memoryview(sender.places(source, layer, 0, 0, len(places), 0)[0]))
    body = b"".join(place.to_bytes(8, "little") for place in places)
    return seal(found[0]._replace(length=len(body), **header), (body, says or b"")) + body


def test_everything_is_read_and_nothing_but_places_is_sent():
    source, target, memory, receiver, sender = joined()
    frames = list(sender.everything(source))
    assert all(unseal(memoryview(frame[0]))[0].type == FrameType.PLACES for frame in frames)
    events = receiver.feed(b"".join(map(bytes, (piece for frame in frames for piece in frame))))
    assert same(source, target)
    assert sum(isinstance(each, Arrived) for each in events) == len(frames)
    assert isinstance(events[-1], Completed)
    assert target.arrived_bytes == target.expected_bytes == memory.size


def test_what_lies_elsewhere_is_sent():
    source, target, memory, receiver, sender = joined()
    del memory.places[id(source.layers[1].groups[0])]
    frames = list(sender.everything(source))
    kinds = {unseal(memoryview(frame[0]))[0].type for frame in frames}
    assert kinds == {FrameType.PLACES, FrameType.BLOCKS}
    receiver.feed(b"".join(map(bytes, (piece for frame in frames for piece in frame))))
    assert same(source, target)


def test_memory_that_changed_since_it_was_sealed_is_damage():
    source, target, memory, receiver, sender = joined()
    frame = b"".join(sender.places(source, 0, 0, 0, 4, 0))
    memory.bytes[SIZE] ^= 1
    assert refusals(receiver.feed(frame)) == [Refusal.DAMAGED_BLOCKS]
    assert target.arrived_bytes == 0
    memory.bytes[SIZE] ^= 1
    assert [type(each) for each in receiver.feed(frame)] == [Arrived]


@pytest.mark.parametrize("place", [1 << 63, (1 << 64) - 1, (1 << 64) - SIZE, 16 * SIZE, 15 * SIZE + 1])
def test_no_place_outside_is_read(place):
    _, target, memory, receiver, _ = joined()
    assert memory.size == 16 * SIZE
    assert refusals(receiver.feed(said([0, place]))) == [Refusal.DAMAGED_BLOCKS]
    assert memory.asked == []
    assert target.arrived_bytes == 0
    assert target.writers == 0


def test_where_nothing_is_lent_places_are_no_frame():
    receiver = greeted(held(0))
    assert refusals(receiver.feed(said([0]))) == [Refusal.UNKNOWN_TYPE]
    assert receiver.closed


@pytest.mark.parametrize(
    ("header", "refusal"),
    [
        ({"length": 7}, Refusal.WRONG_LENGTH),
        ({"length": 16}, Refusal.WRONG_LENGTH),
        ({"length": SIZE}, Refusal.WRONG_LENGTH),
        ({"length": MAX_MESSAGE + 1}, Refusal.TOO_LONG),
        ({"blocks": 0}, Refusal.NO_SUCH_BLOCK),
        ({"block": 4}, Refusal.NO_SUCH_BLOCK),
        ({"layer": 2}, Refusal.NO_SUCH_LAYER),
        ({"group": 2}, Refusal.NO_SUCH_GROUP),
        ({"epoch": 2}, Refusal.STALE_EPOCH),
        ({"dtype": 1}, Refusal.WRONG_DTYPE),
        ({"reservation": b"x" * 16}, Refusal.UNKNOWN_RESERVATION),
    ],
)
def test_a_place_is_looked_up_in_the_table_before_anything_is_read(header, refusal):
    _, target, memory, receiver, _ = joined()
    length = header.pop("length", 8)
    found = unseal(memoryview(said([0])[:88]))[0]._replace(length=length, **header)
    body = bytes(8) if length == 8 else os.urandom(min(length, 64))
    assert refusals(receiver.feed(seal(found, (body,)) + body))[:1] == [refusal]
    assert memory.asked == []
    assert target.arrived_bytes == 0


def test_a_reservation_that_ends_while_it_is_read_is_not_filled():
    source, target, memory, receiver, sender = joined()
    table = receiver.table
    read = memory.read

    def ending(*asked):
        for piece in read(*asked):
            if target.live:
                assert table.end(ID, 3) is False
            yield piece

    memory.read = ending
    events = receiver.feed(b"".join(sender.places(source, 0, 0, 0, 4, 0)))
    assert refusals(events) == [Refusal.ENDED]
    assert [each.reservation for each in events if isinstance(each, Freed)] == [target]
    assert target.arrived_bytes == 0
    assert not receiver.closed
