"""What one side of a connection knows of the KV that crosses: where every block of every reservation lies, and which are here.

The receiver's table decides everything: a frame names a place, and only this table knows how many bytes belong there and where
they go. A cell is one block of one head group of one layer. A cell is missing, being written by one connection, or here; it
becomes here once, whole, when its digest was right, so that bytes here are the sum over distinct cells, however often each came.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from diptych.boundary.element import Element
from diptych.boundary.frame import (
    DTYPE_CODES,
    MAX_PAYLOAD,
    NO_RESERVATION,
    PLACE_BYTES,
    FrameType,
    Header,
    Refusal,
)

REMEMBERED = 4096  # ended reservations whose epoch is still known

_MISSING, _WRITING, _HERE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's KV as one side holds it: a memory per head group, and where in each of them a block begins.

    Block `first + i` is `memory[offsets[i] : offsets[i] + block_bytes]`. A window layer, or a target that holds the first
    blocks already, has `first` > 0. Bytes between blocks (a stride wider than a block) are never touched.
    """

    element: Element
    block_bytes: int
    offsets: tuple[int, ...]
    groups: tuple[memoryview, ...]
    first: int = 0

    def __post_init__(self) -> None:
        size, order = self.block_bytes, sorted(self.offsets)
        assert 0 < size <= MAX_PAYLOAD, f"a block of {size} bytes does not fit a frame"
        assert all(begin + size <= following for begin, following in pairwise(order)), "blocks overlap"
        for memory in self.groups:
            assert (memory.format, memory.ndim, memory.contiguous) == ("B", 1, True), "memory must be plain bytes"
            assert not order or (order[0] >= 0 and order[-1] + size <= len(memory)), (
                f"blocks reach past {len(memory)} bytes"
            )

    @property
    def dtype(self) -> int:
        """What the wire calls its element."""
        return DTYPE_CODES[self.element]

    @property
    def total_bytes(self) -> int:
        """Bytes of all blocks of all head groups."""
        return self.block_bytes * len(self.offsets) * len(self.groups)

    def pieces(self, group: int, block: int, count: int) -> list[memoryview]:
        """The memory of `count` blocks from `block` on, neighbours joined, in order."""
        memory, size = self.groups[group], self.block_bytes
        at = block - self.first
        begin = self.offsets[at]
        end = begin + size
        found = []
        for offset in self.offsets[at + 1 : at + count]:
            if offset != end:
                found.append(memory[begin:end])
                begin = end = offset
            end += size
        found.append(memory[begin:end])
        return found


