"""A request in virtual time: what the rules know of it, and when things happened to it."""

from __future__ import annotations

from typing import Any, Final

from diptych.serving.handoff import Portable, State
from diptych.serving.request import NO_BLOCKS, Stage

_QUEUED: Final = Stage.QUEUED
_OPEN: Final = State.OPEN


class Request(Portable):
    """A sequence with its timestamps in ps, −1 before they happen.

    `started` its first chunk was scheduled, `first` its first token was computed, `moved` the target owned its KV, `decoding` it
    joined a decode batch. `sent` bytes of its KV left before the whole was computed, `flights` parts are on the way.
    """

    __slots__ = ("arrival", "decoding", "first", "flights", "moved", "retries", "sent", "started")

    def __init__(self, id: int, arrival: int, prompt: int, osl: int, blocks: tuple[Any, ...] = ()) -> None:
        # The fields of Sequence and Portable, written once more: three calls would take longer than the rest of an arrival.
        self.id = id
        self.arrival = arrival
        self.prompt = self.todo = prompt
        self.osl = osl
        self.blocks = blocks
        self.computed = self.generated = self.held = self.shared = self.epoch = self.finish = self.order = (
            self.retries
        ) = 0
        self.sent = self.flights = 0
        self.started = self.first = self.moved = self.decoding = -1
        self.taken = NO_BLOCKS
        self.hands_off = False
        self.stage = _QUEUED
        self.state = _OPEN
        self.source = self.target = self.pinned = self.room = None
