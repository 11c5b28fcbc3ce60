"""KV memory of one worker that others on its host read for themselves: lent as an open file without a name, read by copying.

The lender's blocks lie in the arena, so nothing is written twice: frames say places in it, and whoever they are for copies from
there into its own blocks and digests its copy. The file has no name, so nothing is left of it when its last process ends. It is
sealed: its size cannot change under a reader, and nobody but the lender can write. A reader looks at seals and size before it
maps anything, and at every place before it reads.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from diptych.errors import Finding, InvalidInput

SLICE = 1 << 17
"""Bytes copied before they are digested, so that they are still in the cache."""
LARGEST = 1 << 46
"""Bytes of an arena, at most: what a process may map beside its own."""
_WORD = struct.Struct("<4sHHQ")  # magic, version, what is lent, its bytes
_MAGIC, _VERSION = b"DPAR", 1
_NOTHING, _FILE = 0, 1
_FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE of Linux: only what is mapped already may be written
_CONTROL = 1024
"""Bytes for what comes beside the word: one open file, and room to see that there were more."""


class Lender(Protocol):
    """Memory of this worker that its peers read, and how it reads theirs."""

    kind: str

    @property
    def size(self) -> int: ...

    def room(self, size: int) -> memoryview: ...

    def place(self, memory: memoryview) -> int | None: ...

    def lend(self, sock: socket.socket) -> None: ...

    def borrow(self, sock: socket.socket) -> Lent | None: ...

    def close(self) -> None: ...


class Lent(Protocol):
    """Another worker's memory, until `close`: what `Reach` of the boundary is."""

    size: int

    def read(self, places: Sequence[int], size: int, into: Sequence[memoryview]) -> Iterator[memoryview]: ...

    def close(self) -> None: ...


class Arena:
    """This worker's own. `room` gives out its memory until it is lent for the first time."""

    kind = "shm"

    def __init__(self) -> None:
        """Raises InvalidInput where the system has no sealed memory."""
        if not (hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")):
            raise InvalidInput(Finding("peer", "shm: needs sealed memory, which Linux has", "a unix: or tcp: address"))
        self._file = os.memfd_create("diptych-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._rooms: list[tuple[int, int, int]] = []  # address, bytes, place
        self._sealed = False
        self.size = 0

    def room(self, size: int) -> memoryview:
        """Zeroed memory within it. Raises OSError when there is not so much."""
        assert not self._sealed, "an arena that was lent does not grow"
        place = -(-self.size // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self._file, place + max(size, 1))
        self.size = place + max(size, 1)
        made = memoryview(mmap.mmap(self._file, max(size, 1), offset=place))[:size]
        if size:
            self._rooms.append((address_of(made), size, place))
        return made

    def place(self, memory: memoryview) -> int | None:
        """Where in the arena this memory begins; None where it lies elsewhere."""
        if not len(memory):
            return None
        at = address_of(memory)
        for address, size, place in self._rooms:
            if address <= at and at + len(memory) <= address + size:
                return place + at - address
        return None

    def lend(self, sock: socket.socket) -> None:
        """Say what it is, over a connection that was made, and give it. Raises OSError."""
        if self._file < 0:
            raise ConnectionError("this worker has ended")
        if not self.size:
            lend_nothing(sock)
            return
        if not self._sealed:
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _FUTURE_WRITE
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, seals)
            self._sealed = True
        readable = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            send_word(sock, _FILE, self.size, [readable])
        finally:
            os.close(readable)

    def borrow(self, sock: socket.socket) -> Borrowed | None:
        """What the one who dialed lends. Raises OSError."""
        return borrow(sock)

    def close(self) -> None:
        """Lend it to nobody any more. What was given out stays until nobody has it."""
        file, self._file = self._file, -1
        os.close(file)


def lend_nothing(sock: socket.socket) -> None:
    """Say that KV will come within frames. Raises OSError."""
    send_word(sock, _NOTHING, 0)


def borrow(sock: socket.socket) -> Borrowed | None:
    """What the one who dialed lends; None when it lends nothing.

    Raises:
        OSError: it says no word of ours, or lends what must not be mapped.
    """
    what, size, files = receive_word(sock)
    try:
        if what not in (_NOTHING, _FILE) or len(files) != what:
            raise ConnectionError("it does not say what memory it lends")
        return Borrowed(files[0], size) if what else None
    finally:
        for file in files:
            os.close(file)


class Borrowed:
    """Another worker's arena, mapped for reading alone. `Reach` of the boundary's receiver."""

    def __init__(self, file: int, size: int) -> None:
        """Raises OSError: not of this size for good, or too large."""
        if not 0 < size <= LARGEST or os.fstat(file).st_size != size:
            raise ConnectionError(f"it lends {size:,} bytes, and the file has {os.fstat(file).st_size:,}")
        if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ConnectionError("what it lends may shrink")
        self.size = size
        self._map = mmap.mmap(file, size, mmap.MAP_SHARED, mmap.PROT_READ)
        self._bytes = np.frombuffer(self._map, np.uint8)

    def read(self, places: Sequence[int], size: int, into: Sequence[memoryview]) -> Iterator[memoryview]:
        """Copy blocks into memory, a slice at a time; the slice that was copied last is still in the cache."""
        sources = deque(joined(places, size))
        for piece in into:
            there, done = np.frombuffer(piece, np.uint8), 0
            while done < len(piece):
                begin, left = sources.popleft()
                step = min(len(piece) - done, left, SLICE)
                np.copyto(there[done : done + step], self._bytes[begin : begin + step])
                yield piece[done : done + step]
                if step < left:
                    sources.appendleft((begin + step, left - step))
                done += step

    def close(self) -> None:
        """Unmap it. Nothing reads it any more."""
        del self._bytes
        with contextlib.suppress(BufferError):  # a frame that failed half-way may be alive in its traceback
            self._map.close()


def joined(places: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """Runs of blocks that follow one another: (place, bytes)."""
    begin, end = places[0], places[0] + size
    for place in places[1:]:
        if place != end:
            yield begin, end - begin
            begin = end = place
        end += size
    yield begin, end - begin


def address_of(memory: memoryview) -> int:
    """Where memory that may be written lies in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def send_word(sock: socket.socket, what: int, size: int, files: Sequence[int] = ()) -> None:
    """The first word of who dials: what is lent, and how much. Raises OSError."""
    word = _WORD.pack(_MAGIC, _VERSION, what, size)
    sent = socket.send_fds(sock, [word], list(files)) if files else sock.send(word)
    if sent != len(word):
        raise ConnectionError("the first word could not be sent whole")


def receive_word(sock: socket.socket) -> tuple[int, int, list[int]]:
    """What is lent, how much, and the open files that came with the word, which are the caller's to close. Raises OSError."""
    files: list[int] = []
    word, beside, flags, _ = sock.recvmsg(_WORD.size, _CONTROL, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            count = len(data) // 4
            files += struct.unpack(f"{count}i", data[: 4 * count])
    try:
        while len(word) < _WORD.size and (more := sock.recv(_WORD.size - len(word))):
            word += more
        if len(word) < _WORD.size or flags & socket.MSG_CTRUNC:
            raise ConnectionError("it ended before it said what memory it lends")
        magic, version, what, size = _WORD.unpack(word)
        if (magic, version) != (_MAGIC, _VERSION):
            raise ConnectionError("it does not say what memory it lends")
    except OSError:
        for file in files:
            os.close(file)
        raise
    return what, size, files
