"""Where KV that may be used again resides: tiers below device memory. What is kept (retention) and where (residency) are apart.

A block that device memory gives up goes to the first tier with room, whose oldest block moves down to make it, and leaves
altogether at the last one. A block found below is promoted: fetched and, while the retention rule wants it, kept below too.
Moves are returned in blocks; a driver turns them into seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Retention(StrEnum):
    """What is worth keeping after its request."""

    NONE = "none"
    REUSED = "reused"  # blocks that were found at least once
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Move:
    """`blocks` cross from the tier above index `tier` into it (demotion), or out of it to the device (promotion)."""

    tier: int
    blocks: int


class Tier:
    """One tier: block hashes, least recently used first."""

    __slots__ = ("blocks", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[Any, None] = OrderedDict()


class Residency:
    """The tiers of one worker, nearest first."""

    __slots__ = ("found", "retention", "tiers")

    def __init__(self, capacities: Sequence[int], retention: Retention = Retention.ALL) -> None:
        self.tiers = [Tier(capacity) for capacity in capacities]
        self.retention = retention
        self.found: set[Any] = set()

    def keeps(self, key: Any) -> bool:
        """The retention rule: whether a block leaving the device is worth a place."""
        return self.retention is Retention.ALL or (self.retention is Retention.REUSED and key in self.found)

    def demote(self, keys: Iterable[Any]) -> list[Move]:
        """Blocks leave the device: place those worth keeping; what had to move down for them."""
        moved = [0] * len(self.tiers)
        for key in keys:
            if self.tiers and self.keeps(key) and not self._touch(key):
                self._place(0, key, moved)
        return [Move(tier, blocks) for tier, blocks in enumerate(moved) if blocks]

    def _touch(self, key: Any) -> bool:
        """Whether some tier still has a block that was computed anew above it: nothing moves, it is recent again."""
        for tier in self.tiers:
            if key in tier.blocks:
                tier.blocks.move_to_end(key)
                return True
        return False

    def _place(self, index: int, key: Any, moved: list[int]) -> None:
        if index == len(self.tiers):
            self.found.discard(key)
            return
        tier = self.tiers[index]
        if tier.capacity <= 0:
            self._place(index + 1, key, moved)
            return
        moved[index] += 1
        tier.blocks[key] = None
        if len(tier.blocks) > tier.capacity:
            self._place(index + 1, tier.blocks.popitem(last=False)[0], moved)

    def locate(self, keys: Sequence[Any]) -> list[int]:
        """The tier of each leading block, up to the first that is nowhere."""
        places = []
        for key in keys:
            place = next((index for index, tier in enumerate(self.tiers) if key in tier.blocks), None)
            if place is None:
                break
            places.append(place)
        return places

    def promote(self, keys: Sequence[Any]) -> list[Move]:
        """Fetch blocks to the device. They leave their tier: a block is live in one place at a time."""
        moved = [0] * len(self.tiers)
        for key, place in zip(keys, self.locate(keys), strict=True):
            del self.tiers[place].blocks[key]
            self.found.add(key)
            moved[place] += 1
        return [Move(tier, blocks) for tier, blocks in enumerate(moved) if blocks]

    def clear(self) -> None:
        """Everything below is lost."""
        for tier in self.tiers:
            tier.blocks.clear()
        self.found.clear()
