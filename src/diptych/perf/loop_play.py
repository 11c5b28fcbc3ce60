"""The play of closed loops: R loops side by side, one event of each per turn.

Time skips from change to change. Between changes all decoding requests of a loop advance together, one token a step, so a
request's end is a tick of one shared clock and the next end is a minimum. `Beside` shares one engine between prefill and
decode, `Apart` gives prefill its own workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from diptych.perf.estimate import Array

Ints = NDArray[np.int64]
GOLDEN = (5.0**0.5 - 1.0) / 2.0
EPS = 1e-12


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a load test drives its loop.

    `rounds` requests per client; answer lengths uniform in [spread·longest, longest]. All clients start at once, or evenly
    over the share `ramp` of the first answer's time.
    `frontend` (s) passes between a client's sending and the engine's having the request; the engine looks for new requests
    every `poll` steps (always when idle), and not before `cold` (s): what compiles or connects on first use. An engine that
    batches prompts lets the first of them wait `hold` steps for others while it decodes.
    """

    rounds: int = 10
    spread: float = 1.0
    frontend: float = 0.0
    poll: float = 1.0
    hold: float = 0.0
    cold: float = 0.0
    ramp: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefillStage:
    """Prefill beside decode (`workers` 0) or on `workers` of its own.

    A step takes up to `most` prompts. `one` and `full` (clients+1,) are the seconds that a step of one and of `most` prompts
    adds when n clients are decoding; between them time is linear in prompts. `steps` is how many engine steps one prompt
    spans, and `advances` whether decodes get a token in each. `transfer` (s) follows a prefill on workers of its own.
    """

    one: Array
    full: Array
    most: float
    workers: int = 0
    steps: float = 1.0
    advances: bool = True
    transfer: float = 0.0


@dataclass(frozen=True, slots=True)
class Loop:
    """One load test. `clients` are played, each standing for `group` real ones: concurrency = clients · group.

    `osl` is the mean answer; `step` (clients+1,) the seconds of a decode step with n clients decoding, 0 at n = 0;
    `room` the most clients that fit.
    """

    clients: int
    group: float
    osl: float
    step: Array
    room: int
    prefill: PrefillStage
    protocol: Protocol = field(default_factory=Protocol)


@dataclass(frozen=True, slots=True)
class LoopResult:
    """Means over all requests of a loop, in seconds; `requests_per_second` of the real clients over the whole test."""

    ttft: float
    tpot: float
    requests_per_second: float
    mean_batch: float


