"""The engine's thread: commands and events come in by one queue, steps are taken between them, what there is to say goes out.

One thread owns the engine, the batch, the blocks and both sides of every handoff, so none of them needs a lock. Times are
milliseconds of this process's monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from diptych.boundary import serial
from diptych.boundary.frame import OLDEST_VERSION, VERSION
from diptych.boundary.messages import Accept, Hello, Offer, Renew, Reserve, Speaker
from diptych.boundary.wire_table import WireTable
from diptych.runtime import messages
from diptych.runtime.engine import Engine
from diptych.runtime.failpoints import hit
from diptych.runtime.messages import Cancel, Drain, Ended, Failed, Load, Message, Submit, Tokens
from diptych.runtime.peer import events
from diptych.runtime.peer.arena import Lender
from diptych.runtime.peer.peers import Peers, Tls
from diptych.runtime.sampling import Sampled
from diptych.runtime.worker.admission import objection
from diptych.runtime.worker.blocks import LowerTiers
from diptych.runtime.worker.commands import EVERYBODY, Command, Gone, Out, Setup, Stop
from diptych.runtime.worker.half import Half, Key, chosen
from diptych.runtime.worker.handoffs import Handoffs
from diptych.runtime.worker.report import load
from diptych.runtime.worker.seen import Seen
from diptych.runtime.worker.stepper import Result, Stepper

TICK_MS = 10
LOAD_MS = 500


Told = Command | Gone | Stop | events.Event | Callable[[], None]
"""What reaches the engine's thread."""


