"""Starts the programs of a fleet in turn, restarts what dies, ends everything in order.

A process that ends unasked is started again after a pause that doubles, with jitter. One that keeps ending is given up, with the
last lines of its log: at the start that ends the fleet, later the others go on without it, except without the gateway.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diptych.errors import DiptychError
from diptych.runtime.launch.program import Program, Turn
from diptych.runtime.launch.running import Running, how


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds and counts: `crashes` within `window` are too many, `pause` grows to `longest_pause`, `drain` is for each turn."""

    start: float = 300.0
    drain: float = 30.0
    pause: float = 0.1
    longest_pause: float = 10.0
    crashes: int = 5
    window: float = 60.0


class DidNotStart(DiptychError):
    """A process of the fleet ended, or did not come to serve, while the fleet was being started."""


class Supervisor:
    """One fleet. `say` is told what a person wants to know; `logs` is where processes write theirs."""

    def __init__(
        self, programs: Sequence[Program], logs: Path, say: Callable[[str], None], patience: Patience = Patience()
    ) -> None:
        self.programs, self.logs, self.say, self.patience = tuple(programs), logs, say, patience
        self.running: dict[str, Running] = {}
        self.given_up: dict[str, str] = {}
        self.restarts = 0
        self.spares: dict[str, Running] = {}
        self._expected: set[str] = set()  # that are being stopped on purpose
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._starting: set[asyncio.Task[Running]] = set()
        self._told = asyncio.Event()
        self._rolling = asyncio.Lock()
        self._gateway_lost = False

    # --- start ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Every program, turn by turn, each serving before the next turn begins.

        Raises:
            DidNotStart: what ended or took too long, with the last lines of its log; nothing runs any more then.
        """
        try:
            for turn in Turn:
                await self._start(turn)
        except BaseException:
            await self.stop(drain=0)
            raise
        for program in self.programs:
            if program.spare:
                await self._run(program, spare=True)
            self._keeping[program.name] = asyncio.get_running_loop().create_task(self._keep(program))

    async def _start(self, turn: Turn) -> None:
        programs = [each for each in self.programs if each.turn is turn]
        for program in programs:
            await self._run(program)
        waiting = {each.name: asyncio.ensure_future(self.running[each.name].serving()) for each in programs}
        end = asyncio.get_running_loop().time() + self.patience.start
        try:
            while waiting:
                left = end - asyncio.get_running_loop().time()
                done, _ = await asyncio.wait(
                    waiting.values(), timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED
                )
                for name in [name for name, each in waiting.items() if each in done]:
                    if not waiting.pop(name).result():
                        raise DidNotStart(self._ending(name))
                    self.say(f"{name} is up" + (f"; waiting for {', '.join(waiting)}" if waiting else ""))
                if not done:
                    raise DidNotStart(
                        f"{', '.join(waiting)} did not serve within {self.patience.start:g} s"
                        + self._tails(next(iter(waiting)))
                    )
        finally:
            for each in waiting.values():
                each.cancel()

    async def _run(self, program: Program, spare: bool = False) -> Running:
        """Start a process that is known to `stop` even when whoever wanted it is cancelled meanwhile."""

        async def run() -> Running:
            made = await Running.start(program, self.logs, spare)
            (self.spares if spare else self.running)[program.name] = made
            return made

        task = asyncio.get_running_loop().create_task(run())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return await asyncio.shield(task)

    async def _again(self, program: Program) -> Running:
        """The program's spare if it has one that is there, else a new process."""
        spare = self.spares.pop(program.name, None)
        if spare is None or not spare.call():
            return await self._run(program)
        self.running[program.name] = spare
        return spare

    def _ending(self, name: str) -> str:
        return f"{name} {how(self.running[name].code)}{self._tails(name)}"

    def _tails(self, name: str) -> str:
        return "".join(f"\n  {line}" for line in self.running[name].tail())

    # --- keep -------------------------------------------------------------------------------------------------------

    async def _keep(self, program: Program) -> None:
        """Start it again whenever it ends unasked, until it has ended too often."""
        loop, patience = asyncio.get_running_loop(), self.patience
        endings: deque[float] = deque(maxlen=patience.crashes)
        while True:
            await asyncio.shield(self.running[program.name].ended)
            while program.name in self._expected:  # stopped on purpose: by and by it runs again
                await asyncio.sleep(0.02)
            if self.running[program.name].code is None:
                continue
            endings.append(loop.time())
            if len(endings) == patience.crashes and endings[-1] - endings[0] < patience.window:
                return self._give_up(program)
            recent = sum(loop.time() - each < patience.window for each in endings)
            pause = min(patience.pause * 2 ** (recent - 1), patience.longest_pause) * (0.5 + random.random())  # noqa: S311
            pause = 0.0 if program.spare and recent == 1 else pause
            self.say(f"{program.name} {how(self.running[program.name].code)}; again in {pause:.1f} s")
            await asyncio.sleep(pause)
            if program.name in self._expected or self.running[program.name].code is None:
                continue
            self.restarts += 1
            if await (await self._again(program)).serving():
                self.say(f"{program.name} is up again")
            if program.spare and program.name not in self.spares:
                await self._run(program, spare=True)

    def _give_up(self, program: Program) -> None:
        self.given_up[program.name] = why = self._ending(program.name)
        self.say(f"{program.name} keeps ending and is given up: {why}")
        if program.turn is Turn.GATEWAY or len(self.given_up) == len(self.programs) - 1:
            self._gateway_lost = True
            self._told.set()

    async def roll(self) -> None:
        """Restart the workers one after the other: each drains, ends and serves again before the next one does."""
        if self._rolling.locked():
            return
        async with self._rolling:
            for program in self.programs:
                if program.turn is not Turn.WORKER or program.name in self.given_up:
                    continue
                self.say(f"{program.name} drains")
                self._expected.add(program.name)
                try:
                    await self.running[program.name].stop(self.patience.drain)
                    again = await self._run(program)
                finally:
                    self._expected.discard(program.name)
                if not (await again.serving() and await self._is_seen()):
                    self.say(f"{program.name} did not come back; the others stay as they are")
                    return
                self.say(f"{program.name} is up again")
            self.say("every worker was restarted")

    async def _is_seen(self) -> bool:
        """Wait until the gateway has found every worker again."""
        gateways = [each for each in self.running.values() if each.program.turn is Turn.GATEWAY]
        return all([await each.serving() for each in gateways])

    # --- end --------------------------------------------------------------------------------------------------------

    async def run(self, up: Callable[[], Awaitable[None]]) -> int:
        """The fleet's whole life: start, call `up`, keep it until SIGTERM or SIGINT, end it. SIGHUP restarts the workers.

        1 when it could not be kept. Raises DidNotStart.
        """
        loop = asyncio.get_running_loop()
        hurry, tasks = asyncio.Event(), set[asyncio.Task[None]]()

        def leave() -> None:
            if self._told.is_set():
                hurry.set()
            self._told.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, leave)
        try:
            if not await _unless(self._told, self.start()):
                return 0
            loop.add_signal_handler(signal.SIGHUP, lambda: tasks.add(loop.create_task(self.roll())))
            tasks.add(loop.create_task(_call(up)))
            await self._told.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await _unless(hurry, self.stop())
            return 1 if self._gateway_lost else 0
        finally:
            await self.stop(drain=0)

    async def stop(self, drain: float | None = None) -> None:
        """Gateway, workers, store: each turn finishes what it has, within `drain` seconds, before the next one is told to."""
        seconds = self.patience.drain if drain is None else drain
        for task in self._keeping.values():
            task.cancel()
        await asyncio.gather(*self._keeping.values(), *self._starting, return_exceptions=True)
        await asyncio.gather(*(each.stop(0) for each in self.spares.values()))
        self.spares.clear()
        for turn in reversed(Turn):
            some = [each for each in self.running.values() if each.program.turn is turn]
            if drain is None and some and any(each.code is None for each in some):
                self.say(f"{_named(some)}: finishing what is open")
            await asyncio.gather(*(each.stop(seconds) for each in some))
        self.running.clear()


async def _call(up: Callable[[], Awaitable[None]]) -> None:
    await up()


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do `work`, unless the event comes first: then it is cancelled, and this is False."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if working.done():
        working.result()
        return True
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return False


def _named(some: Iterable[Running]) -> str:
    return ", ".join(each.program.name for each in some)
