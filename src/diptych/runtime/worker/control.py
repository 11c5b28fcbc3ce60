"""The control socket: gateways say what to do and hear what came of it. asyncio here; KV never passes through."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from diptych.runtime.messages import (
    FromGateway,
    Hello,
    Malformed,
    Ready,
    decode_at_worker,
    encode,
    length,
)
from diptych.runtime.peer.address import Address
from diptych.runtime.worker.commands import EVERYBODY, Command, Gone, Out

HELLO_S = 5.0
MOST_BEHIND = 64 << 20
"""Bytes that a gateway may be behind in reading before its connection is ended."""


@dataclass(frozen=True, slots=True)
class Door:
    """What it takes to come in, and what one is told then."""

    hello: Hello
    ready: Ready
    token: str = ""
    tls: ssl.SSLContext | None = None


class Control:
    """Every gateway's connection, numbered by arrival."""

    def __init__(self, door: Door, tell: Callable[[Command | Gone], None]) -> None:
        self._door, self._tell = door, tell
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._routes = 0
        self._server: asyncio.Server | None = None
        self._loop = asyncio.get_running_loop()

    async def listen(self, address: Address) -> None:
        """Accept gateways from now on. Raises OSError."""
        if address.path:
            self._server = await asyncio.start_unix_server(self._serve, address.path)
        else:
            self._server = await asyncio.start_server(self._serve, address.host, address.port, ssl=self._door.tls)

    async def close(self) -> None:
        """Say what is left to say and end every connection."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers.values()):
            writer.close()
        await asyncio.sleep(0)

    def emit(self, said: Out) -> None:
        """What the engine's thread has to say, in order; called on that thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody hears it any more
            self._loop.call_soon_threadsafe(self._write, said)

    def _write(self, said: Out) -> None:
        parts: dict[int, list[bytes]] = {}
        for route, message in said:
            data = encode(message)
            for number in self._writers if route == EVERYBODY else (route,):
                parts.setdefault(number, []).append(data)
        for number, each in parts.items():
            writer = self._writers.get(number)
            if writer is None:
                continue
            writer.write(b"".join(each))
            if writer.transport.get_write_buffer_size() > MOST_BEHIND:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._routes += 1
        route = self._routes
        try:
            if await self._welcome(reader, writer):
                self._writers[route] = writer
                while True:
                    self._tell(Command(route, await _next(reader)))
        except (asyncio.IncompleteReadError, ConnectionError, Malformed, TimeoutError, asyncio.CancelledError):
            pass  # it ended, or must end
        finally:
            if self._writers.pop(route, None) is not None:
                self._tell(Gone(route))
            writer.close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Hellos; whether this gateway may speak."""
        theirs = await asyncio.wait_for(_next(reader), HELLO_S)
        mine = self._door.hello
        if not isinstance(theirs, Hello) or theirs.role != "gateway":
            return False
        if self._door.token and not hmac.compare_digest(theirs.token.encode(), self._door.token.encode()):
            return False
        writer.write(encode(mine))
        if min(mine.newest, theirs.newest) < max(mine.oldest, theirs.oldest):
            return False  # it sees why in our hello
        writer.write(encode(self._door.ready))
        await writer.drain()
        return True


async def _next(reader: asyncio.StreamReader) -> FromGateway:
    size = length(await reader.readexactly(4))
    return decode_at_worker(await reader.readexactly(size))
