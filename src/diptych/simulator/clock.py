"""Virtual time: integer picoseconds, so that sums are exact and order never hangs on a rounding.

2⁶³ ps are 106 days; Python's integers go on beyond. A heap entry is (time, rank, version, handler): what happens first at one
instant is data. Ranks order the kinds: faults, then what comes from outside and over links, then workers' step boundaries, last
whoever only looks. A worker hears of another's step boundary at least 1 ps later, so no order among workers is ever visible.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

PS = 10**12  # per second
NEVER = 1 << 120

FAULT, ARRIVAL, MESSAGE, FLOW, BOUNDARY, LOOK = (kind << 40 for kind in range(6))
Handler = Callable[[int, Any], None]


def ps(seconds: float) -> int:
    """Picoseconds, rounded to the nearest."""
    return round(seconds * PS)


class Clock:
    """The events to come, and the time of the one being handled."""

    __slots__ = ("count", "heap", "now")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, int, Handler, Any]] = []
        self.now = 0
        self.count = 0

    def at(self, time: int, rank: int, handler: Handler, about: Any = None) -> None:
        """Call `handler(time, about)` at `time`; equal times and ranks in order of calling."""
        self.count += 1
        heappush(self.heap, (time, rank, self.count, handler, about))
