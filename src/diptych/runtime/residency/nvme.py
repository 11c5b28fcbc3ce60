"""A disk: one file for each block, written beside and renamed, with its key, size and digest in front.

Files of one KV state share a folder named by its digest: blocks of another model, precision or layout are never found. At start
every file is looked at: what is unfinished, of another size, or not named by its own key is removed. A disk that is full,
read-only or failing is a tier that keeps nothing for a while; it never fails a request.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from diptych.runtime.residency.place import DIGEST_BYTES, KEY_BYTES, Counts, Pieces, digest, size_of

MAGIC = b"DPKB"
VERSION = 1
_HEAD = struct.Struct(f"<4sHHQ{KEY_BYTES}s{DIGEST_BYTES}s")
REST = 5.0
"""Seconds for which a disk that failed to write is left alone."""


class Nvme:
    """Blocks in files below `folder`. `clock` is monotonic seconds, for tests."""

    is_shared = False

    def __init__(
        self,
        folder: Path,
        block_bytes: int,
        state: bytes,
        name: str = "nvme",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.block_bytes, self.counts = name, block_bytes, Counts()
        self._folder = folder / state.hex()
        self._clock, self._resting_until = clock, float("-inf")
        self._keys: dict[bytes, None] = {}
        self._open()

    def _open(self) -> None:
        """The scrub: what a file must be is known from its name and size; its bytes are checked when they are read."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            files = sorted(self._folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        except OSError:
            self._failed()
            return
        for file in files:
            key = self._key_of(file)
            if key is None:
                self.counts.damaged += 1
                with suppress(OSError):
                    file.unlink()
            else:
                self._keys[key] = None

    def _key_of(self, file: Path) -> bytes | None:
        """The key of a whole file that is where it belongs; None for anything else."""
        try:
            key = bytes.fromhex(file.name)
            with file.open("rb", buffering=0) as stream:
                head = stream.read(_HEAD.size)
                whole = os.fstat(stream.fileno()).st_size == _HEAD.size + self.block_bytes
        except (OSError, ValueError):
            return None
        if len(head) < _HEAD.size or not whole or not file.is_file() or file.is_symlink():
            return None
        magic, version, _, size, named, _ = _HEAD.unpack(head)
        right = (magic, version, size, named) == (MAGIC, VERSION, self.block_bytes, key)
        return key if right and len(key) == KEY_BYTES else None

    def put(self, key: bytes, pieces: Pieces) -> bool:
        """Write a block; False when the disk will not have it."""
        if key in self._keys:
            return True
        if self._clock() < self._resting_until:
            return False
        assert size_of(pieces) == self.block_bytes, f"{size_of(pieces)} bytes for a block of {self.block_bytes}"
        path, beside = self._folder / key.hex(), self._folder / f"{key.hex()}.new"
        head = _HEAD.pack(MAGIC, VERSION, 0, self.block_bytes, key, digest(key, pieces))
        try:
            _write(beside, (head, *pieces))
            beside.replace(path)
        except OSError:
            self._failed()
            with suppress(OSError):
                beside.unlink()
            return False
        self._keys[key] = None
        return True

    def get(self, key: bytes, into: Sequence[memoryview]) -> bool:
        """Read a block; what cannot be read whole and right is removed."""
        self.counts.asked += 1
        if key not in self._keys:
            return False
        try:
            right = self._read(key, into)
        except OSError:
            self.counts.failed += 1
            right = False
        if right:
            self.counts.found += 1
            return True
        self.counts.damaged += 1
        self.drop(key)
        return False

    def _read(self, key: bytes, into: Sequence[memoryview]) -> bool:
        head = bytearray(_HEAD.size)
        with (self._folder / key.hex()).open("rb", buffering=0) as stream:
            if os.readv(stream.fileno(), [head, *into]) != _HEAD.size + self.block_bytes:
                return False
        magic, version, _, size, named, wanted = _HEAD.unpack(head)
        if (magic, version, size, named) != (MAGIC, VERSION, self.block_bytes, key):
            return False
        return bool(digest(key, into) == wanted)

    def drop(self, key: bytes) -> None:
        self._keys.pop(key, None)
        with suppress(OSError):
            (self._folder / key.hex()).unlink()

    def keys(self) -> Iterable[bytes]:
        return list(self._keys)

    def close(self) -> None:
        """What is on the disk stays there."""

    def _failed(self) -> None:
        self.counts.failed += 1
        self._resting_until = self._clock() + REST


def _write(path: Path, pieces: Pieces) -> None:
    """All of it, or OSError. Without a flush to the platter: a block that a power cut tears is damaged, hence a miss."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        written, wanted = os.writev(handle, list(pieces)), size_of(pieces)
        if written != wanted:
            raise OSError(f"{written} of {wanted} bytes written")
    finally:
        os.close(handle)
