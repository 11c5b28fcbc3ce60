"""What the scheduler's side asks of the worker's, and what a prompt that is handed over needs on either side."""

from __future__ import annotations

from dataclasses import dataclass, field

from diptych.boundary.descriptor import KVState
from diptych.boundary.wire_table import Reservation
from diptych.runtime.memory import KVMemory
from diptych.runtime.peer.outflow import Outflow
from diptych.runtime.worker.rewriting import Passage

Key = tuple[bytes, int]
"""A handoff: its id and epoch."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Prefill: a prompt is computed. Keep its blocks until somebody has taken it over or the lease ends."""

    key: Key
    request: str
    blocks: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Decode: get a prompt of `tokens` into these blocks; the first `held_tokens` are there. `refused`: why it must not."""

    key: Key
    request: str
    blocks: tuple[int, ...]
    tokens: int
    held_tokens: int
    doorbell: str
    peer: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Tell:
    """Decode: tell the prefill worker that its prompt is still waited for (`keep`) or never will be read (`drop`)."""

    key: Key
    doorbell: str
    deed: str


@dataclass(slots=True)
class Outgoing:
    """A prompt on its way to one worker."""

    keep: Keep
    across: KVState
    flow: Outflow
    peer: str
    address: str
    until: int
    wire: KVMemory | None
    sent: bool = False


@dataclass(slots=True)
class Incoming:
    """A prompt on its way to this worker."""

    fetch: Fetch
    began: int
    reservation: Reservation | None = None
    passage: Passage | None = None
    staging: KVMemory | None = None
    staged: int = 0
    spoiled: bool = False


@dataclass(slots=True)
class Finished:
    """What vLLM has not been told yet: requests whose blocks are free again, that have arrived, and of these that failed."""

    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
