"""What the two halves of a joint have in common, and whom they tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from diptych.boundary.descriptor import KVState, Shard
from diptych.boundary.reshard import Piece, reshard_plan
from diptych.boundary.wire_table import WireTable
from diptych.integrations.vllm.settings import Settings
from diptych.runtime.memory import LayerMemory
from diptych.runtime.peer import events
from diptych.runtime.peer.peers import Peers
from diptych.runtime.worker.lingering import Lingering

STALL_MS = 2_000
"""How long a connection may go on with the blocks of a handoff that has ended."""


class Blocks(Protocol):
    """vLLM's blocks, in the order of `state`."""

    @property
    def state(self) -> KVState: ...

    @property
    def heads_total(self) -> int: ...

    def kept(self) -> Blocks: ...

    def narrowed(self, at: int, heads: int) -> Blocks: ...

    def like(self, count: int) -> tuple[LayerMemory, ...]: ...

    def own(self) -> tuple[LayerMemory, ...] | None: ...

    def fence(self) -> Any: ...

    def read(self, layer: int, blocks: Sequence[int], after: Any = None) -> LayerMemory: ...

    def write(self, layer: int, blocks: Sequence[int], memory: LayerMemory) -> None: ...

    def settle(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Rank:
    """Which of a worker's tensor-parallel ranks this is, in whose name `engine` all of them speak."""

    engine: str
    number: int = 0
    ranks: int = 1

    @property
    def name(self) -> str:
        """The worker's name on the wire."""
        return f"{self.engine[:100]}-{self.number}"


def shares(prefill: int, decode: int, kv_heads: int) -> tuple[Piece, ...]:
    """Which rank hands which heads to whom, between so many ranks. Raises InvalidInput where they cannot share them evenly."""
    return reshard_plan(Shard(tp=prefill), Shard(tp=decode), kv_heads)


class Host(Protocol):
    """The joint."""

    rank: Rank
    blocks: Blocks
    kept: Blocks
    kept_own: tuple[LayerMemory, ...] | None
    kept_digest: str
    state: KVState
    settings: Settings
    log: Callable[[str], None]
    peers: Peers
    lingering: Lingering
    table: WireTable
    listening: str
    events: SimpleQueue[events.Event | Callable[[], None] | None]

    def now(self) -> int: ...

    def count(self, **counts: float) -> None: ...

    def tell(
        self, *, sent: str = "", received: str = "", failed: str = "", roomy: str = "", forsaken: str = ""
    ) -> None: ...
