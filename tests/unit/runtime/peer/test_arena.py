"""Memory that one worker lends and another reads: what may be mapped, what may be read, and that nothing is left of it."""

import fcntl
import mmap
import os
import re
import socket
import struct
from pathlib import Path

import pytest

from diptych.runtime.peer.arena import SLICE, Arena, Borrowed, borrow, lend_nothing

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
WORD = struct.Struct("<4sHHQ")
PAGE = (Path(__file__).parents[4] / "docs/wire.md").read_text(encoding="utf-8")


@pytest.fixture
def files():
    made = []

    def file(size, seals=SEALS):
        made.append(os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        os.ftruncate(made[-1], size)
        fcntl.fcntl(made[-1], fcntl.F_ADD_SEALS, seals)
        return made[-1]

    yield file
    for each in made:
        os.close(each)


def opened():
    return len(os.listdir("/proc/self/fd"))


def lent(arena, pair):
    arena.lend(pair[0])
    return borrow(pair[1])


def test_what_the_lender_writes_the_borrower_reads(pair):
    arena = Arena()
    rooms = [arena.room(size) for size in (100, 5000, 3 * SLICE)]
    there = lent(arena, pair)
    for room in rooms:
        room[:] = os.urandom(len(room))
        into = memoryview(bytearray(len(room)))
        place = arena.place(room)
        assert b"".join(there.read([place], len(room), [into])) == room == into
    there.close()


@pytest.mark.parametrize("size", [1, 64, 4096, SLICE // 2 + 1])
def test_blocks_come_in_their_order_wherever_they_lie(pair, size):
    arena = Arena()
    room = arena.room(9 * size)
    room[:] = os.urandom(len(room))
    there = lent(arena, pair)
    order = [4, 5, 6, 0, 8, 2]
    memory = memoryview(bytearray(len(order) * size))
    into = [memory[: 2 * size], memory[2 * size :]]
    places = [arena.place(room) + each * size for each in order]
    assert b"".join(there.read(places, size, into)) == memory
    assert memory == b"".join(room[each * size : (each + 1) * size] for each in order)
    there.close()


def test_memory_of_its_own_has_no_place():
    arena = Arena()
    room = arena.room(100)
    assert arena.place(room[20:40]) == arena.place(room) + 20
    assert arena.place(memoryview(bytearray(100))) is None
    assert arena.place(room[:0]) is None


def test_who_lends_nothing_says_so(pair):
    lend_nothing(pair[0])
    assert borrow(pair[1]) is None
    assert lent(Arena(), pair) is None


def test_nobody_but_the_lender_writes_and_nobody_changes_the_size(pair):
    arena = Arena()
    room = arena.room(5000)
    arena.lend(pair[0])
    _, files, _, _ = socket.recv_fds(pair[1], 100, 4)
    with pytest.raises(PermissionError):
        mmap.mmap(files[0], 5000)
    writable = os.open(f"/proc/self/fd/{files[0]}", os.O_RDWR)
    for attempt in (
        lambda: mmap.mmap(writable, 5000),
        lambda: os.ftruncate(writable, 10),
        lambda: os.ftruncate(writable, 10_000_000),
        lambda: os.pwrite(writable, b"x", 0),
    ):
        with pytest.raises(PermissionError):
            attempt()
    for each in (*files, writable):
        os.close(each)
    room[:3] = b"abc"
    assert room[:3] == b"abc"


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW])
def test_what_may_shrink_is_not_mapped(files, seals):
    with pytest.raises(ConnectionError, match="may shrink"):
        Borrowed(files(4096, seals), 4096)


@pytest.mark.parametrize("said", [0, 1, 4095, 4097, 1 << 47, (1 << 64) - 1])
def test_what_has_another_size_is_not_mapped(files, said):
    with pytest.raises(ConnectionError, match="it lends"):
        Borrowed(files(4096), said)


def test_a_file_of_the_disk_is_not_mapped(tmp_path):
    (tmp_path / "file").write_bytes(bytes(4096))
    with (tmp_path / "file").open("rb") as file, pytest.raises(OSError):  # noqa: PT011 - whatever the system says
        Borrowed(file.fileno(), 4096)


GOOD = (b"DPAR", 1, 1, 4096)


@pytest.mark.parametrize(
    ("word", "count"),
    [
        (WORD.pack(*GOOD), 0),
        (WORD.pack(*GOOD), 2),
        (WORD.pack(*GOOD), 40),
        (WORD.pack(b"DPAR", 1, 0, 0), 1),
        (WORD.pack(b"DPKV", 1, 1, 4096), 1),
        (WORD.pack(b"DPAR", 2, 1, 4096), 1),
        (WORD.pack(b"DPAR", 1, 2, 4096), 1),
        (WORD.pack(*GOOD)[:9], 1),
        (b"", 0),
    ],
)
def test_another_word_is_refused_and_its_files_are_closed(pair, files, word, count):
    before = opened()
    given = [files(4096) for _ in range(count)]
    if word:
        socket.send_fds(pair[0], [word], given)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError):
        borrow(pair[1])
    assert opened() == before + count


def test_a_good_word_in_pieces_is_understood(pair, files):
    word = WORD.pack(*GOOD)
    socket.send_fds(pair[0], [word[:3]], [files(4096)])
    pair[0].sendall(word[3:])
    borrow(pair[1]).close()


def test_the_word_is_the_documented_one(pair):
    """Every row of the page's table, read out of a real word."""
    arena = Arena()
    arena.room(5000)
    arena.lend(pair[0])
    word, files, _, _ = socket.recv_fds(pair[1], 100, 4)
    os.close(*files)
    section = PAGE.partition("## Memory that is lent")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", section, re.M)
    found = {name: word[int(at) : int(at) + int(size)] for at, size, name in rows}
    assert b"".join(found.values()) == word
    assert found["magic"] == b"DPAR"
    assert [int.from_bytes(found[name], "little") for name in ("version", "what", "size")] == [1, 1, 5000]
    arena.close()


def test_nothing_is_left_when_both_are_gone(pair):
    def maps():
        with open("/proc/self/maps") as file:
            return sum("diptych-kv" in line for line in file)

    before = maps(), opened()
    arena = Arena()
    room = arena.room(5000)
    there = lent(arena, pair)
    assert maps() == before[0] + 2
    there.close()
    assert maps() == before[0] + 1
    arena.close()
    del room, arena
    assert (maps(), opened()) == before
