"""Halves of cancelled handoffs that nobody told: a cancel reaches one side, the other waits for it until its time is up.

What serving stacks did before gateways cancelled both halves: a storm of aborts filled pools with blocks that nothing would
use, each held for a whole timeout.
"""

from __future__ import annotations

from collections.abc import Callable

from diptych.serving.batching import Holding
from diptych.simulator.clock import MESSAGE, Clock
from diptych.simulator.worker import VirtualWorker

SOURCE, TARGET = 0, 1


class Halves:
    """Blocks held for cancelled requests for `timeout` ps. `freed(worker, now)` is told when some come back."""

    def __init__(self, clock: Clock, timeout: int, freed: Callable[[VirtualWorker, int], None]) -> None:
        self.clock, self.timeout, self.freed = clock, timeout, freed
        self.until: dict[tuple[int, int], int] = {}  # (side, request) → when that side gives up
        self.held: dict[int, tuple[VirtualWorker, Holding, int]] = {}  # by number: where, what, and its load
        self.number = 0

    def forsake(self, side: int, request: int, now: int) -> None:
        """One side of a request will not be told."""
        self.until[side, request] = now + self.timeout

    def keep(self, side: int, request: int, worker: VirtualWorker, holding: Holding, load: int, now: int) -> bool:
        """Whether blocks stay held because their side was not told, and `load` tokens in a router's eyes, until it gives up."""
        until = self.until.pop((side, request), None)
        if until is None:
            return False
        if until <= now:  # room that was found too late
            worker.load -= load
            return False
        self.number += 1
        self.held[self.number] = worker, holding, load
        self.clock.at(until, MESSAGE, self._over, self.number)
        return True

    def lose(self, worker: VirtualWorker) -> None:
        """A worker died, and with it what was held there."""
        self.held = {number: half for number, half in self.held.items() if half[0] is not worker}

    def _over(self, now: int, number: int) -> None:
        half = self.held.pop(number, None)
        if half is not None:
            worker, holding, load = half
            worker.load -= load
            worker.give_back(holding, now)
            self.freed(worker, now)
