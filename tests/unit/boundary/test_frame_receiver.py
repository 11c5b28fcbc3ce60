"""Who may write where, and when: claims, duplicates, ends in the middle, several connections, real sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import chain

import pytest
from wire_parts import HELLO, ID, SIZE, frame, greeted, held, refusals, same, told

from diptych.boundary.element import Element
from diptych.boundary.frame import HEADER_BYTES, MAX_PIECES, Refusal
from diptych.boundary.messages import Commit, Renew
from diptych.boundary.receiver import Arrived, Completed, Event, Freed, Heard, Refused
from diptych.boundary.sender import Sender
from diptych.boundary.wire_table import REMEMBERED, Layer, Reservation, WireTable


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


def whole(source: Reservation) -> bytes:
    return b"".join(chain.from_iterable(Sender().everything(source)))


def test_everything_sent_is_there_and_complete_once() -> None:
    source, target = held(), held(0)
    events = greeted(target).feed(whole(source))
    assert kinds(events) == [Arrived] * 4 + [Completed]
    assert same(target, source)
    assert target.arrived_bytes == target.expected_bytes == 2 * 2 * 4 * SIZE
    assert list(target.missing()) == []


def test_complete_means_distinct_heads_not_bytes() -> None:
    """vllm PR#52516: TP8 to TP1 with 4 KV heads copied 65,536 of 262,144 bytes and was marked ready. Eight ranks send, every head
    twice; whatever is sent how often, the target is complete with the fourth head and not before."""
    size, blocks = 4096, 16
    source = [memoryview(bytearray(os.urandom(size * blocks))) for _ in range(4)]
    target = [memoryview(bytearray(size * blocks)) for _ in range(4)]
    offsets = tuple(range(0, size * blocks, size))
    room = Reservation(ID, 1, {0: Layer(Element.BF16, size, offsets, tuple(target))})
    assert room.expected_bytes == 262_144
    sending = Reservation(ID, 1, {0: Layer(Element.BF16, size, offsets, tuple(source))})
    table = WireTable()
    receivers = [greeted(room, table=table), *(greeted(table=table) for _ in range(7))]
    done = []
    for rank in (0, 1, 2, 3, 4, 5, 7, 6):
        for pieces in Sender().frames(sending, 0, rank // 2, 0, blocks):
            done += [e for e in receivers[rank].feed(b"".join(pieces)) if not isinstance(e, Arrived)]
        assert room.complete == (rank in (7, 6))
        assert room.arrived_bytes == 65_536 * len(
            {r // 2 for r in (0, 1, 2, 3, 4, 5, 7, 6)[: (0, 1, 2, 3, 4, 5, 7, 6).index(rank) + 1]}
        )
    assert kinds(done) == [Refused, Refused, Refused, Completed, Refused]
    assert set(refusals(done)) == {Refusal.DUPLICATE}
    assert target == source


def test_strides_of_both_sides_are_their_own() -> None:
    """sglang#22320: pages padded to 131,072 there and 147,456 here, 131,072 of payload: no byte outside a page's payload."""
    payload, ours, count = 131_072, 147_456, 3
    source = memoryview(bytearray(os.urandom(payload * count)))
    target = memoryview(bytearray(b"\xa5" * (ours * count)))
    theirs = Reservation(ID, 1, {0: Layer(Element.BF16, payload, tuple(range(0, payload * count, payload)), (source,))})
    room = Reservation(ID, 1, {0: Layer(Element.BF16, payload, tuple(range(0, ours * count, ours)), (target,))})
    greeted(room).feed(whole(theirs))
    assert room.complete
    for page in range(count):
        assert target[page * ours : page * ours + payload] == source[page * payload : (page + 1) * payload]
        assert target[page * ours + payload : (page + 1) * ours] == b"\xa5" * (ours - payload)


def test_a_block_that_is_here_is_never_written_again() -> None:
    source, target = held(), held(0)
    receiver = greeted(target)
    receiver.feed(frame(source, block=1, count=2))
    forged = held(0x66)
    assert refusals(receiver.feed(frame(forged, block=1, count=2))) == [Refusal.DUPLICATE]
    assert refusals(receiver.feed(frame(forged, block=0, count=2))) == [Refusal.OVERLAPPING]
    assert refusals(receiver.feed(frame(forged, block=2, count=2))) == [Refusal.OVERLAPPING]
    assert target.layers[0].groups[0][SIZE : 3 * SIZE] == source.layers[0].groups[0][SIZE : 3 * SIZE]
    assert target.layers[0].groups[0][:SIZE] == bytes(SIZE)
    assert target.arrived_bytes == 2 * SIZE


