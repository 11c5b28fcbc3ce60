"""A link between two processes of a fleet that goes wrong: slow, late, cut, torn, silent. It knows where messages end.

It takes the place of a worker's socket file, so that whoever dials it next comes through here; `restored` gives it back.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from pathlib import Path

from diptych.boundary.frame import HEADER_BYTES, Refusal, unseal


@dataclass(frozen=True)
class Well:
    """As it should be."""


@dataclass(frozen=True)
class Slow:
    """So many bytes a second."""

    rate: float


@dataclass(frozen=True)
class Late:
    """Each message after so many seconds, give or take."""

    seconds: float
    jitter: float = 0.0


@dataclass(frozen=True)
class Cut:
    """The connection ends at the `nth` message from now, after `within` bytes of it; again and again."""

    nth: int = 1
    within: int = 0


@dataclass(frozen=True)
class Silent:
    """Nothing passes and nobody is told: half open. `forth` alone, or both ways."""

    both: bool = True


@dataclass
class FaultyLink:
    """`fault` may change at any time. `frames`: of workers' peers; `control`: of a worker and its gateway; '' for a store."""

    kind: str
    fault: object = field(default_factory=Well)
    seed: int = 0
    connections: int = 0
    messages: int = 0
    struck: int = 0

    def __post_init__(self):
        self.chance, self.tasks, self.left = random.Random(self.seed), set(), 0
        self.changed = asyncio.Event()

    def becomes(self, fault):
        self.fault, self.left = fault, getattr(fault, "nth", 0)
        self.changed.set()
        self.changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def at(self, path):
        """In the place of a socket file."""
        path = Path(path)
        behind = path.with_suffix(path.suffix + "-real")
        path.rename(behind)
        server = await asyncio.start_unix_server(lambda *ends: self._serve(behind, *ends), str(path))
        try:
            yield self
        finally:
            server.close()
            for task in list(self.tasks):
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            if behind.exists():
                behind.replace(path)

    async def _serve(self, behind, reader, writer):
        self.tasks.add(asyncio.current_task())
        self.connections += 1
        writers = [writer]
        try:
            there, back = await asyncio.open_unix_connection(str(behind))
            writers.append(back)
            ways = [self._pass(reader, back, True), self._pass(there, writer, False)]
            done, rest = await asyncio.wait(map(asyncio.ensure_future, ways), return_when=asyncio.FIRST_COMPLETED)
            for each in rest:
                each.cancel()
            await asyncio.gather(*done, *rest, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                each.transport.abort()
            self.tasks.discard(asyncio.current_task())

    async def _pass(self, reader, writer, forth):
        while message := await self._message(reader):
            self.messages += 1
            match self.fault:
                case Slow(rate):
                    self.struck += 1
                    await self._slowly(writer, message, rate)
                    continue
                case Late(seconds, jitter):
                    self.struck += 1
                    await self._wait(max(0.0, seconds + self.chance.uniform(-jitter, jitter)))
                case Silent(both) if both or forth:
                    self.struck += 1
                    while isinstance(self.fault, Silent):
                        await self.changed.wait()
                    return  # what was swallowed is not made up for: the connection was dead
                case Cut(nth, within):
                    self.left -= 1
                    if self.left <= 0:
                        self.struck, self.left = self.struck + 1, nth
                        writer.write(message[:within])
                        with contextlib.suppress(OSError):
                            await writer.drain()
                        return
            writer.write(message)
            await writer.drain()

    async def _slowly(self, writer, message, rate):
        step = max(1, int(rate / 50))
        for begin in range(0, len(message), step):
            writer.write(message[begin : begin + step])
            await writer.drain()
            await self._wait(step / rate)

    async def _wait(self, seconds):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), seconds)

    async def _message(self, reader):
        """The next one; b"" at the end."""
        try:
            if self.kind == "frames":
                head = await reader.readexactly(HEADER_BYTES)
                found = unseal(memoryview(head))
                assert not isinstance(found, Refusal), found
                return head + await reader.readexactly(found[0].length)
            if self.kind == "control":
                head = await reader.readexactly(4)
                return head + await reader.readexactly(int.from_bytes(head, "little"))
            return await reader.read(1 << 16)
        except (asyncio.IncompleteReadError, OSError):
            return b""
