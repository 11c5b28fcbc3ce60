"""Which hosts only this machine reaches."""

import pytest

from diptych.hosts import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1"])
def test_this_machine_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", "127.1"])
def test_anything_else_is_reached_from_elsewhere(host: str) -> None:
    assert not is_loopback(host)
