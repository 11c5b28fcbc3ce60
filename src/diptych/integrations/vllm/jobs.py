"""What the scheduler's side asks of the worker's, and what a prompt that is handed over needs on either side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from diptych.boundary.descriptor import KVState
from diptych.boundary.wire_table import Reservation
from diptych.integrations.vllm.ticket import Key, Place
from diptych.runtime.memory import KVMemory, LayerMemory
from diptych.runtime.peer.outflow import Outflow
from diptych.runtime.worker.rewriting import Passage


@dataclass(frozen=True, slots=True)
class Make:
    """Prefill, push: a prompt will be computed once decode has room for it. `digest` is over the prompt."""

    key: Key
    request: str
    tokens: int
    digest: str


@dataclass(frozen=True, slots=True)
class Made:
    """Prefill, push: with this step's forward pass the first `tokens` tokens of a prompt are in these blocks."""

    key: Key
    blocks: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Prefill: a prompt is computed. Keep its blocks until everybody has taken it over or the lease ends."""

    key: Key
    request: str
    blocks: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Decode: get a prompt of `tokens` into these blocks; the first `held_tokens` are there. `refused`: why it must not.

    `ranks`: prefill's, who keep it (pull); or `meeting`, where prefill's first rank is asked, which will make it (push).
    """

    key: Key
    request: str
    blocks: tuple[int, ...]
    tokens: int
    held_tokens: int
    digest: str = ""
    ranks: tuple[Place, ...] = ()
    meeting: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Tell:
    """Decode: tell prefill's ranks that a prompt is still waited for (`keep`) or never will be read (`drop`)."""

    key: Key
    doorbells: tuple[str, ...]
    deed: str


@dataclass(slots=True)
class Prompt:
    """A prompt that prefill keeps or makes, for every decode rank that takes a share of it.

    `takers` is known once the first of them has asked; so many of them have room for it (`roomy`), or have taken it over
    (`handed`). `open`: shares that are on their way or may still be read.
    """

    key: Key
    request: str
    tokens: int
    until: int
    digest: str = ""
    blocks: tuple[int, ...] = ()
    is_push: bool = False
    is_whole: bool = False
    is_over: bool = False  # nobody may ask for it any more
    is_freed: bool = False  # vLLM waits for its blocks
    takers: frozenset[int] | None = None
    asked: set[int] = field(default_factory=set)
    open: set[Key] = field(default_factory=set)
    roomy: int = 0
    handed: int = 0
    halted: str = ""  # the request that vLLM has given up

    @property
    def is_asked(self) -> bool:
        """Whether everybody has asked who will."""
        return self.takers is not None and self.asked >= self.takers


@dataclass(slots=True)
class Outgoing:
    """One share of a prompt on its way to one worker.

    `source` gives its blocks, and `own` their bytes where they lie; `wire` is the form that crosses where it is another.
    """

    prompt: Prompt
    source: Any
    own: tuple[LayerMemory, ...] | None
    across: KVState
    flow: Outflow
    peer: str
    address: str
    wire: KVMemory | None
    streamed: list[int] = field(default_factory=list)  # leading blocks of every layer that are on their way
    has_room: bool = False
    frames: int = 0
    sent_bytes: int = 0
    is_sent: bool = False
    link: int = 0  # the connection that it goes by


@dataclass(slots=True)
class Wanted:
    """A prompt on its way to this worker, in as many shares as prefill's ranks hold of it."""

    fetch: Fetch
    began: int
    left: set[Key] = field(default_factory=set)
    writing: set[Key] = field(
        default_factory=set
    )  # shares that ended while bytes of them were still written into blocks
    failed: bool = False


@dataclass(slots=True)
class Incoming:
    """One share of a prompt on its way to this worker, from one of prefill's ranks into some of this one's heads.

    `is_direct`: it is written where it will lie, since both sides keep blocks alike; else into `staging` first.
    """

    wanted: Wanted
    peer: str
    target: Any
    is_direct: bool = False
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
    roomy: set[str] = field(default_factory=set)
    forsaken: set[str] = field(default_factory=set)
