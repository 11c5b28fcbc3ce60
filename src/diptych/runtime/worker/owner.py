"""Whom handoffs tell what became of a half: the worker's core, and the limits it sets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from diptych.runtime import messages
from diptych.runtime.handoff import deeds
from diptych.runtime.worker.half import Half, Key


@dataclass(frozen=True, slots=True)
class Limits:
    """`pinned`: finished prompts that wait for a target under pull. `stall_ms`: how long a connection may keep given-up blocks.

    `wait_ms`: how long either side waits for the other.
    """

    pinned: int = 32
    wait_ms: int = 60_000
    stall_ms: int = 2_000


class Owner(Protocol):
    """Whom the handoffs tell: the worker's core."""

    def half(self, key: Key) -> Half | None: ...

    def failed(self, half: Half, reason: str, detail: str = "", retry: bool = True, after_ms: int = 0) -> None: ...

    def handed(self, half: Half) -> None: ...

    def activated(self, half: Half, first_token: int) -> None: ...

    def say(self, half: Half, message: messages.Message) -> None: ...

    def later(self, work: Callable[[], None], then: Callable[[], None]) -> None: ...

    def now(self) -> int: ...


def report(owner: Owner, told: deeds.Report) -> None:
    """Tell it that a half failed, if anybody still waits for that half."""
    half = owner.half((told.id, told.epoch))
    if half is not None:
        owner.failed(half, told.reason, told.detail, told.retry, told.after_ms)
