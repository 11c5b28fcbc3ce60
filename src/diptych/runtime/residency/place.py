"""What a tier's storage is: blocks of one size by key, with digests: what is damaged is a miss and never a wrong block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import xxhash

Pieces = Sequence[memoryview | bytes]
KEY_BYTES = 32
DIGEST_BYTES = 16


@dataclass(slots=True)
class Counts:
    """What has been asked of a place since it opened."""

    asked: int = 0
    found: int = 0
    damaged: int = 0
    failed: int = 0


class Place(Protocol):
    """Storage for blocks of `block_bytes`. It may fail at any time: a put that failed is False, a get that failed a miss."""

    name: str
    block_bytes: int
    counts: Counts
    is_shared: bool  # others put blocks there too: it is asked for what the rules do not know, and nothing is dropped

    def put(self, key: bytes, pieces: Pieces) -> bool:
        """Keep a block; False when that was not possible. A key that is there already keeps what it has."""
        ...

    def get(self, key: bytes, into: Sequence[memoryview]) -> bool:
        """Write a block into `into`; False, with `into` in any state, when it is not there or not right."""
        ...

    def drop(self, key: bytes) -> None:
        """Forget a block."""
        ...

    def keys(self) -> Iterable[bytes]:
        """What is there, oldest first."""
        ...

    def close(self) -> None: ...


def digest(key: bytes, pieces: Iterable[memoryview | bytes | bytearray]) -> bytes:
    """XXH3-128 over a key and its block, so that a block in another's place is as wrong as a damaged one."""
    state = xxhash.xxh3_128(key)
    for piece in pieces:
        state.update(piece)
    return state.digest()


def size_of(pieces: Pieces) -> int:
    """Bytes of all pieces."""
    return sum(len(piece) for piece in pieces)


def scatter(data: memoryview | bytes, into: Sequence[memoryview]) -> None:
    """Copy one run of bytes over several memories, in order."""
    begin = 0
    for piece in into:
        piece[:] = data[begin : begin + len(piece)]
        begin += len(piece)