class Play(ABC):
    """State of R loops. Requests are numbered in order of arrival; one that was prefilled holds a slot until it ends."""

    def __init__(self, loops: list[Loop]) -> None:
        rows, width = len(loops), max(loop.clients for loop in loops)
        stages, clients = [loop.prefill for loop in loops], np.array([loop.clients for loop in loops])
        self.where = np.arange(rows)
        self.total = clients * np.array([loop.protocol.rounds for loop in loops])
        self.room = np.minimum(np.array([max(loop.room, 1) for loop in loops]), clients)
        self.step = _table([loop.step for loop in loops], width)
        self.one, self.full = _table([s.one for s in stages], width), _table([s.full for s in stages], width)
        self.group = np.array([loop.group for loop in loops])
        self.most = np.array([max(s.most, 1.0) for s in stages])
        self.spans = np.array([s.steps * s.advances for s in stages])
        self.spread = np.array([loop.protocol.spread for loop in loops])
        self.longest = 2 * np.array([loop.osl for loop in loops]) / (1 + self.spread)
        self.frontend, self.poll, self.hold, cold = np.array(
            [[loop.protocol.frontend, loop.protocol.poll, loop.protocol.hold, loop.protocol.cold] for loop in loops]
        ).T
        self.due = np.full(rows, np.inf)
        self.transfer = np.array([s.transfer for s in stages])
        workers = np.array([max(s.workers, 1) for s in stages])
        self.free_at = np.where(np.arange(workers.max()) < workers[:, None], cold[:, None], np.inf)
        self.now, self.tick, self.seen = cold.copy(), np.zeros(rows), np.zeros(rows)
        self.arrival = np.full((rows, int(self.total.max()) + 2 * width), np.inf)
        ramp = np.array([loop.protocol.ramp * loop.osl * loop.step[-1] / loop.clients for loop in loops])
        order = np.arange(width)
        starts = self.frontend[:, None] + ramp[:, None] * order
        self.arrival[:, :width] = np.where(order < clients[:, None], starts, np.inf)
        self.arrived, self.admitted, self.done = clients.copy(), np.zeros(rows, int), np.zeros(rows, int)
        self.finish, self.join = np.full((rows, width), np.inf), np.full((rows, width), np.inf)
        self.asked, self.first, self.length = np.zeros((rows, width)), np.zeros((rows, width)), np.ones((rows, width))
        self.slots, self.spare = np.tile(np.arange(width), (rows, 1)), clients.copy()
        self.batch = np.zeros(rows, int)
        self.ttft, self.tpot, self.held = np.zeros(rows), np.zeros(rows), np.zeros(rows)
        self.lanes = np.arange(int(min(width, max(1.0, np.max(self.most / self.group)))))

    def run(self) -> list[LoopResult]:
        """Play all loops to their end."""
        results: dict[int, LoopResult] = {}
        turns = 0
        while len(self.where):
            self.turn()
            turns += 1
            if turns % 64 == 0 or bool(np.all(self.done >= self.total)):
                results.update(self._retire())
        return [results[i] for i in sorted(results)]

    @abstractmethod
    def turn(self) -> None:
        """One event of every loop."""

    def pace(self) -> Array:
        """Seconds of a decode step at the present batch."""
        return np.asarray(self.step[np.arange(len(self.where)), self.batch])

    def next_end(self) -> Array:
        """Steps to the next end of a request; ∞ when none decodes."""
        return np.asarray(np.maximum(self.finish.min(axis=1) - self.tick, 0.0))

    def advance(self, rows: Ints, seconds: Array, ticks: Array) -> None:
        self.held[rows] += seconds * self.batch[rows]
        self.now[rows] += seconds
        self.tick[rows] += ticks

    def ready(self, rows: Ints, now: Array, space: Ints) -> Ints:
        """How many of the waiting prompts are there at `now` and fit one step (at least one)."""
        lanes = self.admitted[rows, None] + self.lanes
        there = (self.arrival[rows[:, None], lanes] <= now[:, None] + EPS).sum(axis=1)
        fit = np.maximum(np.floor(self.most[rows] / self.group[rows]), 1).astype(int)
        return np.asarray(np.maximum(np.minimum(np.minimum(there, fit), space), 1))

    def prompt_seconds(self, rows: Ints, count: Ints) -> tuple[Array, Array, Array]:
        """Seconds that a step of `count` clients' prompts adds, those until their mean first token, and its steps' number.

        A client that stands for more prompts than one step takes fills several; its prompts end one step after another.
        """
        prompts, most, batch = count * self.group[rows], self.most[rows], self.batch[rows]
        one, full = self.one[rows, batch], self.full[rows, batch]
        share = np.where(most > 1, np.minimum((prompts - 1) / np.maximum(most - 1, EPS), 1.0), 1.0)
        fills = np.maximum(prompts / most, 1.0)
        seconds = (one + (full - one) * np.maximum(share, 0.0)) * fills
        return seconds, seconds * (1.0 + 1.0 / fills) / 2.0, fills

    def admit(self, rows: Ints, count: Ints, landed: Array) -> tuple[Ints, Ints]:
        """Take `count` prompts of each row off the queue, prefilled at `landed` on average; their rows and slots."""
        row, order = np.nonzero(np.arange(int(count.max(initial=0))) < count[:, None])
        owner = rows[row]
        slot = self.slots[owner, self.spare[owner] - 1 - order]
        number = self.admitted[owner] + order
        share = self.spread[owner] + (1 - self.spread[owner]) * ((number + 1) * GOLDEN % 1.0)
        self.length[owner, slot] = np.maximum(np.round(self.longest[owner] * share) - 1, 1)
        self.asked[owner, slot] = self.arrival[owner, number]
        self.first[owner, slot] = landed[row]
        self.spare[rows] -= count
        self.admitted[rows] += count
        return owner, slot

    def end(self) -> None:
        """Retire the requests whose tick has come; their clients ask again."""
        row, slot = np.nonzero(self.finish <= self.tick[:, None] + 1e-6)
        if not len(row):
            return
        count = np.bincount(row, minlength=len(self.where))
        order = np.arange(len(row)) - (np.cumsum(count) - count)[row]
        self.ttft += np.bincount(
            row, self.first[row, slot] - self.asked[row, slot] + self.frontend[row], len(self.where)
        )
        self.tpot += np.bincount(row, (self.now[row] - self.first[row, slot]) / self.length[row, slot], len(self.where))
        self.finish[row, slot] = np.inf
        self.slots[row, self.spare[row] + order] = slot
        self.arrival[row, self.arrived[row] + order] = self.now[row] + self.frontend[row]
        self.spare += count
        self.arrived += count
        self.batch -= count
        self.done += count

    def _retire(self) -> Iterator[tuple[int, LoopResult]]:
        """Hand out the finished loops and drop their rows."""
        over = self.done >= self.total
        for i in np.flatnonzero(over):
            done, seconds = float(self.done[i]), float(self.now[i])
            yield (
                int(self.where[i]),
                LoopResult(
                    float(self.ttft[i]) / done,
                    float(self.tpot[i]) / done,
                    done * float(self.group[i]) / seconds,
                    float(self.held[i] * self.group[i]) / seconds,
                ),
            )
        if over.any():
            for name, value in vars(self).items():
                if name != "lanes":
                    setattr(self, name, value[~over])


