"""The sending end of a connection, without the connection: headers come out beside the caller's own memory, uncopied."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from diptych.boundary.frame import (
    MAGIC,
    MAX_PAYLOAD,
    MAX_PIECES,
    NO_RESERVATION,
    VERSION,
    FrameType,
    Header,
    seal,
)
from diptych.boundary.messages import Message, encode
from diptych.boundary.wire_table import Reservation

RUN_BYTES = 1 << 18  # KV of one frame, about: it stays in the near cache between the digest and the copy, at both ends

Pieces = list[bytes | memoryview]


class Sender:
    """One direction of one connection: counts its frames. `max_payload` is what the other side's hello allows.

    `lent` says where in memory that the other side reads for itself one of this side's begins, if it lies there.
    """

    __slots__ = ("lent", "max_payload", "sequence", "version")

    def __init__(self, version: int = VERSION, max_payload: int = MAX_PAYLOAD) -> None:
        self.version, self.max_payload = version, max_payload
        self.sequence = 0
        self.lent: Callable[[memoryview], int | None] = _nothing

    def message(self, message: Message, reservation: bytes = NO_RESERVATION, epoch: int = 0) -> bytes:
        """A message about a reservation under an epoch; a hello is about none."""
        payload = encode(message)
        header = self._header(FrameType.MESSAGE, epoch, reservation, (0, 0, 0, 0, 0), len(payload))
        return seal(header, (payload,)) + payload

    def blocks(self, source: Reservation, layer: int, group: int, block: int, count: int) -> Pieces:
        """`count` blocks from `block` on, as this side's `source` holds them: a header and views, for `sendmsg` or the like.

        The memory must not change before it is sent: the digest is over what it holds now.
        """
        held = source.layers[layer]
        pieces = held.pieces(group, block, count)
        place = (layer, block, count, group, held.dtype)
        header = self._header(FrameType.BLOCKS, source.epoch, source.id, place, count * held.block_bytes)
        return [seal(header, pieces), *pieces]

    def places(self, source: Reservation, layer: int, group: int, block: int, count: int, base: int) -> Pieces:
        """The same where the other side reads them itself: a header and where each lies, `base` being the memory's own place.

        The memory must not change before it was read: the digest is over what it holds now.
        """
        held = source.layers[layer]
        at = block - held.first
        said = struct.pack(f"<{count}Q", *(base + offset for offset in held.offsets[at : at + count]))
        place = (layer, block, count, group, held.dtype)
        header = self._header(FrameType.PLACES, source.epoch, source.id, place, len(said))
        return [seal(header, (said, *held.pieces(group, block, count))), said]

    def frames(self, source: Reservation, layer: int, group: int, block: int, count: int) -> Iterator[Pieces]:
        """The same in as many frames as are handy, each sealed when it is asked for."""
        held = source.layers[layer]
        size, base = held.block_bytes, self.lent(held.groups[group])
        assert size <= self.max_payload, f"a block of {size} bytes, where the other side takes {self.max_payload}"
        step = max(1, min(min(RUN_BYTES, self.max_payload) // size, MAX_PIECES))
        for begin in range(block, block + count, step):
            some = min(step, block + count - begin)
            if base is None:
                yield self.blocks(source, layer, group, begin, some)
            else:
                yield self.places(source, layer, group, begin, some, base)

    def everything(self, source: Reservation) -> Iterator[Pieces]:
        """All of `source`, layer by layer in the order it names them."""
        for number, layer in source.layers.items():
            for group in range(len(layer.groups)):
                yield from self.frames(source, number, group, layer.first, len(layer.offsets))

    def _header(
        self, kind: FrameType, epoch: int, reservation: bytes, place: tuple[int, int, int, int, int], length: int
    ) -> Header:
        sequence, self.sequence = self.sequence, self.sequence + 1
        return Header(MAGIC, self.version, kind, 0, epoch, reservation, sequence, *place, 0, length)


def _nothing(memory: memoryview) -> None:
    """Nothing is lent."""