def test_a_damaged_block_may_be_sent_again() -> None:
    source, target = held(), held(0)
    receiver = greeted(target)
    bad = bytearray(frame(source))
    bad[-1] ^= 1
    assert refusals(receiver.feed(bad)) == [Refusal.DAMAGED_BLOCKS]
    assert kinds(receiver.feed(frame(source))) == [Arrived]
    assert target.layers[0].groups[0][:SIZE] == source.layers[0].groups[0][:SIZE]


def test_two_connections_never_write_one_block() -> None:
    source, forged, target = held(), held(0x66), held(0)
    table = WireTable()
    first, second = greeted(target, table=table), greeted(table=table)
    data = frame(source)
    first.feed(data[:-10])
    assert refusals(second.feed(frame(forged))) == [Refusal.BUSY]
    assert kinds(first.feed(data[-10:])) == [Arrived]
    assert target.layers[0].groups[0][:SIZE] == source.layers[0].groups[0][:SIZE]


def test_a_connection_that_is_cut_gives_its_block_back() -> None:
    source, target = held(), held(0)
    table = WireTable()
    first, second = greeted(target, table=table), greeted(table=table)
    first.feed(frame(source)[:-10])
    assert refusals(first.close()) == [Refusal.CUT]
    assert first.close() == []
    assert kinds(second.feed(frame(source))) == [Arrived]
    assert target.writers == 0


@pytest.mark.parametrize("cut", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1])
def test_an_end_within_a_frame_is_told_and_one_between_frames_is_not(cut: int) -> None:
    receiver = greeted(held(0))
    assert receiver.close() == []
    receiver = greeted(held(0))
    receiver.feed(frame(held())[:cut])
    assert refusals(receiver.close()) == [Refusal.CUT]


def test_memory_lent_to_a_read_is_free_only_when_it_has_ended() -> None:
    """The reused-block race: a reservation ends while a read into its memory is under way. Whoever waits for `Freed` before the
    block is used again never sees the old bytes in it."""
    source, target = held(), held(0)
    table = WireTable()
    receiver = greeted(target, table=table)
    receiver.feed(frame(source, count=2)[: HEADER_BYTES + 10])
    lent = receiver.buffers()[0]
    assert table.end(ID, 3) is False
    lent[:5] = b"later"  # the system call that was already waiting
    events = receiver.received(5)
    assert kinds(events) == [Refused, Freed]
    assert refusals(events) == [Refusal.ENDED]
    memory = target.layers[0].groups[0]
    memory[:] = b"\x77" * len(memory)  # used for something else
    receiver.feed(frame(source, count=2)[HEADER_BYTES + 15 :] + frame(source, block=2))
    assert memory == b"\x77" * len(memory)
    assert target.writers == target.arrived_bytes == 0


def test_memory_that_nobody_reads_into_is_free_at_once() -> None:
    source, target = held(), held(0)
    table = WireTable()
    receiver = greeted(target, table=table)
    receiver.feed(frame(source))
    assert table.end(ID, 3) is True
    assert refusals(receiver.feed(frame(source, block=1))) == [Refusal.ENDED]
    assert target.arrived_bytes == SIZE


def test_the_last_of_two_readers_frees() -> None:
    target, table = held(0), WireTable()
    first, second = greeted(target, table=table), greeted(table=table)
    first.feed(frame(held(), block=0)[:-1])
    second.feed(frame(held(), block=1)[:-1])
    assert table.end(ID, 3) is False
    assert Freed not in kinds(first.close())
    assert Freed in kinds(second.feed(b"?"))


def test_an_end_that_comes_with_the_last_byte_is_an_end() -> None:
    target, table = held(0), WireTable()
    receiver = greeted(target, table=table)
    data = frame(held())
    receiver.feed(data[:-1])
    table.end(ID, 3)
    assert kinds(receiver.feed(data[-1:] + told(Commit()))) == [Refused, Freed, Heard]
    assert target.arrived_bytes == 0


def test_epochs_only_rise() -> None:
    table = WireTable()
    assert table.reserve(held(epoch=3)) is None
    assert table.reserve(held(epoch=4)) is Refusal.BUSY
    assert table.end(ID, 2) is Refusal.STALE_EPOCH
    assert table.end(ID, 4) is Refusal.EARLY_EPOCH
    assert table.end(ID, 3) is True
    assert table.end(ID, 3) is Refusal.ENDED
    assert table.reserve(held(epoch=3)) is Refusal.STALE_EPOCH
    assert table.reserve(held(epoch=4)) is None
    assert table.end(b"u" * 16, 0) is Refusal.UNKNOWN_RESERVATION
    assert refusals(greeted(table=table).feed(frame(held(epoch=3)))) == [Refusal.STALE_EPOCH]


