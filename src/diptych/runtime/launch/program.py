"""One process of a fleet as it is to be run, and how one sees that it serves."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

INHERITED = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR")
INHERITED_PREFIXES = ("LC_", "DIPTYCH_", "CUDA_", "NVIDIA_", "XDG_", "PYTHON")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Turn(IntEnum):
    """When a program starts. They end in the opposite order, so that nobody waits for one that is gone."""

    STORE = 0
    WORKER = 1
    GATEWAY = 2


@dataclass(frozen=True, slots=True)
class Program:
    """`module` with `arguments`, as a process called `name`.

    `serves` asks it, within about a second, whether it does its work; `leaves` are files that a killed one leaves behind. One
    with a `spare` has a second process that has loaded everything and takes over when the first ends: what there is one of.
    """

    name: str
    turn: Turn
    module: str
    arguments: tuple[str, ...]
    serves: Callable[[], bool]
    leaves: tuple[Path, ...] = ()
    threads: int = 1
    more: Mapping[str, str] = field(default_factory=dict)
    spare: bool = False

    def environment(self) -> dict[str, str]:
        """What the process sees of ours: what it needs to run, and no secret that happens to be there."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if (name in INHERITED or name.startswith(INHERITED_PREFIXES)) and "TOKEN" not in name
        }
        return kept | dict.fromkeys(THREADS, str(self.threads)) | dict(self.more)

    def clear(self) -> None:
        """Take away what a predecessor left."""
        for path in self.leaves:
            with suppress(OSError):
                path.unlink()


def listens(path: Path) -> bool:
    """Whether somebody accepts at a socket file."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(1)
        try:
            asking.connect(str(path))
        except OSError:
            return False
        return True


def reach(host: str, port: int, secure: bool, seconds: float) -> http.client.HTTPConnection:
    """To a server of this machine; its certificate is not looked at."""
    if not secure:
        return http.client.HTTPConnection(host, port, timeout=seconds)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=seconds, context=context)


def answers(host: str, port: int, path: str, secure: bool = False, seconds: float = 1.0) -> tuple[int, bytes]:
    """Status and body of a GET at a server of this machine; (0, b"") when there is none."""
    connection = reach(host, port, secure, seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(1 << 20)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
