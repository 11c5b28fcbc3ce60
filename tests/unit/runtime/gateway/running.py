"""A gateway over fake workers in a thread of its own, for clients that block."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from fake_workers import SMALL, Fleet, fleet


class Running:
    """The fleet, and a way to run something on its loop."""

    def __init__(self, made: Fleet, loop: asyncio.AbstractEventLoop) -> None:
        self.fleet, self.loop = made, loop
        self.url, self.port = made.url, made.port

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def quiet(self) -> None:
        self.call(self.fleet.quiet())


@contextlib.contextmanager
def running(**how: Any) -> Iterator[Running]:
    """`how` goes to `fleet`."""
    started: list[Running] = []
    ready, over = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    async def serve(folder: Path) -> None:
        async with fleet(folder, **({"limits": SMALL} | how)) as made:
            started.append(Running(made, asyncio.get_running_loop()))
            ready.set()
            while not over.is_set():
                await asyncio.sleep(0.02)

    def run(folder: Path) -> None:
        try:
            uvloop.run(serve(folder))
        except BaseException as error:
            failed.append(error)
            ready.set()

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=run, args=(Path(folder),))
        thread.start()
        ready.wait(20)
        try:
            if failed:
                raise failed[0]
            yield started[0]
        finally:
            over.set()
            thread.join(20)
        if failed:
            raise failed[0]


def raw(port: int, *parts: bytes, wait: float = 5.0, pause: float = 0.0) -> bytes:
    """Send bytes and read until the server closes, or it has said all that it announced."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        for part in parts:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(part)
            if pause:
                threading.Event().wait(pause)
        return read_response(connection)


def read_response(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
            head, gap, body = found.partition(b"\r\n\r\n")
            size = next((line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), None)
            if gap and size is not None and len(body) >= int(size.split(b":")[1]):
                break
            if found.endswith(b"0\r\n\r\n"):
                break
    return found


def post(port: int, path: str, body: bytes, *headers: bytes) -> tuple[int, Any]:
    """Status and JSON of a request made of bytes."""
    lines = [b"POST %s HTTP/1.1" % path.encode(), b"host: x", b"content-length: %d" % len(body), *headers]
    return parsed(raw(port, b"\r\n".join(lines) + b"\r\n\r\n" + body))


def parsed(response: bytes) -> tuple[int, Any]:
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 "), response[:200]
    return int(head.split()[1]), json.loads(body) if body.startswith(b"{") else body