class Core:
    """One worker without its sockets for gateways: `tell` it commands, run it on a thread, and it calls `emit`."""

    def __init__(
        self,
        engine: Engine,
        setup: Setup,
        emit: Callable[[Out], None],
        *,
        tls: Tls | None = None,
        arena: Lender | None = None,
        tiers: LowerTiers | None = None,
    ) -> None:
        self.engine, self.setup, self._emit, self._tiers = engine, setup, emit, tiers
        self._inbox: SimpleQueue[Told] = SimpleQueue()
        self._put_off: list[Told] = []
        self._broken: Exception | None = None
        table = WireTable()
        self.peers = Peers(_hello(engine, setup), table, self._inbox.put, tls, arena)
        self.stepper = Stepper(engine, setup.rules, prefixes=setup.prefixes, tiers=tiers)
        both = setup.role == "colocated"
        self.handoffs = Handoffs(self, self.stepper, self.peers, table, setup.limits, both)
        self._halves: dict[bytes, Half] = {}
        self._seen = Seen()
        self._numbers = 0
        self._said: Out = []
        self._draining = self._drained = self._stopped = False
        self._next_tick = self._next_load = 0
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="rewrite")
        self._name = "decode" if setup.role == "colocated" else setup.role

    # --- any thread -------------------------------------------------------------------------------------------------

    def tell(self, told: Command | Gone | Stop) -> None:
        """Something for the engine's thread."""
        self._inbox.put(told)

    # --- the engine's thread ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until `Stop`."""
        while not self._stopped:
            self._take(wait=not self._step())
            self._tick()
            self._flush()
        self.peers.close()
        self._beside.shutdown(wait=True)

    def now(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def _step(self) -> bool:
        """One step of the batch, if anybody can run."""
        self.handoffs.serve()
        stepper = self.stepper
        if not stepper.busy:
            return False
        steps = stepper.steps
        results = stepper.step(self.handoffs.leaving.stream, self._overhear)
        if self._broken is not None:
            raise self._broken
        for result in results:
            self._told(result)
        self._flush()
        return stepper.steps != steps

    def _overhear(self) -> None:
        """Between two layers of a step: what makes ready for others, and touches nothing of the step. A prompt need not wait
        for a decode step's end to be given room, nor for another prompt's to be announced. All else waits. And the heartbeat:
        a step of long prompts takes longer than a worker may be silent."""
        while not self._inbox.empty() and self._broken is None:
            told = self._inbox.get()
            if not self._makes_ready(told):
                self._put_off.append(told)
                continue
            try:
                self._do(told)
            except Exception as error:  # not the engine's fault, which it would be taken for
                self._broken = error
        self._beat(self.now())
        self._flush()

    def _makes_ready(self, told: Told) -> bool:
        """Whether it may be done within a step. What is said of one request keeps its order."""
        match told:
            case Command(_, Submit() as submit):
                id, may = submit.request, submit.request not in self._halves
            case events.Heard(message=Reserve() | Offer() | Accept() | Renew()):
                id, may = told.id, True
            case _:
                return False
        return may and not any(_about(each) in (id, None) for each in self._put_off)

    def _take(self, wait: bool) -> None:
        """Everything that has come in, or the next thing within a tick."""
        put_off, self._put_off = self._put_off, []
        for told in put_off:
            self._do(told)
        wait = wait and not put_off
        try:
            self._do(self._inbox.get(timeout=TICK_MS / 1000) if wait else self._inbox.get_nowait())
            while True:
                self._do(self._inbox.get_nowait())
        except Empty:
            pass

    def _do(self, told: Told) -> None:
        match told:
            case Command(route, Submit() as submit):
                self._submit(route, submit)
            case Command(_, Cancel() as cancel):
                self._cancel(cancel.request, cancel.epoch)
            case Command(_, Drain()):
                self._draining = True
            case Command(route, messages.Ask()):
                self._said.append((route, self.load()))
            case Gone(route):
                for half in [each for each in self._halves.values() if each.route == route]:
                    self._cancel(*half.key)
            case Stop():
                self._stopped = True
            case events.Heard() | events.Lost() | events.Spoiled() | events.Freed() | events.Unread():
                self.handoffs.on(told)
            case _ if callable(told):
                told()

    def _tick(self) -> None:
        now = self.now()
        if now < self._next_tick:
            return
        self._next_tick = now + TICK_MS
        self.handoffs.tick()
        for half in [each for each in self._halves.values() if each.deadline <= now]:
            self._cancel(*half.key, but_say="deadline")
        self._beat(now)
        if self._draining and not self._drained and self.is_empty:
            self._drained = True
            self._said += [(EVERYBODY, self.load()), (EVERYBODY, messages.Drained())]

    def _beat(self, now: int) -> None:
        """The heartbeat, when it is due."""
        if now >= self._next_load:
            self._next_load = now + LOAD_MS
            self._said.append((EVERYBODY, self.load()))

    def _flush(self) -> None:
        if self._said:
            said, self._said = self._said, []
            self._emit(said)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _submit(self, route: int, submit: Submit) -> None:
        """A half, once: what has been seen under this epoch or a later one is passed over."""
        if self._seen.is_late(submit.request, submit.epoch):
            return
        standing = self._halves.get(submit.request)
        if standing is not None:
            self._cancel(*standing.key)
        self._seen.remember(submit.request, submit.epoch)
        refused = objection(submit, self.engine, self.stepper.pool, self._draining)
        if refused:
            self._said.append((route, Failed(submit.request, submit.epoch, *refused)))
            return
        hit(f"{self._half_name(submit)}.admit")
        self._numbers += 1
        half = Half(self._numbers, submit, route, self.engine.eos, self.stepper.pool.hash_tokens)
        half.deadline = self.now() + submit.deadline_ms
        self._halves[submit.request] = half
        if half.ending():
            self._said.append((route, Tokens(*half.key, half.said, (), half.ending())))
            self._end(half, half.ending())
        elif submit.half == "prefill":
            self.handoffs.leaving.give(half)
        elif submit.half == "decode":
            self.handoffs.arriving.expect(half)
        else:
            hit(f"{self._name}.queue")
            half.is_here = True
            self.stepper.add(half)

    def _cancel(self, id: bytes, epoch: int, but_say: str = "") -> None:
        """Give everything back of this epoch and all before."""
        self._seen.remember(id, epoch)
        half = self._halves.get(id)
        if half is not None and half.key[1] > epoch:
            return
        self.handoffs.cancel(id, epoch)
        if half is None or self._halves.get(id) is not half:
            return
        if but_say:
            self._said.append((half.route, Failed(*half.key, but_say)))
        del self._halves[id]
        if half.is_here:
            self.stepper.remove(half)

    def _end(self, half: Half, reason: str) -> None:
        self._halves.pop(half.key[0], None)
        self._said.append((half.route, Ended(*half.key, reason, half.said, half.found, half.moved)))

    # --- what steps give ----------------------------------------------------------------------------------------------

    def _told(self, result: Result) -> None:
        half = result.half
        if result.fault:
            if half.hands_off:
                self.handoffs.leaving.faulted(half)
            else:
                self.failed(half, "engine fault", result.fault)
            return
        assert result.sampled is not None
        self._say_tokens(half, result.sampled, result.finish)
        if half.hands_off:
            self.handoffs.leaving.produced(half, result.sampled)
        elif result.finish:
            hit(f"{self._name}.release")
            self._end(half, result.finish)
        elif half.said == max(2, half.submit.params.max_tokens // 2):
            hit(f"{self._name}.mid_decode")

    def _say_tokens(self, half: Half, sampled: Sampled, finish: str) -> None:
        """One token; with the first go log probabilities of the prompt, and how much of it was here already."""
        place = half.said - 1
        cached = half.found if place == len(half.submit.generated) else 0
        prompt: tuple[messages.Chosen, ...] = ()
        if place == 0:
            hit(f"{self._half_name(half.submit)}.first_token")
            prompt = tuple(chosen(each) for each in half.prompt_told)
        self._said.append((half.route, Tokens(*half.key, place, (chosen(sampled),), finish, prompt, cached)))

    def _half_name(self, submit: Submit) -> str:
        return self._name if submit.half == "whole" else submit.half

    # --- what handoffs ask (`Owner`) ------------------------------------------------------------------------------------

    def half(self, key: Key) -> Half | None:
        """The half of this request, if it is of this epoch."""
        half = self._halves.get(key[0])
        return half if half is not None and half.key == key else None

    def failed(self, half: Half, reason: str, detail: str = "", retry: bool = True, after_ms: int = 0) -> None:
        """It could not be done, and nothing of it is held any more."""
        self._halves.pop(half.key[0], None)
        said = Failed(*half.key, reason[:128] or "failed", detail[:1000], retry, after_ms)
        self._said.append((half.route, said))

    def handed(self, half: Half) -> None:
        self._end(half, "handed")

    def activated(self, half: Half, first_token: int) -> None:
        """A handoff is complete: its first token is said (again), and the half decodes."""
        half.tokens.append(first_token)
        half.is_here = True
        finish = half.ending()
        self._say_tokens(half, Sampled(first_token), finish)
        if finish:
            self.stepper.remove(half)
            self._end(half, finish)

    def say(self, half: Half, message: Message) -> None:
        self._said.append((half.route, message))

    def later(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Do `work` beside the engine's thread, then call `then` on it."""

        def both() -> None:
            work()
            self._inbox.put(then)

        self._beside.submit(both)

    # --- what there is ------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not self._halves and not self.handoffs.open

    def load(self) -> Load:
        """Queues, memory, progress and the ledger, now."""
        return load(self.stepper, self.handoffs, self._tiers, self._draining)


def _about(told: Told) -> bytes | None:
    """The request that it is about; None: all of them, or a connection."""
    match told:
        case Command(_, (Submit() | Cancel()) as said):
            return said.request
        case events.Heard() | events.Spoiled() | events.Freed() | events.Unread():
            return told.id
        case Command(_, messages.Ask()):
            return b""
    return b"" if callable(told) else None


def _hello(engine: Engine, setup: Setup) -> Hello:
    speaker = Speaker.PREFILL if setup.role == "prefill" else Speaker.DECODE
    state = bytes.fromhex(serial.digest(engine.state))
    return Hello(speaker, setup.name, setup.life, OLDEST_VERSION, VERSION, state)
