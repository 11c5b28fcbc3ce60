"""Two ends of a connection."""

import socket

import pytest


@pytest.fixture
def pair():
    made = socket.socketpair()
    for each in made:
        each.settimeout(5)
    yield made
    for each in made:
        each.close()
