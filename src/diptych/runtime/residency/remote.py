"""A store in another process: what a worker asks of it, and what it answers. Binary and bounded, one request at a time.

A request is a header (magic, operation, block bytes, key) and, for a put, the digest and the block; the answer is one byte and,
for a get, the digest and the block. A key on the wire is bound to the KV state, so that workers of another precision or layout
share a store and never a block. Whatever goes wrong is a miss, and the connection is made anew after a rest.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from diptych.runtime.peer.address import Address
from diptych.runtime.residency.place import DIGEST_BYTES, KEY_BYTES, Counts, Pieces, digest, size_of

MAGIC = b"DPKS"
HEAD = struct.Struct(f"<4sBxxxQ{KEY_BYTES}s")
PUT, GET, HAS, DROP = 1, 2, 3, 4
YES, NO = b"\x01", b"\x00"
PATIENCE = 0.5
"""Seconds without a byte: a store that is slower than computing anew is none, and the engine must not miss a heartbeat for it."""
REST = 2.0

Dial = Callable[[], socket.socket]


def dial(address: Address, context: ssl.SSLContext | None = None) -> Dial:
    """How to reach a store, under TLS when a context is given."""

    def connect() -> socket.socket:
        made = address.connect(PATIENCE)
        return context.wrap_socket(made, server_hostname=address.host) if context and address.host else made

    return connect


class Remote:
    """A place whose blocks are kept by a `diptych kvstore`."""

    is_shared = True

    def __init__(
        self,
        connect: Dial,
        block_bytes: int,
        state: bytes,
        name: str = "remote",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.block_bytes, self.counts = name, block_bytes, Counts()
        self._connect, self._clock, self._state = connect, clock, state
        self._socket: socket.socket | None = None
        self._resting_until = float("-inf")

    def put(self, key: bytes, pieces: Pieces) -> bool:
        assert size_of(pieces) == self.block_bytes, f"{size_of(pieces)} bytes for a block of {self.block_bytes}"
        return self._ask(PUT, key, (digest(self._named(key), pieces), *pieces)) == YES

    def get(self, key: bytes, into: Sequence[memoryview]) -> bool:
        """Read a block; its digest is checked here, so neither the store nor the way to it is believed."""
        self.counts.asked += 1
        answer = self._ask(GET, key, (), into)
        if answer is None or answer == NO:
            return False
        if digest(self._named(key), into) != answer:
            self.counts.damaged += 1
            self.drop(key)
            return False
        self.counts.found += 1
        return True

    def drop(self, key: bytes) -> None:
        self._ask(DROP, key, ())

    def has(self, key: bytes) -> bool:
        return self._ask(HAS, key, ()) == YES

    def keys(self) -> Iterable[bytes]:
        """Unknown: other workers use the store as well."""
        return ()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _named(self, key: bytes) -> bytes:
        return blake2b(self._state + key, digest_size=KEY_BYTES).digest()

    def _ask(self, operation: int, key: bytes, pieces: Pieces, into: Sequence[memoryview] = ()) -> bytes | None:
        """The answer's byte, or a get's digest; None when the store cannot be reached."""
        if self._clock() < self._resting_until:
            return None
        try:
            if self._socket is None:
                self._socket = self._connect()
                self._socket.settimeout(PATIENCE)
            self._socket.sendall(HEAD.pack(MAGIC, operation, self.block_bytes, self._named(key)))
            for piece in pieces:
                self._socket.sendall(piece)
            answer = receive(self._socket, 1)
            if operation != GET or answer != YES:
                return answer
            told = receive(self._socket, DIGEST_BYTES)
            for piece in into:
                receive_into(self._socket, piece)
            return told
        except OSError:
            self.counts.failed += 1
            self._resting_until = self._clock() + REST
            self.close()
            return None


def receive(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes, or OSError."""
    room = bytearray(size)
    receive_into(connection, memoryview(room))
    return bytes(room)


def receive_into(connection: socket.socket, room: memoryview) -> None:
    """Fill `room`, or OSError."""
    while room:
        count = connection.recv_into(room)
        if count == 0:
            raise ConnectionResetError("the other side closed")
        room = room[count:]
