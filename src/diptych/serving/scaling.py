"""When a pool grows, shrinks, or gives a worker to the other role: thresholds with a dead band and a cooldown.

A rule without a band between its thresholds, or without a cooldown longer than a worker takes to start, swings: what it ordered
is not there yet when it looks again, so it orders more, and gives it back when it comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Signal(StrEnum):
    """What a rule looks at."""

    QUEUE = "queue"  # requests that wait, per worker
    BUSY = "busy"  # share of the time since it looked last spent in steps
    KV = "kv"  # share of the blocks that live sequences hold


@dataclass(frozen=True, slots=True)
class Look:
    """A pool as a rule sees it: the signal's value, workers that are up, and workers ordered but not there yet."""

    value: float
    workers: int
    coming: int


@dataclass(frozen=True, slots=True)
class Scaling:
    """Keep a pool between `least` and `most` workers: one more above `high`, one less below `low`, looked at every `every`
    seconds, and not again for `cooldown` seconds after a change."""

    signal: Signal
    low: float
    high: float
    least: int = 1
    most: int = 1
    every: float = 10.0
    cooldown: float = 60.0

    def change(self, look: Look, since: float) -> int:
        """+1, −1 or 0 workers, `since` seconds after the last change.

        >>> Scaling(Signal.BUSY, 0.3, 0.8, 1, 4).change(Look(0.9, 2, 0), since=61)
        1
        """
        if since < self.cooldown:
            return 0
        if look.workers + look.coming < self.least:
            return 1  # somebody was lost
        if look.value > self.high and look.workers + look.coming < self.most:
            return 1
        if look.value < self.low and look.workers > self.least and not look.coming:
            return -1
        return 0

    def lends(self, mine: Look, other: Look, since: float) -> bool:
        """Whether a pool gives a worker to another one that is short while it is idle itself."""
        rested = since >= self.cooldown and not (mine.coming or other.coming)
        return rested and mine.value < self.low and other.value > self.high and mine.workers > self.least
