"""One connection between two workers: a thread that reads into blocks, a thread that writes out of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue

from diptych.boundary import receiver as wire
from diptych.boundary.frame import OLDEST_VERSION, Scope
from diptych.boundary.messages import Disagreement, Hello, Message, agree
from diptych.boundary.receiver import Receiver
from diptych.boundary.sender import Pieces, Sender
from diptych.boundary.wire_table import WireTable
from diptych.runtime.failpoints import hit
from diptych.runtime.peer.arena import Lender, Lent
from diptych.runtime.peer.channel import Channel
from diptych.runtime.peer.events import Event, Freed, Heard, Lost, Spoiled
from diptych.runtime.peer.outflow import Run

HANDSHAKE_S = 5.0
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Said:
    """A message that waits to be sent."""

    id: bytes
    epoch: int
    message: Message


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of a worker have in common. `turn` guards the table: it is not for several threads at once."""

    hello: Hello
    table: WireTable
    turn: threading.Lock
    tell: Callable[[Event], None]


class Link:
    """A connection, from the first word to say until it has ended. It never comes back; another one takes its place."""

    def __init__(self, shared: Shared, peer: str, dialed: bool, reach: Lent | None = None) -> None:
        """`reach`: memory that the peer has lent, for KV whose places it says."""
        self.shared, self.peer, self.dialed = shared, peer, dialed
        self.number, self._point = next(_numbers), f"{shared.hello.speaker}.frame"
        self.ended, self.told = threading.Event(), threading.Event()
        self.life = 0
        self._items: SimpleQueue[Said | Run | None] = SimpleQueue()
        self._sender = Sender(OLDEST_VERSION)
        self._receiver = Receiver(shared.table, shared.turn, reach)
        self._reach = reach
        self._channel: Channel | None = None
        self._gate = threading.Lock()  # nothing is put behind the end

    # --- the engine's thread ----------------------------------------------------------------------------------------

    def put(self, item: Said | Run) -> bool:
        """Send this after everything before it; False when the connection has ended."""
        with self._gate:
            if self.ended.is_set():
                return False
            if isinstance(item, Run):
                item.flow.add()
            self._items.put(item)
            return True

    def shut(self) -> None:
        """End it: blocks under way are dropped, and `Lost` follows."""
        with self._gate:
            self.ended.set()
            channel = self._channel
            self._items.put(None)
        if channel is not None:
            channel.shut()

    # --- its own threads ----------------------------------------------------------------------------------------------

    def lend(self, arena: Lender) -> None:
        """KV that lies in this arena is not sent: frames say where it lies."""
        self._sender.lent = arena.place

    def open(self, channel: Channel) -> str:
        """Exchange hellos; the sentence why not, or nothing. The side that dialed speaks first."""
        with self._gate:
            self._channel = channel
        timer = threading.Timer(HANDSHAKE_S, channel.shut)
        timer.start()
        try:
            if self.dialed:
                self._greet(channel)
            theirs = self._await_hello(channel)
            if isinstance(theirs, str):
                return theirs
            version = agree(self.shared.hello, theirs, theirs.state)
            if isinstance(version, Disagreement):
                return version.why
            if self.dialed and theirs.worker != self.peer:
                return f"{theirs.worker} answers where {self.peer} was expected"
            if not self.dialed:
                self._greet(channel)
        finally:
            timer.cancel()
        self.peer, self.life = theirs.worker, theirs.life
        self._sender.version, self._sender.max_payload = version, theirs.max_payload
        return ""

    def run(self) -> None:
        """Read until the end, beside a thread that writes; then say that it is lost."""
        writer = threading.Thread(target=self._write, name=f"to {self.peer}", daemon=True)
        writer.start()
        why = self._read()
        self.shut()
        writer.join()
        self.give_up(why)

    def give_up(self, why: str) -> None:
        """The end: nothing that waits is sent any more."""
        self.shut()
        while not self._items.empty():
            item = self._items.get()
            if isinstance(item, Run):
                item.flow.over()
        if self._channel is not None:
            self._channel.close()
        if self._reach is not None:
            self._reach.close()
        self.shared.tell(Lost(self.peer, self.dialed, why, self.number))
        self.told.set()

    def _greet(self, channel: Channel) -> None:
        _send_all(channel, [self._sender.message(self.shared.hello)])

    def _await_hello(self, channel: Channel) -> Hello | str:
        while buffers := self._receiver.buffers()[:1]:
            size = channel.receive(buffers)
            for event in self._receiver.received(size) if size else self._receiver.close():
                if isinstance(event, wire.Heard) and isinstance(event.message, Hello):
                    return event.message
                if isinstance(event, wire.Refused):
                    return f"{event.refusal} {event.why}".strip()
        return "it ended before a hello"

    def _read(self) -> str:
        assert self._channel is not None
        try:
            while buffers := self._receiver.buffers():
                size = self._channel.receive(buffers)
                for event in self._receiver.received(size) if size else self._receiver.close():
                    self._tell(event)
            return "it was closed"
        except OSError as error:
            for event in self._receiver.close():
                self._tell(event)
            return str(error)

    def _tell(self, event: wire.Event) -> None:
        match event:
            case wire.Arrived():
                hit(self._point)
            case wire.Heard():
                self.shared.tell(Heard(self.peer, self.dialed, event.reservation, event.epoch, event.message))
            case wire.Freed():
                self.shared.tell(Freed(event.reservation.id, event.reservation.epoch))
            case wire.Refused() if event.refusal.scope is Scope.HANDOFF and event.header is not None:
                self.shared.tell(Spoiled(event.header.reservation, event.header.epoch, str(event.refusal)))

    def _write(self) -> None:
        assert self._channel is not None
        while (item := self._items.get()) is not None:
            try:
                if not self.ended.is_set():
                    self._send(self._channel, item)
            except OSError:
                self.shut()
            finally:
                if isinstance(item, Run):
                    item.flow.over()

    def _send(self, channel: Channel, item: Said | Run) -> None:
        if isinstance(item, Said):
            _send_all(channel, [self._sender.message(item.message, item.id, item.epoch)])
            return
        for frame in item.frames(self._sender):
            hit(self._point)
            _send_all(channel, frame)


def _send_all(channel: Channel, pieces: Pieces) -> None:
    waiting: deque[memoryview] = deque(memoryview(piece) for piece in pieces)
    while waiting:
        sent = channel.send([*waiting])
        while waiting and sent >= len(waiting[0]):
            sent -= len(waiting.popleft())
        if sent:
            waiting[0] = waiting[0][sent:]