class Beside(Play):
    """One engine for both: a step of prompts whenever any is ready, else decode until the next end or arrival."""

    def turn(self) -> None:
        ready, pace = self.arrival[np.arange(len(self.where)), self.admitted], self.pace()
        waiting = (self.batch < self.room) & (self.admitted < self.total) & np.isfinite(ready)
        looks = (self.batch == 0) | (np.abs(self.tick / self.poll - np.round(self.tick / self.poll)) < 1e-6)
        self.seen = np.where(looks, self.now, self.seen)
        there = waiting & (ready <= self.seen + EPS)
        self.due = np.where(there, np.minimum(self.due, self.tick + self.hold), np.inf)
        prompts = there & ((self.batch == 0) | (self.tick >= self.due - 1e-6))
        self.due[prompts] = np.inf
        self._prefill(np.flatnonzero(prompts), pace)
        decodes = np.flatnonzero(~prompts & (self.batch > 0))
        stop = np.where(there, self.due - self.tick, self._next_look(ready, pace))
        ticks = np.minimum(self.next_end(), np.where(waiting, stop, np.inf))[decodes]
        self.advance(decodes, ticks * pace[decodes], ticks)
        idle = ~prompts & (self.batch == 0) & waiting
        self.now[idle] = np.maximum(self.now[idle], ready[idle])
        self.end()

    def _next_look(self, ready: Array, pace: Array) -> Array:
        """Steps until the engine next looks for requests after `ready`: the end of the running step, or a later poll."""
        with np.errstate(invalid="ignore", divide="ignore"):
            steps = np.maximum(np.ceil((ready - self.now) / pace - 1e-9), 1.0)
        return np.asarray(np.ceil((self.tick + steps) / self.poll - 1e-9) * self.poll - self.tick)

    def _prefill(self, rows: Ints, pace: Array) -> None:
        if not len(rows):
            return
        count = self.ready(rows, self.seen[rows], self.room[rows] - self.batch[rows])
        seconds, landed, fills = self.prompt_seconds(rows, count)
        ticks = self.spans[rows] * fills
        beside = ticks * pace[rows]
        started = self.now[rows].copy()
        self.advance(rows, seconds + beside, ticks)
        owner, slot = self.admit(rows, count, started + landed + beside * (landed / np.maximum(seconds, EPS)))
        self.finish[owner, slot] = self.tick[owner] + self.length[owner, slot]
        self.batch[rows] += count


class Apart(Play):
    """Prefill workers feed decode workers: the next event is a prompt's start, a request's join, or an end."""

    def turn(self) -> None:
        rows = np.arange(len(self.where))
        server = self.free_at.argmin(axis=1)
        start = np.maximum(self.arrival[rows, self.admitted], self.free_at[rows, server])
        start[self.admitted >= self.total] = np.inf
        joins = np.where(self.batch < self.room, np.maximum(self.join.min(axis=1), self.now), np.inf)
        pace, ticks = self.pace(), self.next_end()
        with np.errstate(invalid="ignore"):
            ends = np.where(self.batch > 0, self.now + ticks * pace, np.inf)
        prompts = np.isfinite(start) & (start <= np.minimum(joins, ends))
        joining = ~prompts & np.isfinite(joins) & (joins <= ends)
        ending = np.flatnonzero(~prompts & ~joining & np.isfinite(ends))
        self.advance(ending, (ends - self.now)[ending], ticks[ending])
        self._enter(np.flatnonzero(joining), joins, pace)
        self._prefill(np.flatnonzero(prompts), start, server)
        self.end()

    def _prefill(self, rows: Ints, start: Array, server: Ints) -> None:
        if not len(rows):
            return
        count = self.ready(rows, start[rows], self.spare[rows])
        seconds, landed, _ = self.prompt_seconds(rows, count)
        self.free_at[rows, server[rows]] = start[rows] + seconds
        owner, slot = self.admit(rows, count, start[rows] + landed + self.transfer[rows])
        self.join[owner, slot] = self.first[owner, slot] + (seconds - landed)[np.searchsorted(rows, owner)]

    def _enter(self, rows: Ints, joins: Array, pace: Array) -> None:
        """Requests whose KV has come enter the decode batch, which also hands out their first token."""
        if not len(rows):
            return
        seconds = joins[rows] - self.now[rows]
        self.advance(rows, seconds, np.where(pace[rows] > 0, seconds / np.maximum(pace[rows], EPS), 0.0))
        space = (self.room - self.batch)[rows]
        here = self.join[rows] <= self.now[rows, None] + EPS
        row, slot = np.nonzero(here & (np.cumsum(here, axis=1) <= space[:, None]))
        owner = rows[row]
        boundary = np.where(self.batch[owner] > 0, np.ceil(self.tick[owner] - 1e-9), self.tick[owner])
        self.finish[owner, slot] = boundary + self.length[owner, slot]
        self.join[owner, slot] = np.inf
        self.first[owner, slot] += np.maximum(self.now[owner] - self.first[owner, slot], 0.0)
        self.batch += np.bincount(owner, minlength=len(self.batch))


def _table(rows: list[Array], width: int) -> Array:
    """Tables of different lengths as one array (R, width+1), the last value repeated."""
    return np.array([np.pad(row, (0, width + 1 - len(row)), "edge") for row in rows])
