"""Virtual time: integer picoseconds, so that sums are exact and order never hangs on a rounding.

A heap entry is (time, rank, number, target): what happens first at one instant is data. Ranks order the kinds: faults, then what
comes from outside and over links, then workers' step boundaries (a pipeline's last stage before its first), last whoever only
looks. A worker hears of another's step boundary at least 1 ps later, so no order among workers is ever visible.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final, Protocol

PS: Final = 10**12  # per second
NEVER: Final = 1 << 120

FAULT: Final = 0
ARRIVAL: Final = 1 << 40
MESSAGE: Final = 2 << 40
FLOW: Final = 3 << 40
THROUGH: Final = 4 << 40
BOUNDARY: Final = 5 << 40
LOOK: Final = 6 << 40


def ps(seconds: float) -> int:
    """Picoseconds, rounded to the nearest."""
    return round(seconds * PS)


class Target(Protocol):
    """Something that events happen to. `number` is what it was scheduled with; a newer one makes it stale."""

    def fire(self, now: int, number: int) -> None: ...
    def awaits(self, number: int) -> bool: ...


class Call:
    """An event that calls a function."""

    __slots__ = ("about", "function")

    def __init__(self, function: Callable[[int, Any], None], about: Any) -> None:
        self.function, self.about = function, about

    def fire(self, now: int, number: int) -> None:
        """Call it."""
        self.function(now, self.about)

    def awaits(self, number: int) -> bool:
        """Whether it still means anything."""
        return True


class _End:
    """Keeps the heap from running empty."""

    __slots__ = ()

    def fire(self, now: int, number: int) -> None:
        raise AssertionError("time has no end")

    def awaits(self, number: int) -> bool:
        return False


class Clock:
    """The events to come."""

    __slots__ = ("count", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, int, Target]] = [(NEVER, 0, 0, _End())]
        self.count = 0

    def at(self, time: int, rank: int, function: Callable[[int, Any], None], about: Any = None) -> Call:
        """Call `function(time, about)` at `time`; equal times and ranks in order of calling."""
        self.count += 1
        call = Call(function, about)
        heappush(self.heap, (time, rank, self.count, call))
        return call

    def put(self, time: int, rank: int, target: Target) -> None:
        """Let `target` fire at `time`."""
        self.count += 1
        heappush(self.heap, (time, rank, self.count, target))

    @property
    def awaits(self) -> bool:
        """Whether anything is still to happen, stale events aside."""
        return any(target.awaits(number) for _, _, number, target in self.heap)

    def run_before(self, time: int) -> None:
        """Let everything before `time` happen."""
        heap = self.heap
        while heap[0][0] < time:
            now, _, number, target = heappop(heap)
            target.fire(now, number)
