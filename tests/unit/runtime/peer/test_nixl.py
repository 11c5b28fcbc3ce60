"""KV read through NIXL, where it is installed; where it is not, a sentence."""

import importlib.util
import os
import socket
import struct

import pytest

from diptych.errors import InvalidInput
from diptych.runtime.peer.arena import Arena, send_word
from diptych.runtime.peer.nixl import ROOM, Registered

HERE = importlib.util.find_spec("nixl") is not None
with_nixl = pytest.mark.skipif(not HERE, reason="the package nixl is not installed")


@pytest.mark.skipif(HERE, reason="the package nixl is installed")
def test_without_nixl_it_says_so():
    with pytest.raises(InvalidInput, match="needs the package nixl"):
        Registered()


@with_nixl
@pytest.mark.parametrize("size", [64, 4096, 3 * ROOM // 4 + 1])
def test_blocks_come_in_their_order_wherever_they_lie(pair, size):
    lender, reader = Registered(), Registered()
    lender.room(100)
    room = lender.room(9 * size)
    room[:] = os.urandom(len(room))
    lender.lend(pair[0])
    there = reader.borrow(pair[1])
    order = [4, 5, 6, 0, 8, 2]
    memory = memoryview(bytearray(len(order) * size))
    into = [memory[: 2 * size], memory[2 * size :]]
    places = [lender.place(room) + each * size for each in order]
    assert max(places) + size <= there.size
    assert b"".join(map(bytes, there.read(places, size, into))) == memory
    assert memory == b"".join(room[each * size : (each + 1) * size] for each in order)
    there.close()
    lender.close()


@with_nixl
def test_memory_of_its_own_has_no_place():
    lender = Registered()
    room = lender.room(100)
    assert lender.place(room[20:40]) == lender.place(room) + 20
    assert lender.place(memoryview(bytearray(100))) is None


@with_nixl
def test_who_lends_otherwise_is_refused(pair):
    arena = Arena()
    arena.room(100)
    arena.lend(pair[0])
    with pytest.raises(ConnectionError, match="does not say"):
        Registered().borrow(pair[1])


@with_nixl
@pytest.mark.parametrize("said", [struct.pack("<QI", 0, 1 << 30), struct.pack("<QI", 0, 9) + b"no agent!", b""])
def test_metadata_of_no_agent_is_refused(pair, said):
    send_word(pair[0], 2, 100)
    pair[0].sendall(said)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError):
        Registered().borrow(pair[1])
