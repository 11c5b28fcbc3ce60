"""One frame on the wire, byte by byte: a fixed header, then `length` bytes of payload. No pickle, nothing self-describing.

The layout, little-endian, is `_HEADER`; `docs/wire.md` draws it. Two digests are always there: XXH3-128 over the fields and the
payload, and XXH3-64 over everything in the header before it, so that a damaged length or place is found before a byte of
payload is read. They find faults, not forgers: off the host the connection is under TLS.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

import xxhash

from diptych.boundary.element import Element

MAGIC = b"DPKV"
VERSION = 1  # the newest that is written
OLDEST_VERSION = 1  # the oldest that is read: one before the newest, once there are two
MAX_MESSAGE = (4 << 20) + 4096  # bytes of one control message: a whole KV state and a little more
MAX_PAYLOAD = 1 << 26  # bytes of KV in one frame
PLACE_BYTES = 8  # of one place: an offset into the memory that was agreed on
MAX_PIECES = 512  # memories of one system call; POSIX systems take 1,024
NO_RESERVATION = bytes(16)  # what a frame about the connection itself carries

#       magic, version, type, flags, epoch, reservation, sequence, layer, block, blocks, group, dtype, zero, length
_FIELDS = struct.Struct("<4sHBBQ16sQIIIHBBQ")
_DIGEST = struct.Struct("<16sQ")
FIELD_BYTES = _FIELDS.size
_CHECKED_BYTES = FIELD_BYTES + 16
HEADER_BYTES = FIELD_BYTES + _DIGEST.size


class FrameType(IntEnum):
    """What the payload is."""

    MESSAGE = 1  # a control message
    BLOCKS = 2  # KV of a run of blocks of one layer and head group
    PLACES = (
        3  # where such KV lies in memory that the receiver reads for itself; nowhere but where both ends agreed to that
    )


_TYPES = frozenset(FrameType)


class Scope(StrEnum):
    """How far a refusal reaches."""

    FRAME = "frame"  # its payload is passed over; everything else goes on
    HANDOFF = "handoff"  # passed over as well, and the two sides mean different things: abort this handoff
    CONNECTION = "connection"  # the bytes can no longer be trusted to be in step: close it


class Refusal(StrEnum):
    """Why a frame was not taken."""

    NOT_A_FRAME = "not a frame"
    WRONG_VERSION = "wrong version"
    DAMAGED_HEADER = "damaged header"
    UNKNOWN_TYPE = "unknown type"
    NOT_ZERO = "a field that must be zero is not"
    TOO_LONG = "longer than a frame may be"
    NO_HELLO = "before the hello"
    DAMAGED_MESSAGE = "damaged message"
    BAD_MESSAGE = "not a message of the schema"
    CUT = "cut off"
    WRONG_DTYPE = "wrong dtype"
    NO_SUCH_LAYER = "no such layer"
    NO_SUCH_GROUP = "no such head group"
    NO_SUCH_BLOCK = "no such block"
    WRONG_LENGTH = "wrong length"
    UNKNOWN_RESERVATION = "unknown reservation"
    ENDED = "reservation ended"
    STALE_EPOCH = "stale epoch"
    EARLY_EPOCH = "epoch not begun"
    DUPLICATE = "already here"
    OVERLAPPING = "partly here"
    BUSY = "being written by another connection"
    DAMAGED_BLOCKS = "damaged blocks"
    REPLAYED = "message seen before"

    @property
    def scope(self) -> Scope:
        """How far it reaches."""
        return _SCOPES[self]


_CLOSES = (
    Refusal.NOT_A_FRAME,
    Refusal.WRONG_VERSION,
    Refusal.DAMAGED_HEADER,
    Refusal.UNKNOWN_TYPE,
    Refusal.NOT_ZERO,
    Refusal.TOO_LONG,
    Refusal.NO_HELLO,
    Refusal.DAMAGED_MESSAGE,
    Refusal.BAD_MESSAGE,
    Refusal.CUT,
)
_ABORTS = (
    Refusal.WRONG_DTYPE,
    Refusal.NO_SUCH_LAYER,
    Refusal.NO_SUCH_GROUP,
    Refusal.NO_SUCH_BLOCK,
    Refusal.WRONG_LENGTH,
)
_SCOPES = {
    **dict.fromkeys(Refusal, Scope.FRAME),
    **dict.fromkeys(_ABORTS, Scope.HANDOFF),
    **dict.fromkeys(_CLOSES, Scope.CONNECTION),
}

DTYPE_CODES = {
    Element.FP32: 1,
    Element.BF16: 2,
    Element.FP16: 3,
    Element.E4M3FN: 4,
    Element.E4M3FNUZ: 5,
    Element.E5M2: 6,
    Element.INT8: 7,
    Element.INT4: 8,
    Element.NVFP4: 9,
}  # on the wire for good: a code is never given to another format


class Header(NamedTuple):
    """The fields of a frame. `layer` … `dtype` say which KV follows and are zero in a message.

    `sequence` counts the frames of one connection and direction from 0. `blocks` of them from `block` on follow one another.
    """

    magic: bytes
    version: int
    type: int
    flags: int
    epoch: int
    reservation: bytes
    sequence: int
    layer: int
    block: int
    blocks: int
    group: int
    dtype: int
    zero: int
    length: int


def seal(header: Header, payload: Sequence[Any]) -> bytes:
    """The header as it goes out, with the digests over itself and the payload, and KV that lies elsewhere (pieces in order)."""
    fields = _FIELDS.pack(*header)
    digest = xxhash.xxh3_128(fields)
    for piece in payload:
        digest.update(piece)
    checked = fields + digest.digest()
    return checked + xxhash.xxh3_64_intdigest(checked).to_bytes(8, "little")


def unseal(data: memoryview) -> tuple[Header, bytes] | Refusal:
    """The fields of a header and the digest that its payload must have, or why the header is none.

    Magic and version stand where they will always stand, and are looked at first; the digest comes before everything else.
    """
    if data[:4] != MAGIC:
        return Refusal.NOT_A_FRAME
    if not OLDEST_VERSION <= int.from_bytes(data[4:6], "little") <= VERSION:
        return Refusal.WRONG_VERSION
    digest, check = _DIGEST.unpack_from(data, FIELD_BYTES)
    if xxhash.xxh3_64_intdigest(data[:_CHECKED_BYTES]) != check:
        return Refusal.DAMAGED_HEADER
    return Header._make(_FIELDS.unpack_from(data)), digest


def malformed(header: Header) -> Refusal | None:
    """What is wrong with a header whatever anybody expects: its type, a field that its type does not use, its length."""
    message = header.type == FrameType.MESSAGE
    if header.type not in _TYPES:
        return Refusal.UNKNOWN_TYPE
    if header.flags or header.zero or (message and any(header[7:12])):
        return Refusal.NOT_ZERO
    if header.length > (MAX_PAYLOAD if header.type == FrameType.BLOCKS else MAX_MESSAGE):
        return Refusal.TOO_LONG
    return None
