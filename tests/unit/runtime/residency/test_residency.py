"""Tiers below device memory: what is kept comes back, what is damaged or lost is a miss, whatever the disk or the store does."""

from __future__ import annotations

import errno
import os
import random
import socket
import threading
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.runtime.residency import nvme as nvme_module
from diptych.runtime.residency.dram import Dram
from diptych.runtime.residency.nvme import REST, Nvme
from diptych.runtime.residency.remote import GET, HEAD, MAGIC, PUT, Remote
from diptych.runtime.residency.store import Store
from diptych.runtime.residency.tiers import Level, Tiers
from diptych.serving.residency import Retention

SIZE = 96
STATE = b"state"


def key(number: int) -> bytes:
    return sha256(number.to_bytes(4, "little")).digest()


def block(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def pieces(number: int) -> list[memoryview]:
    """A block in three memories, as one of several layers lies."""
    whole = memoryview(block(number))
    return [whole[:10], whole[10:64], whole[64:]]


def read(place, number: int) -> bytes | None:
    room = bytearray(SIZE)
    view = memoryview(room)
    return bytes(room) if place.get(key(number), [view[:50], view[50:]]) else None


@pytest.fixture
def store():
    kept = Store(capacity=SIZE * 8)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    thread = threading.Thread(target=kept.serve, args=(listener,), daemon=True)
    thread.start()
    kept.address, kept.clients = listener.getsockname(), []
    yield kept
    for client in kept.clients:
        client.close()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    kept.close()
    thread.join(5)
    assert not thread.is_alive()


def remote(store, state=STATE, clock=lambda: 0.0) -> Remote:
    client = Remote(lambda: socket.create_connection(store.address, 2), SIZE, state, clock=clock)
    store.clients.append(client)
    return client


@pytest.fixture(params=["dram", "nvme", "remote"])
def place(request, tmp_path, store):
    made = {
        "dram": lambda: Dram(SIZE, 4),
        "nvme": lambda: Nvme(tmp_path, SIZE, STATE),
        "remote": lambda: remote(store),
    }[request.param]()
    yield made
    made.close()


def test_what_was_put_comes_back_and_nothing_else(place) -> None:
    assert read(place, 1) is None
    assert place.put(key(1), pieces(1))
    assert place.put(key(2), pieces(2))
    assert (read(place, 1), read(place, 2), read(place, 3)) == (block(1), block(2), None)
    place.drop(key(1))
    assert read(place, 1) is None
    assert (place.counts.asked, place.counts.found, place.counts.damaged) == (5, 2, 0)


def test_a_full_arena_says_no_and_forgets_nothing() -> None:
    place = Dram(SIZE, 2)
    assert [place.put(key(n), pieces(n)) for n in range(3)] == [True, True, False]
    assert [read(place, n) for n in range(3)] == [block(0), block(1), None]


@pytest.mark.parametrize("at", [0, 10, 70, 90, 100, -1])
def test_a_flipped_byte_on_disk_is_a_miss_wherever_it_is(tmp_path, at) -> None:
    place = Nvme(tmp_path, SIZE, STATE)
    place.put(key(1), pieces(1))
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    found = read(place, 1)
    assert found in (None, block(1))
    if found is None:
        assert (place.counts.damaged, list(place.keys()), file.exists()) == (1, [], False)


@pytest.mark.parametrize("left", [0, 10, 70, 100])
def test_a_torn_file_is_scrubbed_at_the_start(tmp_path, left) -> None:
    Nvme(tmp_path, SIZE, STATE).put(key(1), pieces(1))
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    file.write_bytes(file.read_bytes()[:left])
    (file.parent / "unfinished.new").write_bytes(b"x")
    (file.parent / "stranger").write_bytes(b"x" * 500)
    again = Nvme(tmp_path, SIZE, STATE)
    assert list(again.keys()) == []
    assert list(file.parent.iterdir()) == []


def test_a_file_under_another_blocks_name_is_not_that_block(tmp_path) -> None:
    Nvme(tmp_path, SIZE, STATE).put(key(1), pieces(1))
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    file.rename(file.parent / key(2).hex())
    assert read(Nvme(tmp_path, SIZE, STATE), 2) is None


def test_a_link_is_not_followed(tmp_path) -> None:
    place = Nvme(tmp_path, SIZE, STATE)
    place.put(key(1), pieces(1))
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    outside = tmp_path / "outside"
    outside.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(outside)
    assert list(Nvme(tmp_path, SIZE, STATE).keys()) == []
    assert outside.exists()


def test_what_is_on_disk_is_found_by_the_next_life_of_the_same_state_only(tmp_path) -> None:
    Nvme(tmp_path, SIZE, STATE).put(key(1), pieces(1))
    assert read(Nvme(tmp_path, SIZE, STATE), 1) == block(1)
    assert read(Nvme(tmp_path, SIZE, b"other"), 1) is None
    assert list(Nvme(tmp_path, SIZE * 2, STATE).keys()) == []


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_fails_is_left_alone_for_a_while(tmp_path, monkeypatch, fault) -> None:
    now = [0.0]
    place = Nvme(tmp_path, SIZE, STATE, clock=lambda: now[0])
    place.put(key(1), pieces(1))

    def fail(path: Path, parts: object) -> None:
        path.write_bytes(b"half")
        raise OSError(fault, os.strerror(fault))

    with monkeypatch.context() as patch:
        patch.setattr(nvme_module, "_write", fail)
        assert not place.put(key(2), pieces(2))
        assert place.counts.failed == 1
    assert not place.put(key(2), pieces(2))
    assert read(place, 1) == block(1)
    assert not list(tmp_path.rglob("*.new"))
    now[0] = REST + 1
    assert place.put(key(2), pieces(2))


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    place = Nvme(tmp_path / "file", SIZE, STATE)
    assert not place.put(key(1), pieces(1))
    assert read(place, 1) is None


def test_a_store_keeps_what_was_used_last_and_states_apart(store) -> None:
    one, other = remote(store), remote(store, b"other")
    for number in range(8):
        assert one.put(key(number), pieces(number))
    assert read(one, 0) == block(0)
    assert one.put(key(8), pieces(8))
    assert (read(one, 0), read(one, 1)) == (block(0), None)
    assert read(other, 0) is None
    assert len(store) == 8


def test_a_store_that_is_gone_is_a_miss_and_comes_back(store) -> None:
    now = [0.0]
    place = remote(store, clock=lambda: now[0])
    place.put(key(1), pieces(1))
    store.close()
    assert read(place, 1) is None
    assert read(place, 1) is None
    assert place.counts.failed == 1  # the rest is not asked
    now[0] = 10.0
    assert read(place, 1) == block(1)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100),
        HEAD.pack(b"DPKX", GET, SIZE, key(1)),
        HEAD.pack(MAGIC, 99, SIZE, key(1)),
        HEAD.pack(MAGIC, PUT, 1 << 62, key(1)),
        HEAD.pack(MAGIC, PUT, 0, key(1)),
    ],
)
def test_a_stranger_is_hung_up_on_and_nothing_is_allocated_for_it(store, said) -> None:
    with socket.create_connection(store.address, 2) as stranger:
        stranger.settimeout(2)
        stranger.sendall(said)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert len(store) == 0
    assert remote(store).put(key(1), pieces(1))