def test_what_ended_is_remembered_in_bounded_memory() -> None:
    table = WireTable()
    for number in range(REMEMBERED + 10):
        id = number.to_bytes(16, "big", signed=False)[::-1].replace(bytes(16), b"z" * 16)
        table.reserve(Reservation(id, 1, {}))
        table.end(id, 1)
    assert len(table._ended) == REMEMBERED


def test_handoffs_of_one_connection_do_not_disturb_each_other() -> None:
    sources = [held(id=bytes([n]) * 16, epoch=n) for n in (1, 2, 3)]
    targets = [held(0, id=bytes([n]) * 16, epoch=n) for n in (1, 2, 3)]
    receiver = greeted(*targets)
    senders = [Sender().everything(source) for source in sources]
    for frames in zip(*senders, strict=True):
        receiver.feed(b"".join(chain.from_iterable(frames)))
        receiver.feed(told(Renew(1000), sequence=1))
    assert all(same(target, source) for target, source in zip(targets, sources, strict=True))


def test_nothing_to_wait_for_is_complete_from_the_start() -> None:
    assert Reservation(ID, 1, {}).complete
    assert Reservation(ID, 1, {0: Layer(Element.BF16, SIZE, (), (memoryview(bytearray(8)),))}).complete


@pytest.mark.parametrize(
    ("offsets", "memory"),
    [((0, 32), bytearray(256)), ((0, 256), bytearray(256)), ((-64,), bytearray(256)), ((0, 0), bytearray(256))],
)
def test_blocks_that_overlap_or_reach_out_of_memory_are_a_mistake(offsets: tuple[int, ...], memory: bytearray) -> None:
    with pytest.raises(AssertionError):
        Layer(Element.BF16, SIZE, offsets, (memoryview(memory),))


def test_neighbours_are_one_piece_and_no_system_call_gets_too_many() -> None:
    memory = memoryview(bytearray(SIZE * 2000))
    layer = Layer(Element.BF16, SIZE, (0, 64, 128, 512, 576, 256), (memory,))
    assert [len(piece) for piece in layer.pieces(0, 0, 6)] == [192, 128, 64]
    scattered = Layer(Element.BF16, SIZE, tuple(range(0, SIZE * 2000, 2 * SIZE)), (memory,))
    source, target = Reservation(ID, 1, {0: scattered}), Reservation(ID, 1, {0: scattered})
    assert all(len(pieces) <= MAX_PIECES + 1 for pieces in Sender().everything(source))
    receiver = greeted(target)
    receiver.feed(Sender().blocks(source, 0, 0, 0, 1000)[0])
    assert len(receiver.buffers()) == MAX_PIECES
    receiver = greeted(Reservation(ID, 1, {0: layer}))
    receiver.feed(Sender().blocks(Reservation(ID, 1, {0: layer}), 0, 0, 0, 6)[0])
    assert [len(buffer) for buffer in receiver.buffers()] == [192, 128, 64, HEADER_BYTES], (
        "the next header in the same call"
    )


def pairs() -> Iterator[tuple[socket.socket, socket.socket]]:
    yield socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        yield ours, server.accept()[0]


def test_over_real_sockets() -> None:
    """Unix and TCP: received in place, the next header in the same call."""
    for ours, theirs in pairs():
        source, target = held(blocks=500), held(0, blocks=500)
        receiver, sender = greeted(target), Sender()
        with ours, theirs:
            for pieces in sender.everything(source):
                ours.sendall(b"".join(pieces))
            ours.sendall(sender.message(Commit(), ID, 3))
            ours.shutdown(socket.SHUT_WR)
            events: list[Event] = []
            while buffers := receiver.buffers():
                count = theirs.recvmsg_into(buffers)[0]
                events += receiver.received(count) if count else receiver.close()
        assert same(target, source)
        assert kinds(events) == [Arrived] * 4 + [Completed, Heard]


def test_a_hello_bounds_the_frames_of_the_other_side() -> None:
    frames = list(Sender(max_payload=SIZE).everything(held()))
    assert len(frames) == 2 * 2 * 4
    with pytest.raises(AssertionError, match="64 bytes"):
        next(Sender(max_payload=SIZE - 1).everything(held()))
    assert HELLO.max_payload > SIZE
