"""The tiers of one worker, nearest first: `serving.residency` decides what is kept and where, the places keep it.

A block that device memory gives up is demoted, one that is found below is promoted: read into device memory, checked
by its digest, and dropped below. Whatever a place loses is a miss.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from diptych.runtime.messages import Tier as Told
from diptych.runtime.residency.place import Pieces, Place
from diptych.runtime.residency.remote import Remote
from diptych.serving.residency import Residency, Retention


@dataclass(frozen=True, slots=True)
class Level:
    """A place, and how many blocks the rules may keep in it."""

    place: Place
    capacity: int


class Tiers:
    """Safe to use from the threads of one worker: the lock is held for one block at a time."""

    def __init__(self, levels: Sequence[Level], retention: Retention = Retention.ALL) -> None:
        self._levels = tuple(levels)
        self._rules = Residency([level.capacity for level in levels], retention)
        self._shared = tuple(level.place for level in levels if isinstance(level.place, Remote))
        self._lock = threading.Lock()
        for tier, level in zip(self._rules.tiers, levels, strict=True):
            found = list(level.place.keys())
            for key in found[: max(len(found) - level.capacity, 0)]:  # more than fits: the oldest go
                level.place.drop(key)
            tier.blocks.update(dict.fromkeys(key for key in level.place.keys()))  # noqa: SIM118  a place is no dict

    def demote(self, key: bytes, pieces: Pieces) -> None:
        """A block leaves device memory; `pieces` are read before this returns."""
        with self._lock:
            oldest = [next(iter(tier.blocks), None) for tier in self._rules.tiers]
            self._rules.demote([key])
            for index in reversed(range(len(oldest))):  # the lowest first: it makes room for the next
                old = oldest[index]
                if old is not None and old not in self._rules.tiers[index].blocks:
                    self._move(old, index)
            for tier, level in zip(self._rules.tiers, self._levels, strict=True):
                if key in tier.blocks and not level.place.put(key, pieces):
                    tier.blocks.pop(key, None)

    def leading(self, keys: Sequence[bytes]) -> int:
        """How many of `keys`, from the first on, are somewhere below."""
        with self._lock:
            count = len(self._rules.locate(keys))
            while count < len(keys) and any(place.has(keys[count]) for place in self._shared):
                count += 1
            return count

    def promote(self, key: bytes, into: Sequence[memoryview]) -> bool:
        """Read a block into device memory; False when it is nowhere or not right."""
        with self._lock:
            places = self._rules.locate([key])
            if not places:
                return any(place.get(key, into) for place in self._shared)
            place = self._levels[places[0]].place
            right = place.get(key, into)
            if right:
                self._rules.promote([key])
            self._rules.tiers[places[0]].blocks.pop(key, None)
            if not place.is_shared:
                place.drop(key)
            return right

    def told(self) -> tuple[Told, ...]:
        """Each tier's use and counts, for a worker's load."""
        with self._lock:
            return tuple(
                Told(
                    level.place.name,
                    len(tier.blocks) * level.place.block_bytes,
                    level.capacity * level.place.block_bytes,
                    level.place.counts.asked,
                    level.place.counts.found,
                    level.place.counts.damaged,
                )
                for tier, level in zip(self._rules.tiers, self._levels, strict=True)
            )

    def close(self) -> None:
        for level in self._levels:
            level.place.close()

    def _move(self, key: bytes, index: int) -> None:
        """A block that the rules no longer keep in this tier goes to where they keep it now, if anywhere."""
        place = self._levels[index].place
        for tier, level in zip(self._rules.tiers[index + 1 :], self._levels[index + 1 :], strict=True):
            if key in tier.blocks:
                block = memoryview(bytearray(place.block_bytes))
                if not (place.get(key, [block]) and level.place.put(key, [block])):
                    tier.blocks.pop(key, None)
        if not place.is_shared:
            place.drop(key)
