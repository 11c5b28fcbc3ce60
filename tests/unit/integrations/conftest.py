"""Ports that nothing listens on."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest


@pytest.fixture
def free_ports() -> Callable[[int], int]:
    """The first of so many ports that follow one another."""

    def find(count: int) -> int:
        for _ in range(100):
            with socket.create_server(("127.0.0.1", 0)) as first:
                port = first.getsockname()[1]
            try:
                for number in range(count):
                    socket.create_server(("127.0.0.1", port + number)).close()
            except OSError:
                continue
            return int(port)
        raise AssertionError("no ports")

    return find
