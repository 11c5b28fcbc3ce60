"""What of one handoff waits to be sent: so that its blocks are reused only when no system call reads them any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from diptych.boundary.sender import Pieces, Sender
from diptych.boundary.wire_table import Reservation


class Outflow:
    """The blocks of one handoff on their way out. The engine's thread adds and stops; the writer's takes."""

    __slots__ = ("_lock", "_told", "epoch", "id", "pending", "stopped")

    def __init__(self, id: bytes, epoch: int, told: Callable[[], None]) -> None:
        self.id, self.epoch = id, epoch
        self.pending = 0
        self.stopped = False
        self._lock, self._told = threading.Lock(), told

    def add(self) -> None:
        """One more run of blocks waits."""
        with self._lock:
            self.pending += 1

    def over(self) -> None:
        """A run is sent or passed over; `told` is called after the last one of an outflow that was stopped."""
        with self._lock:
            self.pending -= 1
            last = self.stopped and not self.pending
        if last:
            self._told()

    def stop(self) -> bool:
        """Send nothing more. True when nothing reads the blocks now; else `told` will be called."""
        with self._lock:
            self.stopped = True
            return not self.pending


@dataclass(frozen=True, slots=True)
class Run:
    """`count` blocks of one layer from `block` on. `memory` gives them as they are to cross, when their turn comes."""

    flow: Outflow
    memory: Callable[[], Reservation]
    layer: int
    block: int
    count: int

    def frames(self, sender: Sender) -> Iterator[Pieces]:
        """Its frames, until the outflow is stopped."""
        if self.flow.stopped:
            return
        held = self.memory()
        for frame in sender.frames(held, self.layer, 0, self.block, self.count):
            if self.flow.stopped:
                return
            yield frame
