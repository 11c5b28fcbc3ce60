"""The sending end of a connection, without the connection: headers come out beside the caller's own memory, uncopied."""

from __future__ import annotations

from collections.abc import Iterator

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

RUN_BYTES = 1 << 20  # KV of one frame, about: so much that its header costs nothing, and it stays in the cache

Pieces = list[bytes | memoryview]


class Sender:
    """One direction of one connection: counts its frames. `max_payload` is what the other side's hello allows."""

    __slots__ = ("max_payload", "sequence", "version")

    def __init__(self, version: int = VERSION, max_payload: int = MAX_PAYLOAD) -> None:
        self.version, self.max_payload = version, max_payload
        self.sequence = 0

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

    def frames(self, source: Reservation, layer: int, group: int, block: int, count: int) -> Iterator[Pieces]:
        """The same in as many frames as are handy, each sealed when it is asked for."""
        size = source.layers[layer].block_bytes
        assert size <= self.max_payload, f"a block of {size} bytes, where the other side takes {self.max_payload}"
        step = max(1, min(min(RUN_BYTES, self.max_payload) // size, MAX_PIECES))
        for begin in range(block, block + count, step):
            yield self.blocks(source, layer, group, begin, min(step, block + count - begin))

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
