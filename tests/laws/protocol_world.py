"""A small world in which the product's own state machines meet every trouble: loss, doubling, reordering, delay, damage, crashes,
pauses and restarts. Time, links, memory and randomness are fake; `Source`, `Target` and `Attempts` are the real ones.

KV here is a word per block that says whose it is. A token is computed from the words in a sequence's blocks, so KV that is late,
foreign or half there gives a wrong token, and `World.run` says so.

    python tests/laws/protocol_world.py SEED      # replay one seed, with its log
"""

from __future__ import annotations

import heapq
import random
import sys
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from diptych.design.boundary import Ownership
from diptych.runtime.gateway import attempts
from diptych.runtime.gateway.attempts import Attempts, Route
from diptych.runtime.handoff import deeds
from diptych.runtime.handoff.source import Parcel, Source
from diptych.runtime.handoff.target import Target
from diptych.runtime.messages import Chosen
from diptych.serving.fallback import Fallback, Way

LEASE, WAIT, TICK, BLOCK = 400, 1500, 50, 4


@dataclass(frozen=True)
class Trouble:
    """How bad the world is: chances of each message, and how many processes crash or pause."""

    loss: float = 0.02
    doubled: float = 0.03
    late: float = 0.05
    damaged: float = 0.03
    crashes: int = 3
    pauses: int = 3


@dataclass
class Job:
    """A request and what its client has seen."""

    id: bytes
    prompt: int
    limit: int
    seen: list[int] = field(default_factory=list)
    outcome: str = ""

    def token(self, position: int) -> int:
        return zlib.crc32(self.id + position.to_bytes(4, "little")) % 50_000


