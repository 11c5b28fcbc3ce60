"""What the source of a handoff sends: runs of its blocks as they lie, or rewritten a run at a time in the form that crosses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from diptych.boundary.descriptor import KVState
from diptych.boundary.wire_table import Reservation
from diptych.runtime.memory import KVMemory, LayerMemory, allocate
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.outflow import Outflow, Run
from diptych.runtime.worker.half import Half
from diptych.runtime.worker.rewriting import rewrite_layer
from diptych.serving.batching import Holding
from diptych.serving.blocks import blocks_for

REWRITTEN_AT_ONCE = 64
"""Blocks of a layer that lie in the wire's form at one time."""


@dataclass(slots=True)
class Outgoing:
    """A prompt that this worker computes and hands over. `across` is the state that goes over the wire."""

    half: Half
    address: Address
    across: KVState
    flow: Outflow
    memory: KVMemory
    holding: Holding | None = None
    link: int = 0  # the connection that it uses, by its number
    begun: bool = False
    sent: bool = False
    streamed: int = 0  # leading blocks of every layer that are on their way
    frames: int = 0
    _own: Reservation | None = None
    _wire: KVMemory | None = field(default=None)

    def __post_init__(self) -> None:
        self._wire = None if self.across.format == self.memory.layers[0].form else allocate(self.across, 0)

    @property
    def blocks(self) -> int:
        return blocks_for(self.half.prompt, self.memory.block_tokens)

    @property
    def total_bytes(self) -> int:
        """Bytes that cross when the target has none of it."""
        return self.blocks * (self._wire or self.memory).bytes_per_block

    def begin_again(self, flow: Outflow) -> None:
        """Its blocks are gone; others will come."""
        self.flow, self._own, self.streamed = flow, None, 0

    def runs(self, layer: int, begin: int, end: int) -> Iterator[Run]:
        """Blocks `begin` to `end` of a layer. What is rewritten is so when its turn to be sent comes."""
        if begin >= end:
            return
        self.frames += 1
        if self._wire is None:
            yield Run(self.flow, self._as_it_lies, layer, begin, end - begin)
            return
        for at in range(begin, end, REWRITTEN_AT_ONCE):
            count = min(REWRITTEN_AT_ONCE, end - at)
            yield Run(self.flow, partial(self._rewritten, layer, at, count), layer, at, count)

    def _as_it_lies(self) -> Reservation:
        if self._own is None:
            assert self.half.table is not None
            tables = self.memory.tables(self.half.table.blocks[: self.blocks])
            self._own = Reservation(*self.half.key, dict(enumerate(tables)))
        return self._own

    def _rewritten(self, layer: int, begin: int, count: int) -> Reservation:
        assert self._wire is not None
        assert self.half.table is not None
        room = _room(self._wire.layers[layer], count)
        size = self.memory.block_tokens
        end = min((begin + count) * size, self.half.prompt)
        written = range(-begin, count)  # block `begin` of the sequence is the first here
        rewrite_layer(self.memory.layers[layer], self.half.table.blocks, room, written, begin * size, end)
        return Reservation(*self.half.key, {layer: room.table(range(count), begin)})


def _room(like: LayerMemory, count: int) -> LayerMemory:
    return replace(like, bytes=memoryview(bytearray(count * like.stride)))
