"""Host memory: one arena, taken at the start, in slots of one block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diptych.runtime.residency.place import Counts, Pieces, digest, scatter, size_of


class Dram:
    """Blocks in an arena of `capacity` blocks."""

    is_shared = False

    def __init__(self, block_bytes: int, capacity: int, name: str = "dram") -> None:
        self.name, self.block_bytes, self.counts = name, block_bytes, Counts()
        self._arena = memoryview(bytearray(block_bytes * capacity))
        self._free = list(range(capacity - 1, -1, -1))
        self._slots: dict[bytes, tuple[int, bytes]] = {}

    def put(self, key: bytes, pieces: Pieces) -> bool:
        """Copy a block in; False when every slot is taken, which the rules see to."""
        if key in self._slots:
            return True
        assert size_of(pieces) == self.block_bytes, f"{size_of(pieces)} bytes for a block of {self.block_bytes}"
        if not self._free:
            self.counts.failed += 1
            return False
        slot = self._free.pop()
        begin = slot * self.block_bytes
        for piece in pieces:
            self._arena[begin : begin + len(piece)] = piece
            begin += len(piece)
        self._slots[key] = (slot, digest(key, pieces))
        return True

    def get(self, key: bytes, into: Sequence[memoryview]) -> bool:
        """Copy a block out, if its digest still matches."""
        self.counts.asked += 1
        found = self._slots.get(key)
        if found is None:
            return False
        slot, wanted = found
        scatter(self._arena[slot * self.block_bytes : (slot + 1) * self.block_bytes], into)
        if digest(key, into) != wanted:
            self.counts.damaged += 1
            self.drop(key)
            return False
        self.counts.found += 1
        return True

    def drop(self, key: bytes) -> None:
        found = self._slots.pop(key, None)
        if found is not None:
            self._free.append(found[0])

    def keys(self) -> Iterable[bytes]:
        return list(self._slots)

    def close(self) -> None:
        self._slots.clear()