def test_a_block_that_arrives_damaged_is_not_kept(store) -> None:
    with socket.create_connection(store.address, 2) as client:
        client.sendall(HEAD.pack(MAGIC, PUT, SIZE, key(1)) + bytes(16) + bytes(SIZE))
        assert client.recv(1) == b"\x00"
    assert len(store) == 0


def levels(tmp_path: Path, first: int, second: int) -> list[Level]:
    return [Level(Dram(SIZE, first), first), Level(Nvme(tmp_path, SIZE, STATE), second)]


def promoted(tiers: Tiers, number: int) -> bytes | None:
    room = bytearray(SIZE)
    return bytes(room) if tiers.promote(key(number), [memoryview(room)]) else None


def test_the_oldest_goes_down_and_out(tmp_path) -> None:
    tiers = Tiers(levels(tmp_path, 2, 2))
    for number in range(5):
        tiers.demote(key(number), pieces(number))
    assert tiers.leading([key(0)]) == 0
    assert tiers.leading([key(1), key(2), key(3), key(4), key(9)]) == 4
    told = {tier.name: tier.used // SIZE for tier in tiers.told()}
    assert told == {"dram": 2, "nvme": 2}
    assert [promoted(tiers, number) for number in range(5)] == [None, block(1), block(2), block(3), block(4)]
    assert promoted(tiers, 4) is None  # a block is in one place
    assert {tier.used for tier in tiers.told()} == {0}


def test_only_what_was_found_before_is_kept_when_the_rule_says_so(tmp_path) -> None:
    tiers = Tiers(levels(tmp_path, 2, 2), Retention.REUSED)
    tiers.demote(key(1), pieces(1))
    assert tiers.leading([key(1)]) == 0


def test_blocks_of_an_earlier_life_are_found_and_the_oldest_go_when_there_is_less_room(tmp_path) -> None:
    first = Tiers([Level(Nvme(tmp_path, SIZE, STATE), 4)])
    for number in range(4):
        first.demote(key(number), pieces(number))
        os.utime(next(tmp_path.rglob(key(number).hex())), ns=(number, number))
    again = Tiers([Level(Nvme(tmp_path, SIZE, STATE), 2)])
    assert [again.leading([key(number)]) for number in range(4)] == [0, 0, 1, 1]
    assert promoted(again, 3) == block(3)


def test_another_workers_blocks_are_found_in_the_shared_store(store) -> None:
    one = Tiers([Level(Dram(SIZE, 1), 1), Level(remote(store), 4)])
    other = Tiers([Level(Dram(SIZE, 1), 1), Level(remote(store), 4)])
    for number in range(3):
        one.demote(key(number), pieces(number))
    assert other.leading([key(0), key(1), key(2)]) == 2
    assert promoted(other, 0) == block(0)
    assert promoted(one, 0) == block(0)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60), st.integers(0, 3), st.integers(0, 3))
def test_whatever_is_demoted_and_promoted_a_block_is_right_or_missing(tmp_path_factory, events, first, second) -> None:
    """Law: what comes back is what was put, and the places hold exactly what the rules say."""
    tiers = Tiers(levels(tmp_path_factory.mktemp("kv"), first, second))
    for is_demotion, number in events:
        if is_demotion:
            tiers.demote(key(number), pieces(number))
        else:
            assert promoted(tiers, number) in (None, block(number))
        for tier, level in zip(tiers._rules.tiers, tiers._levels, strict=True):
            assert set(level.place.keys()) == set(tier.blocks)
            assert len(tier.blocks) <= level.capacity
