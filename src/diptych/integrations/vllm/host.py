"""What the two halves of a joint have in common, and whom they tell."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from diptych.boundary.descriptor import KVState
from diptych.boundary.wire_table import WireTable
from diptych.integrations.vllm.settings import Settings
from diptych.runtime.memory import LayerMemory
from diptych.runtime.peer import events
from diptych.runtime.peer.peers import Peers

STALL_MS = 2_000
"""How long a connection may go on reading blocks of a handoff that has ended."""


class Blocks(Protocol):
    """vLLM's blocks, in the canonical order of `state`."""

    @property
    def state(self) -> KVState: ...

    def like(self, count: int) -> tuple[LayerMemory, ...]: ...

    def read(self, layer: int, blocks: list[int]) -> LayerMemory: ...

    def write(self, layer: int, blocks: list[int], memory: LayerMemory) -> None: ...


class Host(Protocol):
    """The joint."""

    name: str
    blocks: Blocks
    state: KVState
    settings: Settings
    log: Callable[[str], None]
    peers: Peers
    table: WireTable
    listening: str
    events: SimpleQueue[events.Event | Callable[[], None] | None]

    def now(self) -> int: ...

    def count(self, **counts: float) -> None: ...

    def tell_sent(self, request: str) -> None: ...

    def tell_received(self, request: str, failed: bool = False) -> None: ...
