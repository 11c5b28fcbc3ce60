"""KV memory that others read through NIXL (UCX: shared memory, TCP or RDMA, whatever there is), where `nixl` is installed.

As in `arena`, frames say places in memory that the source lends. Here the lender registers its memory with an agent and says the
agent's metadata over the connection; the reader asks its own agent to READ a frame's blocks into a buffer of its own, copies and
digests them from there. Nobody is ever written to from outside. UCX does not encrypt, so KV stays on this host.
"""

from __future__ import annotations

import importlib
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from diptych.errors import Finding, InvalidInput
from diptych.runtime.peer.arena import address_of, joined, lend_nothing, receive_word, send_word

NIXL = 2
"""What is lent, in the first word."""
ROOM = 1 << 20
"""Bytes of the buffer that blocks are read into."""
LONGEST_METADATA = 1 << 16
POLL_S = 2e-5
READ_S = 5.0
"""How long one read may take before the other side is taken for gone."""
_MORE = struct.Struct("<QI")  # where the memory begins in the lender's process, bytes of metadata


class Registered:
    """This worker's own memory, registered with its agent."""

    kind = "nixl"

    def __init__(self) -> None:
        """Raises InvalidInput where NIXL is not installed or cannot start."""
        try:
            api = importlib.import_module("nixl._api")
            self.agent: Any = api.nixl_agent(f"diptych-{os.urandom(8).hex()}", api.nixl_agent_config(backends=["UCX"]))
        except ImportError:
            raise InvalidInput(
                Finding("peer", "nixl: needs the package nixl", "pip install nixl, or another kind")
            ) from None
        except Exception as error:  # the binding raises types of its own
            raise InvalidInput(
                Finding("peer", f"nixl: cannot start: {error}"[:300], "another kind of address")
            ) from None
        self.turn = threading.Lock()  # an agent is not for several threads at once
        self._rooms: list[tuple[int, int]] = []
        self._held: list[Any] = []

    @property
    def size(self) -> int:
        return max(begin + size for begin, size in self._rooms) - self._base if self._rooms else 0

    @property
    def _base(self) -> int:
        return min(begin for begin, _ in self._rooms)

    def room(self, size: int) -> memoryview:
        """Zeroed memory that others may read."""
        made = memoryview(mmap.mmap(-1, max(size, 1)))[:size]
        if size:
            begin = address_of(made)
            with self.turn:
                self._held.append(self.agent.register_memory([(begin, size, 0, "")], "DRAM"))
            self._rooms.append((begin, size))
        return made

    def place(self, memory: memoryview) -> int | None:
        """How far behind the first of it this memory begins; None where it lies elsewhere."""
        at = address_of(memory) if len(memory) else -1
        inside = any(begin <= at and at + len(memory) <= begin + size for begin, size in self._rooms)
        return at - self._base if inside else None

    def lend(self, sock: socket.socket) -> None:
        """Say what it is, over a connection that was made. Raises OSError."""
        if not self._rooms:
            lend_nothing(sock)
            return
        with self.turn:
            metadata = self.agent.get_agent_metadata()
        send_word(sock, NIXL, self.size)
        sock.sendall(_MORE.pack(self._base, len(metadata)) + metadata)

    def borrow(self, sock: socket.socket) -> Remote | None:
        """What the one who dialed lends. Raises OSError."""
        what, size, files = receive_word(sock)
        for file in files:
            os.close(file)
        if what == 0:
            return None
        if what != NIXL or files:
            raise ConnectionError("it does not say what memory it lends")
        base, length = _MORE.unpack(_exactly(sock, _MORE.size))
        if length > LONGEST_METADATA:
            raise ConnectionError(f"{length:,} bytes of metadata")
        return Remote(self, _exactly(sock, length), base, size)

    def close(self) -> None:
        """Lend it to nobody any more."""
        with self.turn:
            for each in self._held:
                self.agent.deregister_memory(each)
            self._held = []


class Remote:
    """Another worker's memory. `Reach` of the boundary's receiver."""

    def __init__(self, own: Registered, metadata: bytes, base: int, size: int) -> None:
        """Raises OSError: no metadata of an agent."""
        self._own, self._base, self.size = own, base, size
        self._room = mmap.mmap(-1, ROOM)
        self._bytes = np.frombuffer(self._room, np.uint8)
        self._at = address_of(memoryview(self._room))
        with own.turn:
            try:
                self._peer = own.agent.add_remote_agent(metadata)
                self._held = own.agent.register_memory([(self._at, ROOM, 0, "")], "DRAM")
            except Exception as error:  # the binding raises types of its own
                raise ConnectionError(f"no agent of NIXL: {error}"[:300]) from None

    def read(self, places: Sequence[int], size: int, into: Sequence[memoryview]) -> Iterator[memoryview]:
        """Blocks into memory, as much at a time as the buffer holds."""
        runs = [(place + at, min(ROOM, run - at)) for place, run in joined(places, size) for at in range(0, run, ROOM)]
        waiting = [piece for piece in into if len(piece)]
        for place, run in runs:
            self._fetch(place, run)
            done = 0
            while done < run:
                piece = waiting[0]
                step = min(len(piece), run - done)
                np.copyto(np.frombuffer(piece[:step], np.uint8), self._bytes[done : done + step])
                yield piece[:step]
                done += step
                waiting[:1] = [piece[step:]] if step < len(piece) else []

    def close(self) -> None:
        """Forget the other side."""
        with self._own.turn:
            self._own.agent.deregister_memory(self._held)
            self._own.agent.remove_remote_agent(self._peer)

    def _fetch(self, place: int, size: int) -> None:
        agent, until = self._own.agent, time.monotonic() + READ_S
        try:
            with self._own.turn:
                here = agent.get_xfer_descs([(self._at, size, 0)], "DRAM")
                there = agent.get_xfer_descs([(self._base + place, size, 0)], "DRAM")
                handle = agent.initialize_xfer("READ", here, there, self._peer)
                state = agent.transfer(handle)
            while state == "PROC" and time.monotonic() < until:
                time.sleep(POLL_S)
                with self._own.turn:
                    state = agent.check_xfer_state(handle)
            with self._own.turn:
                agent.release_xfer_handle(handle)
        except Exception as error:  # the binding raises types of its own
            raise ConnectionError(f"NIXL cannot read it: {error}"[:300]) from None
        if state != "DONE":
            raise ConnectionError(f"NIXL says {state}")


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (more := sock.recv(size - len(found))):
        found += more
    if len(found) < size:
        raise ConnectionError("it ended before it said what memory it lends")
    return found
