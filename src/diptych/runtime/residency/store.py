"""What `diptych kvstore` runs: blocks of many workers in memory, the least recently used going first; a thread a connection."""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from contextlib import suppress

from diptych.runtime.failpoints import hit
from diptych.runtime.residency.place import DIGEST_BYTES, digest
from diptych.runtime.residency.remote import DROP, GET, HAS, HEAD, MAGIC, NO, PUT, YES, receive, receive_into

MAX_CONNECTIONS = 256
IDLE = 600.0
LARGEST = 64 << 20


class Store:
    """At most `capacity` bytes of blocks, none larger than `largest`."""

    def __init__(self, capacity: int, largest: int = LARGEST) -> None:
        self.capacity, self.largest, self.used = capacity, min(largest, capacity), 0
        self._blocks: OrderedDict[bytes, tuple[bytes, bytearray]] = OrderedDict()
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()

    def __len__(self) -> int:
        return len(self._blocks)

    def serve(self, listener: socket.socket) -> None:
        """Accept until the listener is closed."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if len(self._connections) >= MAX_CONNECTIONS:
                connection.close()
                continue
            self._connections.add(connection)
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def close(self) -> None:
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _attend(self, connection: socket.socket) -> None:
        """One connection until it ends or says something that is no request."""
        connection.settimeout(IDLE)
        try:
            while self._answer(connection):
                pass
        except OSError:
            pass
        finally:
            self._connections.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket) -> bool:
        magic, operation, size, key = HEAD.unpack(receive(connection, HEAD.size))
        if magic != MAGIC or not 0 < size <= self.largest:
            return False
        if operation == PUT:
            connection.sendall(self._put(connection, key, size))
        elif operation == GET:
            self._get(connection, key, size)
        elif operation == HAS:
            connection.sendall(YES if key in self._blocks else NO)
        elif operation == DROP:
            with self._lock:
                gone = self._forget(key)
            connection.sendall(YES if gone else NO)
        else:
            return False
        return True

    def _put(self, connection: socket.socket, key: bytes, size: int) -> bytes:
        """Read a block, whose size has been looked at, and keep it if it arrived right."""
        told = receive(connection, DIGEST_BYTES)
        block = bytearray(size)
        receive_into(connection, memoryview(block))
        hit("store.put")
        if digest(key, (block,)) != told:
            return NO
        with self._lock:
            self._forget(key)
            self._blocks[key] = (told, block)
            self.used += size
            while self.used > self.capacity:
                self._forget(next(iter(self._blocks)))
            return YES if key in self._blocks else NO

    def _forget(self, key: bytes) -> bool:
        found = self._blocks.pop(key, None)
        if found is None:
            return False
        self.used -= len(found[1])
        return True

    def _get(self, connection: socket.socket, key: bytes, size: int) -> None:
        with self._lock:
            found = self._blocks.get(key)
            if found is not None:
                self._blocks.move_to_end(key)
        if found is None or len(found[1]) != size:
            connection.sendall(NO)
            return
        hit("store.get")
        connection.sendall(YES + found[0])
        connection.sendall(found[1])
