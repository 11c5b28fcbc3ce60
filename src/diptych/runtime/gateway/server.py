"""The listening side: uvicorn's HTTP with bounds on headers, time and connections, and its errors in our envelope."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import resource
import signal
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from diptych.runtime.gateway.edge import Edge
from diptych.runtime.gateway.http import Receive, Scope, Send
from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.gateway.service import Service
from diptych.runtime.gateway.settings import Limits, Settings

log = logging.getLogger("diptych.gateway")

Application = Callable[[Scope, Receive, Send], Awaitable[None]]
SPARE_FILES = 64
"""File descriptors left for workers and files."""
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


def _without_upgrade(data: bytes) -> bytes:
    """A head whose wish for another protocol is not heard.

    Java's client offers HTTP/2 with every request. A server may pass that over, but the parser takes what follows such a head for
    the other protocol, and the body would be lost.
    """
    end = data.find(b"\r\n\r\n")
    head, rest = (data, b"") if end < 0 else (data[:end], data[end:])
    return _UPGRADE.sub(b"\r\nx-pgrade:", head) + rest


def bounded(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol class for these limits."""
    most = min(limits.connections, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FILES))

    class Bounded(HttpToolsProtocol):
        """Headers are counted and timed as they come, before anything is made of them."""

        _timer: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None
        _head = 0
        _in_head = True

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)  # type: ignore[arg-type]
            if len(self.connections) > most:
                self._refuse(Refusal(503, "too many connections", "too_many_connections", after=1.0))
                return
            self._timer = self.loop.call_later(limits.header_seconds, self._headers_late)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self._in_head:
                self._head += len(data)
                data = _without_upgrade(data)
            super().data_received(data)
            if self._in_head and self._head > limits.header_bytes:
                self._headers_large()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head = True
            if self._timer is None:
                self._head = 0
                self._timer = self.loop.call_later(limits.header_seconds, self._headers_late)

        def on_headers_complete(self) -> None:
            self._stop_timer()
            self._in_head, self._head = False, 0
            if len(self.url) > limits.header_bytes:
                return self._headers_large()
            try:
                super().on_headers_complete()
            except Exception as error:  # an address that cannot be parsed
                log.debug("bad request line: %s", error)
                self.send_400_response("The address is malformed.")
            return None

        def send_400_response(self, msg: str) -> None:
            self._refuse(Refusal(400, "this is not a valid HTTP request", "invalid_http"))

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(limits.write_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._unread is not None:
                self._unread.cancel()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            if self._unread is not None:
                self._unread.cancel()
            super().connection_lost(exc)

        def _headers_late(self) -> None:
            self._timer = None
            self._refuse(Refusal(408, f"no request within {limits.header_seconds:g} s", "header_timeout"))

        def _headers_large(self) -> None:
            self._refuse(Refusal(431, f"headers larger than {limits.header_bytes:,} bytes", "headers_too_large"))

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self, refusal: Refusal) -> None:
            """Say why and close; nothing of the request has reached the application."""
            self._stop_timer()
            if self.transport.is_closing():
                return
            busy = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
            if not busy:
                body = refusal.envelope()
                phrase = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}
                head = b"HTTP/1.1 %d %s\r\n" % (refusal.status, phrase.get(refusal.status, b"Service Unavailable"))
                lines = [
                    (b"content-type", b"application/json"),
                    (b"content-length", b"%d" % len(body)),
                    *refusal.headers(),
                ]
                fields = b"".join(name + b": " + value + b"\r\n" for name, value in lines)
                self.transport.write(head + fields + b"connection: close\r\n\r\n" + body)
            self.transport.close()

    return Bounded


class _Server(uvicorn.Server):
    """Signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


class Serving(Protocol):
    """What listening needs of the service behind an application."""

    settings: Settings

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def drain(self, seconds: float) -> None: ...


class Listening:
    """A gateway that listens: our edge over a service, or another application. `port` is the one it got."""

    def __init__(self, service: Serving, application: Application | None = None) -> None:
        self.service, self.settings = service, service.settings
        self.settings.check()
        if application is None:
            assert isinstance(service, Service)
            application = Edge(service)
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what strangers send is counted, not logged
        self._server = _Server(_config(application, self.settings))
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    async def __aenter__(self) -> Listening:
        await self.service.start()
        self._task = asyncio.get_running_loop().create_task(self._server.serve())
        while not self._server.started:
            if self._task.done():
                await self._task
                raise OSError("the server did not start")
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        await self.service.stop()

    async def until_told(self, drain_seconds: float = 30.0) -> None:
        """Serve until SIGTERM or SIGINT, then finish what is open."""
        told = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told.set)
        await told.wait()
        await self.service.drain(drain_seconds)


def _config(edge: Application, settings: Settings) -> uvicorn.Config:
    limits = settings.limits
    config = uvicorn.Config(
        edge,
        host=settings.host,
        port=settings.port,
        uds=settings.unix or None,
        http=bounded(limits),
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(limits.idle_seconds),
        timeout_graceful_shutdown=5,
        backlog=2048,
    )
    if settings.tls_certificate:
        config.load()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
        config.ssl = context
        config.loaded = True
    return config
