"""What a request's handler waits for: events of all its answers in order, woken once however many came."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from diptych.runtime.messages import Chosen


@dataclass(frozen=True, slots=True)
class Given:
    """More tokens of answer `choice`."""

    choice: int
    tokens: tuple[Chosen, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Answer `choice` is complete."""

    choice: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Answer `choice` ends without being complete."""

    choice: int
    status: int
    code: str
    message: str
    after: float = 0.0


Event = Given | Done | Lost


class Mailbox:
    """One reader, bounded: `put` says whether the reader keeps up with `limit` tokens unread."""

    __slots__ = ("_events", "_limit", "_unread", "_waiter")

    def __init__(self, limit: int) -> None:
        self._events: deque[Event] = deque()
        self._limit, self._unread = limit, 0
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: Event) -> bool:
        self._events.append(event)
        if type(event) is Given:
            self._unread += len(event.tokens)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return self._unread <= self._limit

    async def take(self) -> list[Event]:
        """Everything that came; waits for something."""
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        events = list(self._events)
        self._events.clear()
        self._unread = 0
        return events