class Process:
    """One worker: its life, its memory, its sides. A crash loses everything but the name."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.life, self.paused_until = world, name, 0, 0
        self.start()

    def start(self) -> None:
        self.up = True
        self.source, self.target = Source(), Target(WAIT)
        self.memory: list[bytes] = [b""] * self.world.blocks
        self.free = list(range(self.world.blocks))
        self.held: dict[tuple[bytes, int], list[int]] = {}  # blocks by (request, epoch) and side
        self.room: dict[tuple[bytes, int], list[int]] = {}
        self.here: dict[tuple[bytes, int], set[int]] = {}
        self.waiting: deque[deeds.MakeRoom] = deque()
        self.halves: dict[tuple[bytes, int], dict[str, Any]] = {}
        self.stopped: set[tuple[bytes, int]] = set()
        self.taken: set[tuple[bytes, int]] = set()

    # --- memory -----------------------------------------------------------------------------------------------------

    def take(self, count: int) -> list[int] | None:
        if count > len(self.free):
            return None
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def give(self, blocks: list[int]) -> None:
        assert not set(blocks) & set(self.free), "a block is freed twice"
        for block in blocks:  # whoever reads it now reads somebody else's
            self.memory[block] = b"?"
        self.free += blocks
        self.serve_waiting()

    def serve_waiting(self) -> None:
        while self.waiting:
            wanted = self.waiting[0]
            key = (wanted.id, wanted.epoch)
            if self.target.phase(wanted.id) is None:
                self.waiting.popleft()
                continue
            blocks = self.take(self.world.size(wanted.tokens))
            if blocks is None:
                return
            self.waiting.popleft()
            self.room[key], self.here[key] = blocks, set()
            self.carry(self.target.room(*key, 0, wanted.total_bytes, self.world.now))

    # --- what comes in ----------------------------------------------------------------------------------------------

    def submitted(self, half: dict[str, Any]) -> None:
        key = (half["id"], half["epoch"])
        if key in self.stopped or key in self.taken:
            return
        self.taken.add(key)
        self.halves[key] = half
        if half["half"] == "decode":
            self.carry(self.target.expect(*key, half["peer"], self.world.now))
        elif half["half"] == "prefill":
            parcel = Parcel(*key, half["peer"], half["ownership"], half["tokens"], half["tokens"], b"", LEASE, WAIT)
            self.carry(self.source.submit(parcel, self.world.now))
        else:
            self.compute(key, lambda: self.decode(key, self.held.pop(key), half["job"].token(half["given"])))

    def stop(self, id: bytes, epoch: int) -> None:
        for key in [key for key in self.halves if key[0] == id and key[1] <= epoch]:
            del self.halves[key]
        self.stopped.add((id, epoch))
        self.carry(self.source.cancelled(id, epoch, self.world.now))
        self.carry(self.target.cancelled(id, epoch))
        for key in [key for key in self.held if key[0] == id and key[1] <= epoch]:
            self.give(self.held.pop(key))

    def compute(self, key: tuple[bytes, int], then: Callable[[], None]) -> None:
        """Prefill: blocks, time, words."""
        half = self.halves.get(key)
        if half is None:
            return
        size = self.world.size(half["tokens"])
        if size > self.world.blocks:
            self.too_large(key, half)
            return
        blocks = self.take(size)
        if blocks is None:
            self.world.later(self, 30, lambda: self.compute(key, then))
            return
        self.held[key] = blocks

        def done() -> None:
            if key in self.held and self.held[key] is blocks:
                for block in blocks:
                    self.memory[block] = key[0]
                then()

        self.world.later(self, self.world.rng.randrange(5, 60), done)

    def too_large(self, key: tuple[bytes, int], half: dict[str, Any]) -> None:
        """It would not fit if everything else were gone: waiting for room would be for ever."""
        del self.halves[key]
        if half["half"] == "prefill":
            self.carry(self.source.failed(*key, self.world.now))
        else:
            self.world.to_gateway(self, ("failed", *key, "too large", False, 0))

    def produced(self, key: tuple[bytes, int]) -> None:
        half = self.halves.get(key)
        if half is None:
            return
        token = half["job"].token(half["given"])
        self.world.to_gateway(self, ("tokens", *key, half["given"], (Chosen(token),), ""))
        self.carry(self.source.produced(*key, token, self.world.now))

    def decode(self, key: tuple[bytes, int], blocks: list[int], token: int) -> None:
        """The KV is ours: say the first token again, then one after another, from the words in the blocks."""
        half = self.halves.pop(key, None)
        if half is None:
            self.give(blocks)
            return
        job, place = half["job"], half["given"]

        def say(position: int, word: int) -> None:
            finish = "length" if position + 1 >= job.limit else ""
            self.world.to_gateway(self, ("tokens", *key, position, (Chosen(word),), finish))
            if finish or key in self.stopped:
                self.give(blocks)
                return
            self.world.later(self, 7, lambda: step(position + 1))

        def step(position: int) -> None:
            words = {self.memory[block] for block in blocks}
            say(position, job.token(position) if words == {key[0]} else 99_999)

        say(place, token if {self.memory[block] for block in blocks} == {key[0]} else 99_999)

    # --- what the sides ask -----------------------------------------------------------------------------------------

    def carry(self, asked: list[deeds.Deed]) -> None:
        for deed in asked:
            key = (deed.id, deed.epoch)
            match deed:
                case deeds.Say():
                    self.world.between(self, deed.peer, key, deed.message)
                case deeds.Prefill():
                    self.compute(key, lambda key=key: self.produced(key))
                case deeds.Send():
                    self.send(key, deed.peer)
                case deeds.FreeSource():
                    self.halves.pop(key, None)
                    if key in self.held:
                        self.give(self.held.pop(key))
                case deeds.MakeRoom():
                    self.waiting.append(deed)
                    self.serve_waiting()
                case deeds.Count():
                    arrived, whole = len(self.here[key]), len(self.room[key])
                    self.carry(self.target.counted(*key, arrived, whole - arrived))
                case deeds.Activate():
                    del self.here[key]
                    self.decode(key, self.room.pop(key), deed.first_token)
                case deeds.FreeTarget():
                    self.halves.pop(key, None)
                    self.here.pop(key, None)
                    if key in self.room:
                        self.give(self.room.pop(key))
                case deeds.Report():
                    self.world.to_gateway(self, ("failed", *key, deed.reason, deed.retry, deed.after_ms))
                case deeds.Handed():
                    self.world.to_gateway(self, ("ended", *key, "handed"))

    def send(self, key: tuple[bytes, int], peer: str) -> None:
        """Blocks one by one, each read when it leaves; then the source may say `done`."""
        blocks = self.held[key]

        def block(place: int) -> None:
            if self.held.get(key) is not blocks:
                return
            if place == len(blocks):
                self.carry(self.source.sent(*key, place, place))
                return
            self.world.between(self, peer, key, (place, self.memory[blocks[place]]))
            self.world.later(self, 2, lambda: block(place + 1))

        block(0)

    def arrived(self, peer: str, key: tuple[bytes, int], body: Any, damaged: bool) -> None:
        if isinstance(body, tuple):
            if damaged or key not in self.here or body[0] in self.here[key]:
                return  # a digest does not match, or nothing of that epoch is awaited
            self.memory[self.room[key][body[0]]] = body[1]
            self.here[key].add(body[0])
            return
        self.carry(self.source.heard(peer, *key, body, self.world.now))
        self.carry(self.target.heard(peer, *key, body, self.world.now))


class World:
    """Two or three workers of each role, one gateway, some requests, and the trouble of one seed."""

    def __init__(self, seed: int, trouble: Trouble = Trouble(), log: bool = False) -> None:
        self.rng, self.trouble, self.log = random.Random(seed), trouble, log
        self.now, self.number, self.events = 0, 0, []
        self.blocks = self.rng.choice((6, 12, 40))
        self.ownership = self.rng.choice(list(Ownership))
        self.prefills = [f"P{index}" for index in range(self.rng.choice((1, 2, 2)))]
        self.decodes = [f"D{index}" for index in range(self.rng.choice((1, 2, 2)))]
        self.processes = {name: Process(self, name) for name in self.prefills + self.decodes}
        self.known_up = set(self.processes)
        self.fallback = Fallback(retries=self.rng.choice((3, 8)))
        self.gateway = Attempts(self.route)
        self.jobs: dict[bytes, Job] = {}
        self.quiet = False

    def size(self, tokens: int) -> int:
        return -(-tokens // BLOCK)

    def route(self, id: bytes, losses: int) -> Route:
        first = [name for name in self.prefills if name in self.known_up]
        second = [name for name in self.decodes if name in self.known_up]
        way = self.fallback.way(bool(first), bool(second), losses)
        if way is Way.APART:
            return Route(way, self.rng.choice(first), self.rng.choice(second))
        if way in (Way.ON_DECODE, Way.ON_PREFILL):
            return Route(way, "", self.rng.choice(second or first))
        return Route(way)

    # --- time and links ---------------------------------------------------------------------------------------------

    def at(self, time: int, deed: Callable[[], None]) -> None:
        self.number += 1
        heapq.heappush(self.events, (time, self.number, deed))

    def later(self, process: Process, delay: int, deed: Callable[[], None]) -> None:
        """On a process's own time: not in another life, and not while it is paused."""
        life = process.life

        def run() -> None:
            if process.life != life or not process.up:
                return
            if process.paused_until > self.now:
                self.at(process.paused_until, run)
                return
            deed()

        self.at(self.now + delay, run)

    def travel(self, deed: Callable[[], None]) -> None:
        """A message on its way, with what may happen to it."""
        times = 1
        if not self.quiet and self.rng.random() < self.trouble.loss:
            times = 0
        elif not self.quiet and self.rng.random() < self.trouble.doubled:
            times = 2
        for _ in range(times):
            late = not self.quiet and self.rng.random() < self.trouble.late
            self.at(self.now + self.rng.randrange(1, 3 * LEASE if late else 6), deed)

    def between(self, sender: Process, receiver: str, key: tuple[bytes, int], body: Any) -> None:
        process = self.processes[receiver]
        life = process.life
        damaged = not self.quiet and self.rng.random() < self.trouble.damaged
        self.say(f"{sender.name} → {receiver} {key[0][:2].hex()}/{key[1]} {type(body).__name__}")

        def arrive() -> None:
            if process.life == life and process.up:
                self.later(process, 0, lambda: process.arrived(sender.name, key, body, damaged))

        self.travel(arrive)

    def to_gateway(self, sender: Process, said: tuple[Any, ...]) -> None:
        life = sender.life

        def arrive() -> None:
            if sender.life == life:
                self.heard(sender.name, said)

        self.travel(arrive)

    def heard(self, worker: str, said: tuple[Any, ...]) -> None:
        kind, id, epoch, *rest = said
        self.say(f"gateway hears {kind} from {worker} of {id[:2].hex()}/{epoch} {rest[:2]}")
        self.carry(getattr(self.gateway, kind)(worker, id, epoch, *rest, self.now))

    def carry(self, asked: list[attempts.Deed]) -> None:
        for deed in asked:
            job = self.jobs[deed.id]
            match deed:
                case attempts.Start():
                    half = {"id": deed.id, "epoch": deed.epoch, "half": deed.half, "peer": deed.peer, "job": job}
                    half |= {"given": len(job.seen), "tokens": job.prompt + len(job.seen), "ownership": self.ownership}
                    self.submit(self.processes[deed.worker], half)
                case attempts.Stop():
                    self.order(self.processes[deed.worker], "stop", deed.id, deed.epoch)
                case attempts.Deliver():
                    assert not job.outcome, "tokens after the end"
                    job.seen += [each.token for each in deed.tokens]
                case attempts.Finish() | attempts.Refuse():
                    assert not job.outcome, "ended twice"
                    job.outcome = deed.reason

    def submit(self, process: Process, half: dict[str, Any]) -> None:
        self.order(process, "submitted", half)

    def order(self, process: Process, what: str, *words: Any) -> None:
        life = process.life
        self.travel(
            lambda: (
                process.life == life and process.up and self.later(process, 0, lambda: getattr(process, what)(*words))
            )
        )

    def say(self, text: str) -> None:
        if self.log:
            print(f"{self.now:6} {text}")

    # --- trouble ----------------------------------------------------------------------------------------------------

    def crash(self, name: str, away: int) -> None:
        process = self.processes[name]
        if not process.up:
            return
        self.say(f"{name} dies")
        process.up, process.life = False, process.life + 1
        for other in self.processes.values():
            if other is not process:
                self.later(other, self.rng.randrange(1, 50), lambda other=other: self.missed(other, name))
        self.at(self.now + self.rng.randrange(1, 50), lambda: self.gone(name))
        self.at(self.now + away, lambda: self.back(name))

    def missed(self, process: Process, name: str) -> None:
        process.carry(process.source.lost(name, self.now))
        process.carry(process.target.lost(name))

    def gone(self, name: str) -> None:
        self.known_up.discard(name)
        self.carry(self.gateway.worker_lost(name, self.now))

    def back(self, name: str) -> None:
        self.processes[name].life += 1
        self.processes[name].start()
        self.known_up.add(name)
        self.tick(self.processes[name])

    def tick(self, process: Process) -> None:
        process.carry(process.source.tick(self.now))
        process.carry(process.target.tick(self.now))
        process.serve_waiting()
        self.later(process, TICK, lambda: self.tick(process))

    def tick_gateway(self) -> None:
        self.carry(self.gateway.tick(self.now))
        self.at(self.now + TICK, self.tick_gateway)

    # --- a run ------------------------------------------------------------------------------------------------------

    def run(self, requests: int = 12, seconds: int = 4) -> World:
        """Requests and trouble for a while, then quiet until nothing is left; raises where a law is broken."""
        for process in self.processes.values():
            self.tick(process)
        self.tick_gateway()
        end = seconds * 1000
        for _ in range(requests):
            job = Job(self.rng.randbytes(16), self.rng.randrange(1, 5 * BLOCK), self.rng.randrange(1, 12))
            self.jobs[job.id] = job
            self.at(self.rng.randrange(end // 2), lambda job=job: self.ask(job))
            if self.rng.random() < 0.1:
                self.at(self.rng.randrange(end), lambda job=job: self.leave(job))
        names = list(self.processes)
        for _ in range(self.rng.randrange(self.trouble.crashes + 1)):
            self.at(self.rng.randrange(end), lambda: self.crash(self.rng.choice(names), self.rng.randrange(10, 1500)))
        for _ in range(self.rng.randrange(self.trouble.pauses + 1)):
            self.at(self.rng.randrange(end), lambda: self.pause(self.rng.choice(names)))
        if self.trouble.crashes and self.rng.random() < 0.3:
            self.at(self.rng.randrange(end), self.forget)
        self.until(end)
        self.quiet = True
        while any(not job.outcome for job in self.jobs.values()) and self.now < end + 40_000:
            self.until(self.now + 1000)
        self.until(self.now + 4 * WAIT)
        self.judge()
        return self

    def ask(self, job: Job) -> None:
        if not job.outcome:
            self.carry(self.gateway.submit(job.id, job.limit, self.now + 20_000, self.now))

    def leave(self, job: Job) -> None:
        if not job.outcome and job.id in self.gateway._open:
            job.outcome = "client gone"
            self.carry(self.gateway.cancelled(job.id))

    def forget(self) -> None:
        """The gateway dies and another begins: its clients are gone, and no worker is told."""
        self.say("gateway dies")
        self.gateway = Attempts(self.route)
        for job in self.jobs.values():
            job.outcome = job.outcome or "gateway lost"

    def pause(self, name: str) -> None:
        self.processes[name].paused_until = self.now + self.rng.randrange(10, 4 * LEASE)

    def until(self, end: int) -> None:
        while self.events and self.events[0][0] <= end:
            self.now, _, deed = heapq.heappop(self.events)
            deed()
        self.now = max(self.now, end)

    def judge(self) -> None:
        """Every law: right tokens once, an end for everyone, nothing held."""
        for job in self.jobs.values():
            right = [job.token(position) for position in range(len(job.seen))]
            assert job.seen == right, f"{job.id[:2].hex()} saw {job.seen}, right is {right}"
            assert job.outcome, f"{job.id[:2].hex()} never ended"
            if job.outcome in ("length", "stop"):
                assert len(job.seen) == job.limit
        assert self.gateway.open == 0
        for process in self.processes.values():
            assert (process.source.open, process.target.open) == (0, 0), f"{process.name} still has handoffs"
            assert sorted(process.free) == list(range(self.blocks)), (
                f"{process.name} leaks {self.blocks - len(process.free)} blocks"
            )


if __name__ == "__main__":
    World(int(sys.argv[1]), log=True).run()
    print("every law held")
