"""Which prefixes a worker was sent lately: names of blocks, oldest forgotten first. A guess at its cache, never a promise."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b


def names_of(tokens: Sequence[int], size: int, salt: bytes) -> tuple[bytes, ...]:
    """One name per full block of `size` tokens, each over all tokens before it; tenants with other salts share none."""
    whole = array("I", tokens).tobytes()
    width = size * array("I").itemsize
    before, found = salt, []
    for end in range(width, len(whole) + 1, width):
        before = blake2b(whole[end - width : end], key=before[:64], digest_size=16).digest()
        found.append(before)
    return tuple(found)


class PrefixIndex:
    """At most `capacity` names of one worker."""

    __slots__ = ("_names", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._names: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def sent(self, names: Sequence[bytes]) -> None:
        """The worker was sent a prompt of these blocks."""
        for name in reversed(names):  # the beginning of a prompt is the last to be forgotten
            self._names[name] = None
            self._names.move_to_end(name)
        while len(self._names) > self.capacity:
            self._names.popitem(last=False)

    def match(self, names: Sequence[bytes]) -> int:
        """How many leading blocks it may have."""
        for count, name in enumerate(names):
            if name not in self._names:
                return count
        return len(names)
