"""The least of HTTP that the edge needs over ASGI: a request with a bounded body, answers whole or in pieces."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.gateway.settings import Limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_ID = re.compile(rb"^[A-Za-z0-9._:-]{1,128}$")


class Gone(Exception):
    """The client left before its request was whole."""


class Request:
    """One request. Headers are looked up in lower case; the first of several counts."""

    def __init__(self, scope: Scope, receive: Receive, limits: Limits) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: bytes = scope["query_string"]
        self.client: tuple[str, int] | None = scope.get("client")
        self.raw: Headers = scope["headers"]
        self.headers = dict(reversed(self.raw))
        self._receive, self._limits = receive, limits

    @property
    def id(self) -> bytes | None:
        """The client's own name for it, to be said back and used for nothing else."""
        said = self.headers.get(b"x-request-id", b"")
        return said if _ID.match(said) else None

    def check_head(self) -> None:
        """Raises Refusal: headers too large, a body that says it is, or two hosts, of which one judges and another routes."""
        if sum(len(name) + len(value) for name, value in self.raw) > self._limits.header_bytes:
            raise Refusal(431, f"the headers are larger than {self._limits.header_bytes:,} bytes", "headers_too_large")
        if sum(name == b"host" for name, _ in self.raw) > 1:
            raise Refusal(400, "a request names one host", "invalid_http")
        said = self.headers.get(b"content-length", b"")
        if said.isdigit() and (len(said) > 18 or int(said) > self._limits.body_bytes):
            raise self._too_large()

    async def body(self) -> bytes:
        """The whole body. Raises Refusal: too large, too slow, encoded; Gone."""
        encoding = self.headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"identity", b""):
            raise Refusal(415, "a body is taken as it is, without content-encoding", "unsupported_encoding")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self._limits.body_bytes:
                        raise self._too_large()
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            seconds = f"{self._limits.body_seconds:g} s"
            raise Refusal(408, f"the body did not come within {seconds}", "body_timeout") from None

    async def left(self) -> None:
        """Returns when the client is gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the body is larger than {self._limits.body_bytes:,} bytes", "body_too_large")


class Response:
    """One answer being sent. `status` is 0 until it has begun."""

    def __init__(self, send: Send, fixed: Headers) -> None:
        self._send, self._fixed = send, fixed
        self.status = 0

    async def whole(
        self, status: int, body: bytes, kind: bytes = b"application/json", more: Headers | None = None
    ) -> None:
        """Everything at once."""
        self.status = status
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *self._fixed, *(more or [])]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(self, refusal: Refusal) -> None:
        """An error; one that leaves the request unread ends the connection."""
        more = refusal.headers()
        if refusal.status in (408, 413, 415, 431):
            more.append((b"connection", b"close"))
        await self.whole(refusal.status, refusal.envelope(), more=more)

    async def begin(self, kind: bytes) -> None:
        """A stream."""
        self.status = 200
        headers = [
            (b"content-type", kind),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *self._fixed,
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def piece(self, body: bytes, last: bool = False) -> None:
        """More of a stream; waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})
