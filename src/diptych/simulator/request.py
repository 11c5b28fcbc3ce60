"""A request in virtual time: what the rules know of it, and when things happened to it."""

from __future__ import annotations

from typing import Any

from diptych.serving.request import Sequence


class Request(Sequence):
    """A sequence with its timestamps (ps, −1 before they happen), its workers and its handoff."""

    __slots__ = ("arrival", "decoded_at", "decoding", "first", "handoff", "moved", "prefilled_at", "retries", "started", "worker")

    def __init__(self, id: int, arrival: int, prompt: int, osl: int, blocks: tuple[Any, ...] = ()) -> None:
        super().__init__(id, prompt, osl, blocks)
        self.arrival = arrival
        self.started = self.first = self.moved = self.decoding = self.prefilled_at = self.decoded_at = -1
        self.retries = 0
        self.handoff: Any = None
        self.worker: Any = None
