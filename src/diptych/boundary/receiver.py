"""The receiving end of a connection, without the connection: bytes in, events out, payload straight into the caller's memory.

```
while (buffers := receiver.buffers()):
    count = sock.recvmsg_into(buffers)[0]
    for event in receiver.received(count) if count else receiver.close():
        ...
```
It holds a header's bytes and one message's, whatever a sender claims: 256 KiB, or `MAX_MESSAGE` from the first long message on.
A frame's place and length are checked against the table before its first byte of payload is read. Frames of KV may come in any
order and any number of times; messages come to the caller at most once each.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any, Protocol

import xxhash

from diptych.boundary.frame import (
    FIELD_BYTES,
    HEADER_BYTES,
    MAX_MESSAGE,
    MAX_PIECES,
    NO_RESERVATION,
    FrameType,
    Header,
    Refusal,
    Scope,
    malformed,
    unseal,
)
from diptych.boundary.messages import Hello, Malformed, Message, decode
from diptych.boundary.wire_table import Reservation, WireTable

WINDOW = 1024  # sequence numbers back to which a message that was seen is known (the anti-replay window of RFC 4303)
_SLICE = (
    1 << 17
)  # bytes copied before they are digested, so that they are still in the cache; bytes passed over at once


@dataclass(frozen=True, slots=True)
class Arrived:
    """A run of blocks is here and right."""

    reservation: Reservation
    layer: int
    group: int
    block: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Completed:
    """Exactly the expected bytes of a reservation are here. Said once."""

    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Heard:
    """A message, about a reservation under an epoch (zeros when it is about the connection)."""

    reservation: bytes
    epoch: int
    message: Message


@dataclass(frozen=True, slots=True)
class Refused:
    """A frame that was not taken, and why; its header where there was one."""

    refusal: Refusal
    header: Header | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Freed:
    """The memory of a reservation that was ended while this connection held some of it is its owner's again."""

    reservation: Reservation


Event = Arrived | Completed | Heard | Refused | Freed


class Reach(Protocol):
    """Memory of the other side that this one reads for itself: `size` bytes, agreed on before the first frame."""

    size: int

    def read(self, places: Sequence[int], size: int, into: Sequence[memoryview]) -> Iterable[memoryview]:
        """Put the `size` bytes at each of these places into memory, in order; what is there now, piece by piece.

        Every place lies within. Raises OSError when the other side is gone.
        """
        ...


class _Phase(IntEnum):
    HEADER = 0
    BLOCKS = 1
    PLACES = 2
    MESSAGE = 3
    PASSING_OVER = 4


class _Seen:
    """Which of the last `WINDOW` sequence numbers belonged to a message that was taken."""

    __slots__ = ("bits", "highest")

    def __init__(self) -> None:
        self.highest, self.bits = -1, 0

    def advance(self, number: int) -> None:
        """A frame of this number has come."""
        ahead = number - self.highest
        if ahead > 0:
            self.bits = self.bits << ahead & ((1 << WINDOW) - 1) if ahead < WINDOW else 0
            self.highest = number

    def is_new(self, number: int) -> bool:
        """Whether a message of this number may be taken: not seen, and not so old that nobody knows."""
        self.advance(number)
        behind = self.highest - number
        if behind >= WINDOW or self.bits >> behind & 1:
            return False
        self.bits |= 1 << behind
        return True


