"""KV blocks of one worker: how many there are, who holds them, which prompts share them, which may be evicted.

Blocks of the decode batch grow with every step, so the batch counts them itself by arithmetic (`batching`). Everything else is
held here: prompts being prefilled, sources pinned and targets reserved by a handoff, whole-request reservations. A block of a
known prefix is counted once however many sequences share it; when none does it stays, least recently used first to go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any


def blocks_for(tokens: int, size: int) -> int:
    """Blocks of `size` tokens that hold `tokens`.

    >>> blocks_for(33, 16)
    3
    """
    return -(-tokens // size)


class BlockPool:
    """Blocks of `size` tokens. `held` of the `capacity` are taken, shared ones included; cached ones yield to any need.

    With `hash_tokens` prompts carry a hash per that many tokens (a multiple of `size`), and prefixes are cached by them.
    """

    __slots__ = ("cache", "capacity", "evicted", "hash_tokens", "held", "per_hash", "reports", "size")

    def __init__(self, capacity: int, size: int = 16, *, hash_tokens: int = 0) -> None:
        assert hash_tokens % size == 0, f"hashes of {hash_tokens} tokens over blocks of {size}"
        self.capacity, self.size, self.held = capacity, size, 0
        self.hash_tokens = hash_tokens
        self.per_hash = hash_tokens // size  # blocks
        self.cache = PrefixCache() if hash_tokens else None
        self.reports = False  # whether somebody takes what is evicted to another tier
        self.evicted: list[Any] = []  # hashes that left the cache since he looked


class PrefixCache:
    """Full blocks of known prefixes by hash, with reference counts; unreferenced ones wait in LRU order.

    A hash stands for the whole prefix up to its block, so a match is the longest run from the start.
    """

    __slots__ = ("idle", "live")

    def __init__(self) -> None:
        self.live: dict[Any, int] = {}
        self.idle: OrderedDict[Any, None] = OrderedDict()

    def match(self, hashes: Sequence[Any]) -> int:
        """Leading blocks that are here."""
        live, idle = self.live, self.idle
        for count, key in enumerate(hashes):
            if key not in live and key not in idle:
                return count
        return len(hashes)

    def take(self, hashes: Iterable[Any]) -> int:
        """Refer to blocks that are here; how many of them were idle and now count as held."""
        live, idle, woken = self.live, self.idle, 0
        for key in hashes:
            count = live.get(key)
            if count is None:
                del idle[key]
                live[key] = 1
                woken += 1
            else:
                live[key] = count + 1
        return woken

    def add(self, hashes: Iterable[Any]) -> tuple[list[Any], int]:
        """Register computed blocks: (those now referenced by their maker, how many of these were idle here and are dropped).

        A block that another sequence computed meanwhile stays the maker's private copy.
        """
        mine, replaced = [], 0
        for key in hashes:
            if key in self.live:
                continue
            if key in self.idle:
                del self.idle[key]
                replaced += 1
            self.live[key] = 1
            mine.append(key)
        return mine, replaced

    def drop(self, hashes: Sequence[Any]) -> int:
        """Give references up, the prefix's end first; how many blocks became idle."""
        freed = 0
        for key in reversed(hashes):
            count = self.live[key] - 1
            if count:
                self.live[key] = count
            else:
                del self.live[key]
                self.idle[key] = None
                freed += 1
        return freed

    def keep(self, hashes: Iterable[Any]) -> None:
        """Hold blocks fetched from elsewhere, most recent last, until somebody refers to them or they are evicted."""
        for key in hashes:
            if key not in self.live:
                self.idle[key] = None
                self.idle.move_to_end(key)

    def evict(self, room: int) -> list[Any]:
        """Keep at most `room` idle hashes; those that had to go, oldest first."""
        gone = []
        while len(self.idle) > max(room, 0):
            gone.append(self.idle.popitem(last=False)[0])
        return gone