class Reservation:
    """Room for the KV of one handoff under one epoch, and how much of it is here. Id and epoch together are never used again."""

    __slots__ = ("arrived_bytes", "cells", "epoch", "expected_bytes", "id", "layers", "live", "writers")

    def __init__(self, id: bytes, epoch: int, layers: Mapping[int, Layer]) -> None:
        assert len(id) == 16, "a reservation's id is 16 bytes"
        assert id != NO_RESERVATION, "a reservation's id is not all zero"
        assert 0 <= epoch < 1 << 64, f"epoch {epoch} does not fit the header"
        self.id, self.epoch, self.layers = id, epoch, dict(layers)
        self.cells = {number: bytearray(len(each.groups) * len(each.offsets)) for number, each in self.layers.items()}
        self.expected_bytes = sum(each.total_bytes for each in self.layers.values())
        self.arrived_bytes = 0
        self.live = True
        self.writers = 0  # connections with a frame of it under way: they hold its memory

    @property
    def complete(self) -> bool:
        """Whether exactly the expected bytes are here."""
        return self.arrived_bytes == self.expected_bytes

    def refuses(self, header: Header) -> Refusal | None:
        """Whether the frame names a place that this reservation does not have, or brings other bytes than belong there."""
        if header.epoch != self.epoch:
            return Refusal.STALE_EPOCH if header.epoch < self.epoch else Refusal.EARLY_EPOCH
        layer = self.layers.get(header.layer)
        if layer is None:
            return Refusal.NO_SUCH_LAYER
        if header.dtype != layer.dtype:
            return Refusal.WRONG_DTYPE
        if header.group >= len(layer.groups):
            return Refusal.NO_SUCH_GROUP
        at = header.block - layer.first
        if at < 0 or header.blocks < 1 or at + header.blocks > len(layer.offsets):
            return Refusal.NO_SUCH_BLOCK
        each = PLACE_BYTES if header.type == FrameType.PLACES else layer.block_bytes
        return None if header.length == header.blocks * each else Refusal.WRONG_LENGTH

    def claim(self, header: Header) -> list[memoryview] | Refusal:
        """The memory that the frame may write, which is its writer's alone until `settle`. The frame has passed `refuses`."""
        cells, begin, end = self._span(header)
        if cells.count(_MISSING, begin, end) == header.blocks:
            cells[begin:end] = bytes((_WRITING,)) * header.blocks
            self.writers += 1
            return self.layers[header.layer].pieces(header.group, header.block, header.blocks)
        if cells.count(_HERE, begin, end) == header.blocks:
            return Refusal.DUPLICATE
        return Refusal.BUSY if cells.count(_WRITING, begin, end) else Refusal.OVERLAPPING

    def settle(self, header: Header, here: bool) -> None:
        """The end of a claim: its blocks are here, or as missing as before."""
        cells, begin, end = self._span(header)
        cells[begin:end] = bytes((_HERE if here else _MISSING,)) * header.blocks
        self.writers -= 1
        if here:
            self.arrived_bytes += header.blocks * self.layers[header.layer].block_bytes

    def missing(self) -> Iterator[tuple[int, int, int, int]]:
        """Runs of blocks that are not here: layer, head group, first block, number of blocks."""
        for number, layer in self.layers.items():
            for group in range(len(layer.groups)):
                cells = self.cells[number][group * len(layer.offsets) : (group + 1) * len(layer.offsets)]
                at = 0
                while at < len(cells):
                    following = cells.find(_HERE, at)
                    end = len(cells) if following < 0 else following
                    if end > at:
                        yield number, group, layer.first + at, end - at
                    at = end + 1

    def _span(self, header: Header) -> tuple[bytearray, int, int]:
        layer = self.layers[header.layer]
        begin = header.group * len(layer.offsets) + header.block - layer.first
        return self.cells[header.layer], begin, begin + header.blocks


class WireTable:
    """The reservations of one side, shared by all its connections. Not for several threads at once."""

    def __init__(self) -> None:
        self.reservations: dict[bytes, Reservation] = {}
        self._ended: OrderedDict[bytes, int] = OrderedDict()  # id → highest epoch that ended, the latest REMEMBERED

    def reserve(self, reservation: Reservation) -> Refusal | None:
        """Take a reservation in. One at a time per id, and only of a later epoch than any that ended."""
        if reservation.id in self.reservations:
            return Refusal.BUSY
        if reservation.epoch <= self._ended.get(reservation.id, -1):
            return Refusal.STALE_EPOCH
        self.reservations[reservation.id] = reservation
        return None

    def end(self, id: bytes, epoch: int) -> bool | Refusal:
        """Fence a reservation off: nothing of it is taken any more. True when its memory is free at once.

        False while connections still hold memory of it; the last of them says `Freed` with its next bytes or its close.
        """
        reservation = self.reservations.get(id)
        if reservation is None:
            return Refusal.ENDED if id in self._ended else Refusal.UNKNOWN_RESERVATION
        if reservation.epoch != epoch:
            return Refusal.STALE_EPOCH if epoch < reservation.epoch else Refusal.EARLY_EPOCH
        del self.reservations[id]
        reservation.live = False
        self._ended[id] = epoch
        self._ended.move_to_end(id)
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        return reservation.writers == 0

    def find(self, header: Header) -> Reservation | Refusal:
        """The reservation that a frame of KV is for, if it has the place and length that the frame names."""
        reservation = self.reservations.get(header.reservation)
        if reservation is None:
            return Refusal.ENDED if header.reservation in self._ended else Refusal.UNKNOWN_RESERVATION
        return reservation.refuses(header) or reservation
