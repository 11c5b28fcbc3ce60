"""A small world of handoffs for the wire: what was really sent, and memory with guards around every block."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from diptych.boundary.element import Element
from diptych.boundary.frame import HEADER_BYTES, NO_RESERVATION
from diptych.boundary.messages import (
    Abort,
    Accept,
    Cancel,
    Commit,
    Done,
    Hello,
    LayerReady,
    Message,
    Offer,
    Reason,
    Reject,
    Release,
    Renew,
    Reserve,
    Speaker,
    Validated,
    Verdict,
)
from diptych.boundary.receiver import Arrived, Completed, Event, Heard
from diptych.boundary.sender import Sender
from diptych.boundary.wire_table import Layer, Reservation, WireTable

GUARD = 0xA5
HELLO = Hello(Speaker.PREFILL, "w0", 7, 1, 1, b"d" * 32)
MESSAGES: tuple[Message, ...] = (
    Reserve(b"state", 100, 4096, 30_000),
    Offer(b"state", 100, 4096, 30_000),
    Accept(4096, 2),
    Reject(Reason.NO_ROOM, 50, "full"),
    LayerReady(1, 4),
    Done(12, 4096),
    Validated(Verdict.ARRIVED, 4096, 0),
    Commit(),
    Release(),
    Abort(Reason.EXPIRED),
    Renew(30_000),
    Cancel(),
)


@dataclass
class Side:
    """Reservations and the memory under them: blocks scattered in memory, with guard bytes before, between and after."""

    reservations: list[Reservation] = field(default_factory=list)
    memories: list[tuple[bytearray, list[tuple[int, int]]]] = field(
        default_factory=list
    )  # and the guards between blocks

    def add(
        self, id: bytes, epoch: int, shapes: list[tuple[int, Element, int, int, int, int]], rng: random.Random
    ) -> Reservation:
        """`shapes`: per layer its number, element, bytes of a block, blocks, head groups, first block."""
        layers = {}
        for number, element, size, blocks, groups, first in shapes:
            stride = size + rng.choice((0, 0, 8))
            offsets = [16 + stride * index for index in range(blocks)]
            if rng.random() < 0.5:
                rng.shuffle(offsets)
            memories = [bytearray([GUARD]) * (16 + stride * blocks + 16) for _ in range(groups)]
            order = sorted(offsets)
            guards = list(zip([0, *(each + size for each in order)], [*order, len(memories[0])], strict=True))
            self.memories += [(memory, guards) for memory in memories]
            layers[number] = Layer(element, size, tuple(offsets), tuple(map(memoryview, memories)), first)
        reservation = Reservation(id, epoch, layers)
        self.reservations.append(reservation)
        return reservation

    def fill(self, rng: random.Random) -> None:
        for memory, _ in self.memories:
            memory[:] = rng.randbytes(len(memory))

    def clean(self) -> None:
        """As before anything arrived."""
        for memory, _ in self.memories:
            memory[:] = bytes([GUARD]) * len(memory)

    def guards_hold(self) -> bool:
        return all(
            memory[begin:end] == bytes([GUARD]) * (end - begin)
            for memory, guards in self.memories
            for begin, end in guards
        )


def block_of(reservation: Reservation, layer: int, group: int, block: int) -> bytes:
    return b"".join(bytes(piece) for piece in reservation.layers[layer].pieces(group, block, 1))


SHAPES = (
    [(0, Element.BF16, 64, 6, 2, 0), (1, Element.BF16, 64, 6, 2, 0), (5, Element.FP32, 40, 1, 1, 0)],
    [(0, Element.E4M3FN, 48, 9, 1, 3), (2, Element.E4M3FN, 96, 4, 3, 0)],
    [(3, Element.INT4, 33, 5, 1, 0)],
)


class World:
    """Three handoffs of one connection. `sent` is every frame in order; `messages` what was said."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.source, self.target = Side(), Side()
        for index, shapes in enumerate(SHAPES):
            id, epoch = bytes([index + 1]) * 16, 5 + index
            self.source.add(id, epoch, shapes, rng)
            self.target.add(id, epoch, shapes, rng)
        self.source.fill(rng)
        sender = Sender(max_payload=200)
        frames = [frame for each in self.source.reservations for frame in sender.everything(each)]
        rng.shuffle(frames)
        self.messages = []
        self.sent = [Sender().message(HELLO)]
        late = Sender()
        late.sequence = 1 + len(frames)
        for frame in frames:
            self.sent.append(b"".join(frame))
        for message in MESSAGES:
            about = rng.choice(self.source.reservations)
            self.messages.append((about.id, about.epoch, message))
            self.sent.insert(rng.randrange(1, len(self.sent) + 1), late.message(message, about.id, about.epoch))
        self.said = {(NO_RESERVATION, 0, HELLO), *self.messages}

    def receiving(self) -> WireTable:
        """A table with fresh reservations over the same target memory, which is clean again."""
        self.target.clean()
        table = WireTable()
        self.target.reservations = [Reservation(each.id, each.epoch, each.layers) for each in self.target.reservations]
        for each in self.target.reservations:
            assert table.reserve(each) is None
        return table

    def check(self, events: list[Event]) -> int:
        """Everything that was accepted was sent, and is where it belongs as it was sent. How many frames were accepted."""
        accepted, completed = 0, []
        for event in events:
            if isinstance(event, Heard):
                assert (event.reservation, event.epoch, event.message) in self.said, event
                accepted += 1
            elif isinstance(event, Arrived):
                accepted += 1
            elif isinstance(event, Completed):
                completed.append(event.reservation)
        assert len(completed) == len(set(map(id, completed))), "completed twice"
        for ours, theirs in zip(self.target.reservations, self.source.reservations, strict=True):
            assert (ours in completed) == ours.complete
            assert self._here(ours, theirs) == ours.arrived_bytes, "bytes are counted that are not here"
        return accepted

    @staticmethod
    def _here(ours: Reservation, theirs: Reservation) -> int:
        """Bytes of the blocks that count as here; each is as it was sent."""
        missing = {
            (layer, group, each)
            for layer, group, block, blocks in ours.missing()
            for each in range(block, block + blocks)
        }
        total = 0
        for number, layer in ours.layers.items():
            for group in range(len(layer.groups)):
                for block in range(layer.first, layer.first + len(layer.offsets)):
                    if (number, group, block) not in missing:
                        assert block_of(ours, number, group, block) == block_of(theirs, number, group, block)
                        total += layer.block_bytes
        return total


def payload(frame: bytes) -> bytes:
    return frame[HEADER_BYTES:]
