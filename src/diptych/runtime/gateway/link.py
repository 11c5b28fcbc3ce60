"""The control connection to one worker: made, kept, made again. What is said on it is `runtime.messages`."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from typing import cast

from diptych.runtime.messages import (
    NEWEST,
    OLDEST,
    FromWorker,
    Hello,
    Malformed,
    Message,
    decode_at_gateway,
    encode,
    length,
)
from diptych.runtime.peer.address import Address

log = logging.getLogger("diptych.gateway")

MAX_UNSENT = 128 << 20
HELLO_SECONDS = 10.0
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0


class Link(asyncio.Protocol):
    """One connection. `on_message` gets what the worker says, `on_closed` that it is over; a malformed message ends it."""

    def __init__(self, on_message: Callable[[FromWorker], None], on_closed: Callable[[str], None]) -> None:
        self._on_message, self._on_closed = on_message, on_closed
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._why = "the connection ended"
        self._is_over = False
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._transport.set_write_buffer_limits(high=MAX_UNSENT)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        begin, size = 0, len(buffer)
        try:
            while size - begin >= 4 and not self._is_over:
                end = begin + 4 + length(bytes(buffer[begin : begin + 4]))
                if end > size:
                    break
                self._on_message(decode_at_gateway(bytes(buffer[begin + 4 : end])))
                begin = end
        except Malformed as error:
            self.end(f"malformed message: {error}")
        del buffer[:begin]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
            self._on_closed(str(error) if error else self._why)

    def send(self, message: Message) -> bool:
        """Say something; False when it cannot be said. A worker that does not read for long is given up."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > MAX_UNSENT:
            self.end("it does not read what it is sent")
            return False
        transport.write(encode(message))
        return True

    def end(self, why: str) -> None:
        """Close at once; what has come and was not looked at is not looked at any more."""
        self._why, self._is_over = why, True
        if self._transport is not None:
            self._transport.abort()


async def keep(
    address: Address,
    hello: Hello,
    tls: ssl.SSLContext | None,
    made: Callable[[], Link],
) -> None:
    """Connect, say hello, wait for the end, and again, with growing pauses. Runs until it is cancelled."""
    pause = FIRST_WAIT
    while True:
        link = made()
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await _connect(address, tls, link)
            link.send(hello)
            began = asyncio.get_running_loop().time()
            await asyncio.shield(link.closed)
            if asyncio.get_running_loop().time() - began > LONGEST_WAIT:
                pause = FIRST_WAIT
        except (OSError, TimeoutError) as error:
            log.debug("cannot reach %s: %s", address, error)
        finally:
            link.end("the gateway stops")
        await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 - spreads retries
        pause = min(pause * 2, LONGEST_WAIT)


async def _connect(address: Address, tls: ssl.SSLContext | None, link: Link) -> None:
    loop = asyncio.get_running_loop()
    if address.path:
        await loop.create_unix_connection(lambda: link, address.path)
    else:
        name = address.host if tls else None
        await loop.create_connection(lambda: link, address.host, address.port, ssl=tls, server_hostname=name)


def agreed_version(hello: Hello) -> int | None:
    """The newest version that both sides speak, None if there is none."""
    newest = min(NEWEST, hello.newest)
    return newest if newest >= max(OLDEST, hello.oldest) else None
