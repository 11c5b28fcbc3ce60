"""Small answers of servers over HTTP: bounded in time and size, from the host that was asked and no other, through no proxy."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from diptych.deploy import bounded_json
from diptych.errors import Finding, InvalidInput

TIMEOUT = 5.0
"""Seconds for one answer, from connecting to its last byte."""
MAX_ANSWER = 8 * 2**20


class Unreachable(Exception):
    """A server that did not answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a server asks for: a key, said as `Authorization: Bearer`, and whose certificates are believed."""

    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None


OPEN = Access()


@dataclass(frozen=True, slots=True)
class Server:
    """One server by its base address, without path, user or password."""

    base: str
    host: str
    port: int
    access: Access = OPEN

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    def place(self, path: str) -> str:
        """Where something was said, for a finding: 'http://p:8100/metrics'."""
        return self.base + path


def server(url: str, where: str = "--live", access: Access = OPEN) -> Server:
    """Read an address such as http://p:8100. Raises InvalidInput for anything but http and https, and for credentials in it."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise InvalidInput(Finding(where, "an address that cannot be read", "http://HOST:PORT")) from None
    if parts.username or parts.password:
        raise InvalidInput(Finding(where, "user and password in an address are not sent", "http://HOST:PORT"))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(Finding(where, f"{parts.scheme or 'no scheme'} is not asked over HTTP", "http://HOST:PORT"))
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Server(f"{parts.scheme}://{host}:{port}", parts.hostname, port, access)


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to the host and port that were asked."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def get(target: Server, path: str, timeout: float = TIMEOUT) -> str | None:
    """The text at a path; None where the server has none (any status but 200). Raises Unreachable."""
    trusting = urllib.request.HTTPSHandler(context=target.access.tls)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _SameHost(), trusting)
    headers = {"Accept": "*/*", "User-Agent": "diptych"}
    if target.access.token:
        headers["Authorization"] = f"Bearer {target.access.token}"
    request = urllib.request.Request(target.place(path), headers=headers)  # noqa: S310
    try:
        with opener.open(request, timeout=timeout) as answer:
            return _bounded(answer, target.place(path), time.monotonic() + timeout)
    except urllib.error.HTTPError:
        return None
    except http.client.RemoteDisconnected:
        raise Unreachable(_closed(target)) from None
    except (http.client.HTTPException, ValueError):  # a broken status line, header or address
        raise Unreachable("the answer is not HTTP") from None
    except OSError as error:  # URLError and TimeoutError among them
        raise Unreachable(_why(getattr(error, "reason", error))) from None


def get_json(target: Server, path: str, timeout: float = TIMEOUT) -> dict[str, Any] | None:
    """The JSON object at a path; None where there is none. Raises Unreachable."""
    text = get(target, path, timeout)
    if text is None:
        return None
    try:
        value = bounded_json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _bounded(answer: Any, place: str, deadline: float) -> str:
    read: list[bytes] = []
    size = 0
    while chunk := answer.read1(2**16):
        size += len(chunk)
        if size > MAX_ANSWER:
            raise Unreachable(f"more than {MAX_ANSWER:,} bytes at {place}")
        if time.monotonic() > deadline:
            raise Unreachable(f"no whole answer in time at {place}")
        read.append(chunk)
    return b"".join(read).decode("utf-8", errors="replace")


def _closed(target: Server) -> str:
    asks = ", as one does that asks for a certificate" if target.base.startswith("https") else ""
    return f"the connection was closed without an answer{asks}"


def _why(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, ConnectionRefusedError):
        return "connection refused"
    return str(getattr(reason, "strerror", "") or reason).split("\n", 1)[0] or "no answer"
