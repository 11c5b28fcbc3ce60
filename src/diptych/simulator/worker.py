"""One engine in virtual time: a `Batch` of rules, a `StepTable` of durations, and the next step boundary as an event.

With `skip` a run of decode steps in which nothing changes is one event: inside it step times are an arithmetic progression with
first term t₀ = a + c·S and difference d = c·B, so n steps take n·t₀ + d·n(n−1)/2. Whoever arrives within a run cuts it at the
first boundary not before. Without `skip` every step is an event; both give the same integers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappush
from math import isqrt
from typing import Any

from diptych.serving.batching import Batch
from diptych.serving.request import Stage
from diptych.simulator.clock import BOUNDARY, Clock
from diptych.simulator.tables import StepTable

DECODING = Stage.DECODING
Done = Callable[["VirtualWorker", int], None]


def steps_until(gap: int, first: int, difference: int) -> int:
    """The least n ≥ 1 with n·first + difference·n(n−1)/2 ≥ gap: steps whose boundary is the first not before `gap`.

    >>> [steps_until(gap, 10, 2) for gap in (0, 10, 11, 22, 23)]
    [1, 1, 2, 2, 3]
    """
    if gap <= first:
        return 1
    if not difference:
        return -(-gap // first)
    twice = 2 * first - difference
    count = (isqrt(twice * twice + 8 * difference * gap) - twice) // (2 * difference)
    while count * first + difference * (count * (count - 1) >> 1) < gap:
        count += 1
    return count


class VirtualWorker:
    """An engine whose steps take virtual time. `done(worker, now)` is told when a step prefilled or finished somebody."""

    __slots__ = (
        "accelerator_seconds",
        "asking",
        "batch",
        "busy",
        "clock",
        "difference",
        "done",
        "first",
        "index",
        "load",
        "log",
        "member",
        "rank",
        "role",
        "running",
        "skip",
        "start",
        "steps",
        "stretch",
        "table",
        "up",
        "version",
        "warm",
    )

    def __init__(self, index: int, role: Any, batch: Batch, table: StepTable, clock: Clock, done: Done, skip: bool) -> None:
        self.index, self.role, self.batch, self.table, self.clock = index, role, batch, table, clock
        self.done, self.skip, self.rank = done, skip, BOUNDARY + index
        self.version = 0
        self.running = False  # a step is in progress
        self.start = 0  # when the run in progress began
        self.stretch = 0  # its steps
        self.first = self.difference = 0  # its step times
        self.up = True
        self.load = 0  # requests routed here and not done: what a router sees
        self.busy = 0  # ps spent in steps
        self.steps = 0
        self.asking: deque[Any] = deque()  # handoffs that wait for blocks here

    def poke(self, now: int) -> None:
        """Something joined the queue or blocks came free: begin if idle, else end the run at the next boundary."""
        if not self.running:
            self.begin(now)
        elif self.stretch > 1:
            self.cut(now)

    def cut(self, now: int) -> None:
        """End the run in progress at its first boundary not before `now`."""
        count = steps_until(now - self.start, self.first, self.difference)
        if count < self.stretch:
            self.stretch = count
            end = self.start + count * self.first + self.difference * (count * (count - 1) >> 1)
            self.version = version = self.version + 1
            heappush(self.clock.heap, (end, self.rank, version, self.boundary, version))

    def passed(self, now: int) -> int:
        """Steps of the run in progress whose boundary lies before `now`."""
        return steps_until(now - self.start, self.first, self.difference) - 1 if self.stretch > 1 else 0

    def begin(self, now: int) -> None:
        """Plan the next step, or run of steps, and schedule its end."""
        batch = self.batch
        ready = tuple(batch.ready) if batch.ready else ()
        count = batch.plan()
        for request in ready:
            if request.decoding < 0 and request.stage == DECODING:
                request.decoding = now
        if not count:
            self.running, self.stretch = False, 0
            return
        if batch.chunks:
            took = self._prompts(batch, now)
        else:
            context, size = batch.context, batch.batch
            for beyond, a, c in self.table.decode(size):
                if context < beyond:
                    break
            self.first = took = a + c * context
            self.difference = step = c * size
            if not self.skip:
                count = 1
            elif count > 1:
                if context + count * size > beyond:
                    count = -(-(beyond - context) // size)
                took = count * took + step * (count * (count - 1) >> 1)
        self.stretch = count
        self.running = True
        self.start = now
        self.version = version = self.version + 1
        heappush(self.clock.heap, (now + took, self.rank, version, self.boundary, version))

    def _prompts(self, batch: Batch, now: int) -> int:
        """Duration of a step with prompts in it."""
        for request, _ in batch.chunks:
            if request.started < 0:
                request.started = now
        if batch.batch and batch.rules.mixes:
            return self.table.mixed_ps(batch.tokens, batch.pairs, batch.batch, batch.context)
        return self.table.prompt_ps(batch.tokens, batch.pairs)

    def boundary(self, now: int, version: int) -> None:
        """The run in progress ends, unless it was cut."""
        if version != self.version:
            return
        self.busy += now - self.start
        self.steps += self.stretch
        changed = self.batch.complete(self.stretch)
        self.running, self.stretch = False, 0
        if changed:
            self.done(self, now)
            if self.running or not self.up:
                return
        self.begin(now)
