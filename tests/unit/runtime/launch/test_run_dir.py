"""The private directory of a fleet."""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from diptych.errors import InvalidInput
from diptych.runtime.launch.machine import Machine
from diptych.runtime.launch.run_dir import LOCK, PREFIX, new_token, run_directory, sweep, write_secretly


@pytest.fixture
def tmp_path():
    """One whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


def test_it_is_its_owners_alone_and_gone_at_the_end(tmp_path):
    with run_directory(tmp_path) as made:
        assert made.stat().st_mode & 0o777 == 0o700
        write_secretly(made / "secret", "x")
        assert (made / "secret").stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.iterdir())


def test_it_is_gone_after_an_error_too(tmp_path):
    def fail():
        with run_directory(tmp_path) as made:
            (made / "socket").touch()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not list(tmp_path.iterdir())


def test_what_nobody_holds_is_swept_and_what_somebody_holds_stays(tmp_path):
    dead, alive, other = tmp_path / (PREFIX + "dead"), tmp_path / (PREFIX + "alive"), tmp_path / "something-else"
    for each in (dead, alive, other):
        each.mkdir()
        (each / LOCK).touch()
    (tmp_path / (PREFIX + "link")).symlink_to(other)
    with (alive / LOCK).open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        sweep(tmp_path)
    assert not dead.exists()
    assert alive.exists()
    assert other.exists()


def test_two_fleets_beside_each_other(tmp_path):
    with run_directory(tmp_path) as one, run_directory(tmp_path) as two:
        assert one != two
        assert one.exists()


def test_a_path_too_long_for_sockets_and_a_place_that_is_not_there(tmp_path):
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    with pytest.raises(InvalidInput, match="too long a path"), run_directory(deep):
        pass
    assert not list(deep.iterdir())
    with pytest.raises(InvalidInput), run_directory(tmp_path / "nowhere"):
        pass


def test_a_secret_is_written_for_its_owner_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        path = write_secretly(tmp_path / "new", "secret")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_tokens_differ_and_are_long():
    assert new_token() != new_token()
    assert len(new_token()) >= 32


def test_blocks_fit_the_memory_that_is_free():
    machine = Machine(2, 8 << 30)
    assert machine.blocks(1 << 20, 2) * (1 << 20) * 2 <= machine.memory / 2
    assert Machine(2, 1 << 20).blocks(1 << 20, 2) == 64
