"""A byte stream between two workers: many buffers read or written by one call, or one at a time under TLS."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from typing import Protocol

Buffers = list[memoryview]
SEND_BUFFER = 1 << 20
"""Bytes that the system may hold of what is sent: a frame of KV, so that one is digested while the one before is on its way."""


class Channel(Protocol):
    """One thread reads and one writes, at the same time; a third may break it."""

    def receive(self, buffers: Buffers) -> int:
        """Wait for bytes into `buffers`, in order; 0 at the end. Raises OSError."""
        ...

    def send(self, pieces: Buffers) -> int:
        """Send some leading bytes of `pieces`; how many. Raises OSError."""
        ...

    def shut(self) -> None:
        """End it from any thread: both others return at once."""
        ...

    def close(self) -> None:
        """Give the socket back once no thread uses it."""
        ...


class PlainChannel:
    """A Unix socket or TCP: `recvmsg_into` and `sendmsg`."""

    def __init__(self, sock: socket.socket, sends: bool = False) -> None:
        """`sends`: more is sent on it than received. Its reader polls, as a reader that blocks wakes at all that is sent."""
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._sock = sock
        self._poll = select.poll() if sends else None
        if self._poll is not None:
            self._poll.register(sock.fileno(), select.POLLIN)

    def receive(self, buffers: Buffers) -> int:
        if self._poll is not None:
            self._poll.poll()
        return self._sock.recvmsg_into(buffers)[0]

    def send(self, pieces: Buffers) -> int:
        return self._sock.sendmsg(pieces)

    def shut(self) -> None:
        _shut(self._sock)

    def close(self) -> None:
        self._sock.close()


class TlsChannel:
    """TLS over TCP. OpenSSL's state is not for two threads at once: calls never block and take turns, waiting is done outside."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.settimeout(0)
        self._sock, self._turn = sock, threading.Lock()

    def receive(self, buffers: Buffers) -> int:
        while True:
            with self._turn:
                try:
                    return self._sock.recv_into(buffers[0])
                except ssl.SSLWantReadError:
                    wanted = select.POLLIN
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
            self._wait(wanted)

    def send(self, pieces: Buffers) -> int:
        piece = next((each for each in pieces if len(each)), None)
        if piece is None:
            return 0
        while True:
            with self._turn:
                try:
                    return self._sock.send(piece)
                except ssl.SSLWantReadError:
                    wanted = select.POLLIN
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
            self._wait(wanted)

    def shut(self) -> None:
        _shut(self._sock)

    def close(self) -> None:
        self._sock.close()

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._sock.fileno(), event)
        poll.poll(1000)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended already
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
