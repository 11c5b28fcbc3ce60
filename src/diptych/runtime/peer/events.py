"""What the threads of connections tell the engine's thread. `dialed`: whether this side made the connection, as sources do."""

from __future__ import annotations

from dataclasses import dataclass

from diptych.boundary.messages import Message


@dataclass(frozen=True, slots=True)
class Heard:
    """A peer said something about a handoff."""

    peer: str
    dialed: bool
    id: bytes
    epoch: int
    message: Message


@dataclass(frozen=True, slots=True)
class Lost:
    """A connection is gone, or could not be made, and everything that was said over it before has been told.

    `link` is its number: there may be another one to the same peer by now.
    """

    peer: str
    dialed: bool
    why: str = ""
    link: int = 0


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A frame came that does not fit the reservation it names: the two sides mean different things by it."""

    id: bytes
    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class Freed:
    """No system call writes into a reservation that was ended any more."""

    id: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class Unread:
    """No system call reads the blocks of a handoff that was stopped any more."""

    id: bytes
    epoch: int


Event = Heard | Lost | Spoiled | Freed | Unread
