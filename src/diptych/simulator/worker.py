"""One engine in virtual time: the rules of a `Batch`, the durations of a `StepTable`, the next step boundary as an event.

With `skip` a run of decode steps in which nothing changes is one event: inside it step times are an arithmetic progression with
first term t₀ = a + c·S and difference d = c·B, so n steps take n·t₀ + d·n(n−1)/2. Whoever comes within a run joins at its first
boundary not before. When nothing but a joining can happen there, the worker is moved on to that boundary at once: until then
its state is that of a moment to come (`start` > now). Without `skip` every step is an event; both give the same integers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappush
from math import sqrt
from typing import Any, Final

from diptych.serving.batching import Batch, BatchRules, Holding
from diptych.serving.blocks import BlockPool
from diptych.serving.request import Stage
from diptych.simulator.clock import BOUNDARY, Clock
from diptych.simulator.crowd import WHOLE
from diptych.simulator.gaps import GapHistogram, Run
from diptych.simulator.request import Request
from diptych.simulator.tables import StepTable

DECODING: Final = Stage.DECODING
_MANY: Final = 8192  # runs counted at once
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
    half = first / difference - 0.5
    count = int(sqrt(half * half + 2.0 * gap / difference) - half)  # at most a rounding away
    while count * first + difference * (count * (count - 1) >> 1) >= gap:
        count -= 1
    while count * first + difference * (count * (count - 1) >> 1) < gap:
        count += 1
    return count


class VirtualWorker(Batch[Request]):
    """An engine whose steps take virtual time. `done(worker, now)` is told when a step was the last one for somebody."""

    __slots__ = (
        "active",
        "asking",
        "between",
        "busy",
        "convert",
        "counted",
        "crowd",
        "debt",
        "difference",
        "done",
        "early",
        "first",
        "gaps",
        "heap",
        "index",
        "leaving",
        "load",
        "member",
        "number",
        "paused",
        "rank",
        "runs",
        "skip",
        "slow",
        "stalls",
        "start",
        "steps",
        "stream",
        "stretch",
        "table",
        "undo",
        "up",
        "withdrawn",
    )

    def __init__(
        self,
        index: int,
        member: Any,
        rules: BatchRules,
        pool: BlockPool,
        table: StepTable,
        clock: Clock,
        done: Done,
        skip: bool,
    ) -> None:
        super().__init__(rules, pool)
        self.index, self.member, self.table, self.heap = index, member, table, clock.heap
        self.done, self.skip, self.rank = done, skip, BOUNDARY + index
        self.up = True
        self.number = 0  # of the boundary scheduled last
        self.active = False  # a boundary is scheduled
        self.stretch = 0  # steps of the run in progress
        self.start = 0  # when it began
        self.early = False  # moved on: the run begins only then, at a boundary to come
        self.first = self.difference = 0  # its step times
        self.busy = self.steps = 0  # ps spent in steps, and how many
        self.load = 0  # prompt tokens routed here and not done: what a router sees
        self.asking: deque[Any] = deque()  # handoffs that wait for blocks here
        self.between = False  # something is to be done before the next step:
        self.debt = 0  # ps of conversions
        self.leaving: list[Request] = []  # requests given up by their clients
        self.gaps: GapHistogram | None = None  # where the gaps between tokens are counted, if they are
        self.runs: list[Run] = []  # not yet counted
        self.stalls: list[tuple[int, int]] = []  # (sequences, ps) of steps that gave the batch no token
        self.paused: dict[int, int] = {}  # preempted sequences by id → when they got their last token
        self.undo: tuple[int, list[tuple[int, int]], Run] | None = None
        self.withdrawn: Callable[[Request, int], None] | None = None  # told of each when it may go
        self.convert: Callable[[Request], int] | None = None  # ps of converting a prompt before it leaves
        self.stream: Callable[[Request, int, int, int], None] | None = None  # told of chunks whose KV may leave early
        self.crowd: Any = None  # whom it shares a machine with, if that slows it down
        self.slow = 0  # how much, in parts of `crowd.WHOLE`
        self.counted = False  # among those of the crowd who compute

    @property
    def pace(self) -> float:
        """Share of a prompt's time after which the next one may begin."""
        return 1.0

    # --- events -----------------------------------------------------------------------------------------------------

    def take(self, request: Request, now: int) -> None:
        """A request to compute joins the queue."""
        self.add(request)
        self.poke(now)

    def receive(self, request: Request, holding: Holding, now: int) -> None:
        """A request whose KV is here joins the batch at the next boundary."""
        self.join(request, holding, self.ahead(now) if request.blocks else 0)
        if not self.active:
            self.begin(now)
        elif not self.chunks:
            self.move_on(now)

    def owe(self, duration: int) -> None:
        """The engine must convert KV for `duration` ps before its next step."""
        self.debt += duration
        self.between = self.between or duration > 0

    def withdraw(self, request: Request, now: int) -> None:
        """A request is to go as soon as no step holds it: now, or at the next boundary."""
        self.leaving.append(request)
        self.between = True
        self.poke(now)

    def poke(self, now: int) -> None:
        """Something joined the queue or blocks came free: begin if idle, else plan anew at the next boundary."""
        if not self.active:
            self.begin(now)
        elif not self.chunks:
            self.cut(now)

    def ask(self, request: Request, now: int) -> bool:
        """Reserve room for a handoff as of the next boundary; whether there was any."""
        stretch = self.stretch if self.active else 0
        room = self.reserve(request, stretch) if self.pool.cache is None else None
        if room is None and (stretch or self.pool.cache is not None):
            room = self.reserve(request, self.ahead(now))
            if room is not None and self.active and not self.chunks:
                self.cut(now)
        request.room = room
        return room is not None

    def ahead(self, now: int) -> int:
        """Steps of the run in progress up to its first boundary not before `now`; 0 at that boundary already, or idle."""
        if not self.active or not self.stretch or (self.early and now <= self.start):
            return 0
        return min(steps_until(now - self.start, self.first, self.difference), self.stretch)

    def give_back(self, holding: Holding, now: int) -> None:
        """Blocks pinned or reserved for a handoff are free again."""
        self.free(holding, self.ahead(now) if self.pool.cache is not None else 0)

    def settle_at(self, now: int) -> None:
        """Let the prefix cache be as it is now."""
        self.settle(self.ahead(now))

    def cached(self, now: int) -> int:
        """Blocks with a known prefix that will be here at the first boundary after `now`."""
        pool = self.pool
        if pool.cache is None:
            return 0
        room = max(pool.capacity - self.occupied(now), 0) // pool.per_hash
        return (len(pool.cache.live) + min(len(pool.cache.idle), room)) * pool.per_hash

    def occupied(self, now: int) -> int:
        """Blocks that live sequences will hold at the first boundary after `now`."""
        return self.pool.held + self.growing(self.ahead(now + 1))

    def busy_until(self, now: int) -> int:
        """ps spent in steps up to `now`."""
        return self.busy + (now - self.start if self.active else 0)

    # --- runs -------------------------------------------------------------------------------------------------------

    def begin(self, now: int, early: bool = False) -> None:
        """Plan the next step, or run of steps, from `now` on, and schedule its end."""
        if self.between:
            self.apply(now)
            if self.debt:
                self._convert(now)
                return
        self.start = now
        count = self._join(now) if self.ready else self.plan()
        if not count:
            return
        if self.chunks:
            took = self._prompt_ps(now)
        else:
            context, size = self.context, self.batch
            beyond, a, c = self.table.segment(size, context)
            if self.crowd is not None and self.crowd.others(self):
                a, c = a * self.slow // WHOLE, c * self.slow // WHOLE
            self.first = took = a + c * context
            self.difference = step = c * size
            if not self.skip:
                count = 1
            elif count > 1:
                if context + count * size > beyond:
                    count = -(-(beyond - context) // size)
                took = count * took + step * (count * (count - 1) >> 1)
        self.stretch = count
        self.early = early
        self.active = True
        self.number = number = self.number + 1
        heappush(self.heap, (now + took, self.rank, number, self))
        if self.crowd is not None:
            self.crowd.tell(self, now)

    def fire(self, now: int, number: int) -> None:
        """The run in progress ends, unless it was cut."""
        if number != self.number:
            return
        self.busy += now - self.start
        stretch = self.stretch
        self.steps += stretch
        self.active = False
        if self.gaps is not None:
            self.note(stretch, now - self.start)
        if self.complete(stretch):
            if self.paused:
                self.resume(now)
            self.done(self, now)
            if self.active or not self.up:
                return
        if self.batch or self.waiting or self.ready or self.partial or self.between:
            self.begin(now)
        if self.crowd is not None:
            self.crowd.tell(self, now)

    def awaits(self, number: int) -> bool:
        """Whether a boundary scheduled with `number` is still to come."""
        return self.active and number == self.number

    def move_on(self, now: int) -> None:
        """Be at the first boundary not before `now` already, and plan from there, if nothing but a joining can happen then."""
        start, count = self.start, 0
        if not self.early or now > start:
            count = steps_until(now - start, self.first, self.difference) if self.stretch else 0
            if count >= self.stretch:
                return  # the run ends there anyway
        if self.waiting or self.partial or self.between or not self.has_room(0, count):
            self.cut(now)
            return
        if count:
            end = start + count * self.first + self.difference * (count * (count - 1) >> 1)
            self.busy += end - start
            self.steps += count
            if self.gaps is not None:
                self.undo = len(self.runs), list(self.stalls), (self.first, self.difference, count, self.batch)
                self.note(count, end - start)
            self.complete(count)
            start = end
        self.begin(start, early=True)

    def cut(self, now: int) -> None:
        """End the run in progress at its first boundary not before `now`."""
        count = self.ahead(now)
        if count >= self.stretch:
            return
        start = self.start
        self.stretch = count
        self.number = number = self.number + 1
        end = start + count * self.first + self.difference * (count * (count - 1) >> 1)
        heappush(self.heap, (end, self.rank, number, self))

    def die(self, now: int) -> None:
        """The worker stops and its memory is gone. Its sequences know how far they got: to the last boundary before `now`."""
        if self.active:
            self.busy += now - self.start
            if self.early and now <= self.start:
                passed = -1  # it was moved on past this moment
            else:
                passed = steps_until(now - self.start, self.first, self.difference) - 1 if self.stretch else 0
            self.steps += passed
            self.step += passed
            if self.gaps is not None and passed:
                self.note_death(passed)
        self.stalls.clear()
        self.paused.clear()
        for finish, _, sequence in self.running:
            sequence.generated = max(sequence.osl - finish + self.step, sequence.todo - sequence.prompt + 1)
            if sequence.decoding > now:  # it had been moved on into a batch that never ran
                sequence.decoding = -1
        self.up = self.active = False
        self.number += 1
        self.load = self.debt = 0
        self.between = False
        self.leaving.clear()
        self.asking.clear()
        self.forget()
        if self.crowd is not None:
            self.crowd.tell(self, now)

    # --- gaps between tokens ----------------------------------------------------------------------------------------

    def note(self, steps: int, took: int) -> None:
        """`steps` steps of `took` ps in all are done. The first one with a token closes the gaps that stalls opened."""
        size, first, longer, runs = self.batch, self.first, self.difference, self.runs
        if not size:
            return
        if not steps or (self.chunks and not self.rules.mixes):
            if took:
                self.stalls.append((size, took))
            return
        if self.stalls:
            counted, stalled = 0, sum(duration for _, duration in self.stalls)
            for old, duration in (*self.stalls, (size, 0)):
                if old > counted:
                    runs.append((first + stalled, 0, 1, min(old, size) - counted))
                    counted = old
                stalled -= duration
            self.stalls.clear()
            first, steps = first + longer, steps - 1
        if steps:
            runs.append((first, longer, steps, size))
        if len(runs) > _MANY:
            self.count_gaps()

    def note_death(self, passed: int) -> None:
        """What a run gave before its worker died; −1 takes the last step of a run back that had been moved on."""
        if passed > 0:
            self.note(passed, 0)
        elif self.undo is not None:
            place, self.stalls, (first, longer, steps, size) = self.undo
            del self.runs[place:]
            self.first, self.difference, kept = first, longer, self.batch
            self.batch = size
            self.note(steps - 1, 0)
            self.batch = kept

    def count_gaps(self) -> None:
        """Into the histogram."""
        if self.gaps is not None:
            self.gaps.add(self.runs)
            self.runs.clear()

    def resume(self, now: int) -> None:
        """Preempted sequences that were computed again have their next token."""
        for request in (*self.prefilled, *self.finished):
            since = self.paused.pop(request.id, None)
            if since is not None:
                self.runs.append((now - since, 0, 1, 1))

    def _preempt(self, sequence: Request) -> None:
        super()._preempt(sequence)
        if self.gaps is not None and sequence.generated:
            self.paused.setdefault(sequence.id, self.start)

    def apply(self, now: int) -> None:
        """Let go, between two steps, of those who leave. What that sets off finds the engine at this boundary."""
        leaving, self.leaving = self.leaving, []
        self.between = self.debt > 0
        if not leaving:
            return
        assert self.withdrawn is not None
        self.stretch, self.start, self.early, self.active = 0, now, False, True
        for request in leaving:
            self.withdrawn(request, now)
        self.active = False

    def _convert(self, now: int) -> None:
        """A step without tokens: KV that arrived is brought into this engine's format."""
        self.stretch, self.start, self.early, self.active = 0, now, False, True
        self.first = self.difference = 0
        self.number = number = self.number + 1
        heappush(self.heap, (now + self.debt, self.rank, number, self))
        self.debt = 0
        self.between = bool(self.leaving)

    def _join(self, now: int) -> int:
        """Plan a step that sequences handed over may join."""
        ready = tuple(self.ready)
        count = self.plan()
        for request in ready:
            if request.decoding < 0 and request.stage is DECODING:
                request.decoding = now
        return count

    def _prompt_ps(self, now: int) -> int:
        """Duration of a step with prompts in it, and of making ready for the handoff those that it completes."""
        self.difference = 0
        if self.batch and self.rules.mixes:
            took = self.table.mixed_ps(self.tokens, self.pairs, self.batch, self.context)
        else:
            took = self.table.prompt_ps(self.tokens, self.pairs)
        if self.crowd is not None and self.crowd.others(self):
            took = took * self.slow // WHOLE
        for request, tokens in self.chunks:
            if request.started < 0:
                request.started = now
            if self.convert is not None and request.hands_off and request.computed + tokens >= request.todo:
                took += self.convert(request)
        if self.stream is not None:
            self.tell(now, took)
        self.first = took
        return took

    def tell(self, now: int, took: int) -> None:
        """Tell of the chunks of a step of `took` ps whose KV may leave before their prompts are done."""
        assert self.stream is not None
        for request, tokens in self.chunks:
            if request.hands_off:
                self.stream(request, tokens, now, took)
