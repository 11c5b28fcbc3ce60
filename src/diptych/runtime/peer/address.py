"""Where a worker is reached: a socket file or a host and port, whether others can, and whether memory is lent there."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from diptych.errors import Finding, InvalidInput
from diptych.hosts import is_loopback

LONGEST_PATH = 100
"""Bytes of a socket file's path that every system takes."""


@dataclass(frozen=True, slots=True)
class Address:
    """`unix:/run/x.sock` or `tcp:HOST:PORT`; `shm:/run/x.sock`, `nixl:/run/x.sock` and `nixl:HOST:PORT` where memory is lent."""

    path: str = ""
    host: str = ""
    port: int = 0
    lends: str = ""

    @classmethod
    def of(cls, text: str) -> Address:
        """Read an address.

        >>> str(Address.of("tcp:127.0.0.1:9000")), Address.of("unix:/tmp/a.sock").is_local
        ('tcp:127.0.0.1:9000', True)

        Raises:
            InvalidInput: none of these forms.
        """
        kind, _, rest = text.partition(":")
        lends = kind if kind in ("shm", "nixl") else ""
        if kind in ("unix", "shm", "nixl") and rest.startswith("/") and len(rest.encode()) <= LONGEST_PATH:
            return cls(path=rest, lends=lends)
        host, _, port = rest.rpartition(":")
        if kind in ("tcp", "nixl") and host and port.isdecimal() and int(port) < 65536:
            return cls(host=host.strip("[]"), port=int(port), lends=lends)
        expected = (
            f"unix:/PATH, shm:/PATH or nixl:/PATH of at most {LONGEST_PATH} bytes, tcp:HOST:PORT or nixl:HOST:PORT"
        )
        raise InvalidInput(Finding("address", f"{text[:120]!r}", expected))

    def __str__(self) -> str:
        if self.path:
            return f"{self.lends or 'unix'}:{self.path}"
        return f"{self.lends or 'tcp'}:{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether it cannot be reached from another machine."""
        return bool(self.path) or is_loopback(self.host)

    def connect(self, seconds: float) -> socket.socket:
        """A connected socket. Raises OSError."""
        if self.path:
            made = socket.socket(socket.AF_UNIX)
            try:
                made.settimeout(seconds)
                made.connect(self.path)
            except OSError:
                made.close()
                raise
        else:
            made = socket.create_connection((self.host, self.port), seconds)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def listen(self) -> socket.socket:
        """A listening socket; a socket file is the owner's alone."""
        if not self.path:
            return socket.create_server((self.host, self.port), family=_family(self.host))
        made = socket.socket(socket.AF_UNIX)
        made.bind(self.path)
        made.listen(64)
        return made


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