class Receiver:
    """One direction of one connection. `table` is shared with the other connections of this side, a `turn` at a time.

    KV is copied and digested outside of turns. `reach` is the other side's memory, where frames may say places in it.
    """

    __slots__ = (
        "_digest", "_expected", "_head", "_header", "_hello", "_left", "_open", "_phase", "_pieces", "_reach", "_reservation",
        "_scratch", "_seen", "_turn", "closed", "table",
    )  # fmt: skip

    def __init__(
        self, table: WireTable, turn: AbstractContextManager[Any] | None = None, reach: Reach | None = None
    ) -> None:
        self.table, self._turn, self._reach = table, turn or nullcontext(), reach
        self._pieces: list[memoryview] = []  # where KV goes that is read from the other side's memory
        self.closed = False
        self._head = memoryview(bytearray(HEADER_BYTES))
        self._scratch = memoryview(bytearray(_SLICE))
        self._open: deque[memoryview] = deque()  # what the phase still waits for, in order
        self._left = 0  # bytes to pass over beyond that
        self._seen = _Seen()
        self._hello = False
        self._header: Header | None = None
        self._reservation: Reservation | None = None
        self._digest: Any = None
        self._expected = b""
        self._begin()

    def buffers(self) -> list[memoryview]:
        """Where the next bytes go, in order; empty when the connection must be closed. They may be filled in part."""
        if self.closed:
            return []
        if len(self._open) >= MAX_PIECES:
            return [*islice(self._open, MAX_PIECES)]
        ahead = self._phase is not _Phase.HEADER and not self._left
        return [*self._open, self._head] if ahead else [*self._open]

    def received(self, count: int) -> list[Event]:
        """`count` bytes were put into `buffers()`. What follows from them."""
        events: list[Event] = []
        while True:
            count = self._take(count)
            if self._open:
                break
            self._finish(events)
            if self.closed:
                return events
        if self._reservation is not None and not self._reservation.live:
            left = sum(map(len, self._open))
            self._open.clear()
            self._refuse(events, Refusal.ENDED, left=left)
        return events

    def feed(self, data: bytes | bytearray | memoryview) -> list[Event]:
        """The same for bytes that are somewhere else: they are copied to where they belong. After a close they are ignored."""
        events: list[Event] = []
        view = memoryview(data).cast("B")
        while view and not self.closed:
            count = self._fill(view[:_SLICE])
            events += self.received(count)
            view = view[count:]
        return events

    def _fill(self, data: memoryview) -> int:
        count = 0
        for piece in self._open:
            step = min(len(piece), len(data) - count)
            piece[:step] = data[count : count + step]
            count += step
            if count == len(data):
                break
        return count

    def close(self) -> list[Event]:
        """The connection has ended, and no read is under way any more. The blocks of a frame under way are missing again."""
        events: list[Event] = []
        if not self.closed and (self._phase is not _Phase.HEADER or len(self._open[0]) < HEADER_BYTES):
            events.append(Refused(Refusal.CUT, self._header))
        self._shut(events)
        return events

    def _begin(self) -> None:
        self._phase, self._digest, self._header = _Phase.HEADER, None, None
        self._open.append(self._head)

    def _take(self, count: int) -> int:
        """Account for bytes that have arrived; the rest belongs to the next phase."""
        digest, waiting = self._digest, self._open
        while count and waiting:
            piece = waiting.popleft()
            if count < len(piece):
                waiting.appendleft(piece[count:])
                piece = piece[:count]
            count -= len(piece)
            if digest is not None:
                digest.update(piece)
        return count

    def _finish(self, events: list[Event]) -> None:
        """The phase has all that it waited for."""
        if self._phase is _Phase.HEADER:
            self._read_header(events)
            return
        if self._phase is _Phase.BLOCKS:
            self._read_blocks(events)
        elif self._phase is _Phase.PLACES:
            self._read_places(events)
        elif self._phase is _Phase.MESSAGE:
            self._read_message(events)
        if self._left:
            self._pass_over()
        elif not self.closed:
            self._begin()

    def _read_header(self, events: list[Event]) -> None:
        found = unseal(self._head)
        if isinstance(found, Refusal):
            self._refuse(events, found)
            return
        self._header, self._expected = found
        refusal = malformed(self._header)
        if refusal is None and self._header.type == FrameType.PLACES and self._reach is None:
            refusal = Refusal.UNKNOWN_TYPE
        if refusal is not None:
            self._refuse(events, refusal)
        elif self._header.type == FrameType.MESSAGE:
            self._expect_message(events, self._header)
        else:
            self._expect_blocks(events, self._header)

    def _expect_message(self, events: list[Event], header: Header) -> None:
        if not self._seen.is_new(header.sequence):
            self._refuse(events, Refusal.REPLAYED, left=header.length)
            return
        self._expect(_Phase.MESSAGE, [self._room(header.length)])

    def _room(self, size: int) -> memoryview:
        """Where a payload goes that is the receiver's own to read."""
        if size > len(self._scratch):
            self._scratch = memoryview(bytearray(MAX_MESSAGE))
        return self._scratch[:size]

    def _expect_blocks(self, events: list[Event], header: Header) -> None:
        self._seen.advance(header.sequence)
        if not self._hello:
            self._refuse(events, Refusal.NO_HELLO)
            return
        with self._turn:
            reservation = self.table.find(header)
            pieces = reservation if isinstance(reservation, Refusal) else reservation.claim(header)
        if isinstance(pieces, Refusal):
            self._refuse(events, pieces, left=header.length)
            return
        assert isinstance(reservation, Reservation)
        self._reservation = reservation
        if header.type == FrameType.PLACES:
            self._pieces = pieces
            self._expect(_Phase.PLACES, [self._room(header.length)])
        else:
            self._expect(_Phase.BLOCKS, pieces)

    def _expect(self, phase: _Phase, pieces: list[memoryview]) -> None:
        self._phase = phase
        self._digest = xxhash.xxh3_128(self._head[:FIELD_BYTES])
        self._open.extend(piece for piece in pieces if piece)

    def _read_places(self, events: list[Event]) -> None:
        """Where the blocks lie is known: they are read from there. A place outside is damage, like bytes that are others."""
        header, reservation, reach = self._header, self._reservation, self._reach
        assert header is not None
        assert reservation is not None
        assert reach is not None
        size, pieces = reservation.layers[header.layer].block_bytes, self._pieces
        self._pieces = []
        places = struct.unpack_from(f"<{header.blocks}Q", self._scratch)
        inside = max(places) + size <= reach.size
        for piece in reach.read(places, size, pieces) if inside else ():
            self._digest.update(piece)
        self._read_blocks(events, inside)

    def _read_blocks(self, events: list[Event], whole: bool = True) -> None:
        header, reservation = self._header, self._reservation
        assert header is not None
        assert reservation is not None
        here = whole and self._digest.digest() == self._expected
        with self._turn:
            live = reservation.live
            if live:
                reservation.settle(header, here)
                complete = reservation.complete
        if not live:
            self._refuse(events, Refusal.ENDED)
            return
        self._reservation = None
        if not here:
            self._refuse(events, Refusal.DAMAGED_BLOCKS)
            return
        events.append(Arrived(reservation, header.layer, header.group, header.block, header.blocks))
        if complete:
            events.append(Completed(reservation))

    def _read_message(self, events: list[Event]) -> None:
        header = self._header
        assert header is not None
        if self._digest.digest() != self._expected:
            self._refuse(events, Refusal.DAMAGED_MESSAGE)
            return
        message = decode(self._scratch[: header.length])
        hello = isinstance(message, Hello)
        if isinstance(message, Malformed):
            self._refuse(events, Refusal.BAD_MESSAGE, message.why)
        elif hello != (header.reservation == NO_RESERVATION):
            self._refuse(events, Refusal.BAD_MESSAGE, "a hello is about no reservation, everything else about one")
        elif not hello and not self._hello:
            self._refuse(events, Refusal.NO_HELLO)
        else:
            self._hello = True
            events.append(Heard(header.reservation, header.epoch, message))

    def _refuse(self, events: list[Event], refusal: Refusal, why: str = "", left: int = 0) -> None:
        """Say so, and pass over `left` bytes of the frame, or shut."""
        events.append(Refused(refusal, self._header, why))
        if refusal.scope is Scope.CONNECTION:
            self._shut(events)
            return
        self._let_go(events)
        self._phase, self._digest, self._left = _Phase.PASSING_OVER, None, left
        self._pass_over()

    def _pass_over(self) -> None:
        step = min(self._left, _SLICE)
        self._left -= step
        if step:
            self._open.append(self._scratch[:step])

    def _let_go(self, events: list[Event]) -> None:
        """Give a claim up: the blocks are missing again, and their memory is free if their reservation has ended."""
        reservation, self._reservation = self._reservation, None
        if reservation is None:
            return
        assert self._header is not None
        with self._turn:
            reservation.settle(self._header, here=False)
            freed = not reservation.live and not reservation.writers
        if freed:
            events.append(Freed(reservation))

    def _shut(self, events: list[Event]) -> None:
        self._let_go(events)
        self._open.clear()
        self._left, self.closed = 0, True
