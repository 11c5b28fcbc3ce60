"""50,000 damaged, cut, spliced, replayed and lying frames: none is accepted wrong, nothing crashes, nothing is written or
allocated that the receiver did not decide on. The oracle is what was really sent and what the table really expects."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_world import World, payload

from diptych.boundary.frame import _FIELDS, FIELD_BYTES, HEADER_BYTES, MAX_MESSAGE, Header, Refusal, seal
from diptych.boundary.receiver import Arrived, Event, Receiver, Refused

Mutation = Callable[[World, bytes, random.Random], bytes]
RECEIVER_BYTES = HEADER_BYTES + MAX_MESSAGE
EDGES = (0, 1, 2, 255, 65535, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def flipped(world: World, frame: bytes, rng: random.Random) -> bytes:
    """One to three bits, in the header as often as anywhere."""
    data = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(rng.choice((HEADER_BYTES, len(data))))] ^= 1 << rng.randrange(8)
    return bytes(data)


def cut(world: World, frame: bytes, rng: random.Random) -> bytes:
    return frame[: rng.randrange(len(frame))]


def doubled_in_part(world: World, frame: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(frame))
    return frame[:at] + frame[rng.randrange(at + 1) :]


def spliced(world: World, frame: bytes, rng: random.Random) -> bytes:
    other = rng.choice(world.sent)
    return frame[: rng.randrange(len(frame))] + other[rng.randrange(len(other)) :]


def swapped_header(world: World, frame: bytes, rng: random.Random) -> bytes:
    return rng.choice(world.sent)[:HEADER_BYTES] + payload(frame)


def garbage(world: World, frame: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 300))


def replayed(world: World, frame: bytes, rng: random.Random) -> bytes:
    return rng.choice(world.sent) * rng.randint(1, 2)


def other_bytes(world: World, frame: bytes, rng: random.Random) -> bytes:
    """Fields changed without a new digest."""
    fields = list(_FIELDS.unpack_from(frame))
    return _FIELDS.pack(*_lied(fields, rng)) + frame[FIELD_BYTES:]


FAULTS: tuple[Mutation, ...] = (flipped, cut, doubled_in_part, spliced, swapped_header, garbage, replayed, other_bytes)


def _lied(fields: list[object], rng: random.Random) -> list[object]:
    """One or two fields of a header with another value that fits them."""
    widths = {1: 16, 2: 8, 3: 8, 4: 64, 6: 64, 7: 32, 8: 32, 9: 32, 10: 16, 11: 8, 12: 8, 13: 64}
    for index in rng.sample(sorted(widths), rng.randint(1, 2)):
        value = rng.choice((*EDGES, int(fields[index]) + 1, int(fields[index]) - 1, rng.randrange(12)))  # type: ignore[call-overload]
        fields[index] = value % (1 << widths[index])
    if rng.random() < 0.2:
        fields[5] = rng.choice((bytes(16), b"\x02" * 16, rng.randbytes(16)))
    return fields


@pytest.mark.parametrize(
    ("seeds", "frames"),
    [
        (range(30), 50_000),
        pytest.param(range(1000, 1600), 1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_no_damaged_frame_is_accepted_wrong(seeds: range, frames: int) -> None:
    """Faults: whatever happens to frames on the way, what is accepted is what was sent, where it was sent to."""
    seen: Counter[str] = Counter()
    mutated = accepted = 0
    for seed in seeds:
        world = World(seed)
        for turn in range(70):
            rng = random.Random(seed * 1000 + turn)
            events, count = _damaged(world, rng)
            mutated += count
            accepted += world.check(events)
            assert world.target.guards_hold()
            seen.update(event.refusal for event in events if isinstance(event, Refused))
    assert mutated >= frames
    assert accepted > frames // 5, "the test must see frames that are right"
    assert len(seen) >= 8, seen


def _damaged(world: World, rng: random.Random) -> tuple[list[Event], int]:
    """A stream in which every other frame is damaged, over a new connection after each that closes; and how many were."""
    receiver, events, mutated = Receiver(world.receiving()), [], 0
    for frame in _stream(world, rng):
        if rng.random() < 0.5:
            frame, mutated = rng.choice(FAULTS)(world, frame, rng), mutated + 1
        events += _fed(receiver, frame, rng)
        if receiver.closed:
            receiver = Receiver(receiver.table)
            receiver.feed(world.sent[0])
    return events + receiver.close(), mutated


def _stream(world: World, rng: random.Random) -> list[bytes]:
    frames = world.sent[1:]
    rng.shuffle(frames)
    return [world.sent[0], *frames, *rng.sample(frames, 20)]


def _fed(receiver: Receiver, data: bytes, rng: random.Random) -> list[Event]:
    at = rng.choice((len(data), rng.randrange(len(data) + 1)))
    return receiver.feed(data[:at]) + receiver.feed(data[at:])


def test_a_lying_sender_writes_and_allocates_only_what_the_table_says() -> None:
    """Liars: headers with any fields and right digests. Only what the reservations expect is taken; nothing else is touched,
    and memory does not grow with what is claimed."""
    world = World(1)
    expected = {
        (each.id, each.epoch, number, group): (layer.dtype, layer.block_bytes, layer.first, len(layer.offsets))
        for each in world.target.reservations
        for number, layer in each.layers.items()
        for group in range(len(layer.groups))
    }
    seen: Counter[str] = Counter()
    receiver = Receiver(world.receiving())
    receiver.feed(world.sent[0])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for turn in range(10_000):
        rng = random.Random(turn)
        header = _consistent(world, Header._make(_lied(list(_FIELDS.unpack_from(rng.choice(world.sent))), rng)), rng)
        body = rng.randbytes(header.length if header.length < 4096 else rng.randrange(64))
        events = receiver.feed(seal(header, (body,)) + body)
        seen.update(event.refusal for event in events if isinstance(event, Refused))
        for event in events:
            if isinstance(event, Arrived):
                dtype, size, first, blocks = expected[header.reservation, header.epoch, header.layer, header.group]
                assert (header.version, header.type, header.flags, header.zero, header.dtype) == (1, 2, 0, 0, dtype)
                assert header.length == header.blocks * size
                assert first <= header.block
                assert header.block + header.blocks <= first + blocks
                pieces = event.reservation.layers[header.layer].pieces(header.group, header.block, header.blocks)
                assert b"".join(map(bytes, pieces)) == body
        receiver.close()
        receiver = Receiver(receiver.table if turn % 50 else world.receiving())
        receiver.feed(world.sent[0])
        assert turn % 50 or world.target.guards_hold()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert peak < 3 * RECEIVER_BYTES, f"{peak:,} bytes"
    assert {Refusal.TOO_LONG, Refusal.WRONG_LENGTH, Refusal.NO_SUCH_BLOCK, Refusal.STALE_EPOCH} <= set(seen), seen


def _consistent(world: World, header: Header, rng: random.Random) -> Header:
    """Half of the lies are made whole: the length is what so many blocks of that layer have."""
    for each in world.target.reservations:
        if each.id == header.reservation and header.layer in each.layers and rng.random() < 0.5:
            return header._replace(length=header.blocks * each.layers[header.layer].block_bytes)
    return header


def test_random_bytes_close_the_connection_and_nothing_more() -> None:
    world = World(2)
    for turn in range(2_000):
        rng = random.Random(turn)
        receiver = Receiver(world.receiving())
        hello = world.sent[0] if turn % 2 else b""
        events = receiver.feed(hello + rng.randbytes(rng.randrange(1, 3000)))
        assert world.check([*events, *receiver.close()]) == turn % 2
        assert world.target.guards_hold()


@given(st.integers(0, 40), st.data())
def test_events_do_not_depend_on_how_the_stream_is_cut(seed: int, data: st.DataObject) -> None:
    """Any split into chunks, copied in or received in place, gives the same events."""
    world = World(seed % 5)
    rng = random.Random(seed)
    stream = b"".join(rng.choice(FAULTS)(world, f, rng) if rng.random() < 0.05 else f for f in _stream(world, rng))
    whole = _told(world, Receiver(world.receiving()), lambda receiver: receiver.feed(stream))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert whole == _told(world, Receiver(world.receiving()), lambda receiver: _copied(receiver, chunks))
    assert whole == _told(world, Receiver(world.receiving()), lambda receiver: _in_place(receiver, chunks))


def _told(world: World, receiver: Receiver, run: Callable[[Receiver], list[Event]]) -> list[str]:
    """Events in words, the end of the connection included, and what the memory is then."""
    events = run(receiver)
    return [_words(event) for event in [*events, *receiver.close()]] + [m.hex() for m, _ in world.target.memories]


def _words(event: Event) -> str:
    about = getattr(event, "reservation", None)
    return repr(event) if isinstance(about, bytes | None) else repr(event).replace(repr(about), about.id.hex())


def _copied(receiver: Receiver, chunks: list[bytes]) -> list[Event]:
    return [event for chunk in chunks for event in receiver.feed(chunk)]


def _in_place(receiver: Receiver, chunks: list[bytes]) -> list[Event]:
    """As `recvmsg_into` does: the buffers are filled one after the other, as far as the chunk goes."""
    events: list[Event] = []
    for chunk in chunks:
        while chunk and (buffers := receiver.buffers()):
            count = 0
            for buffer in buffers:
                step = min(len(buffer), len(chunk) - count)
                buffer[:step] = chunk[count : count + step]
                count += step
            events += receiver.received(count)
            chunk = chunk[count:]
    return events
