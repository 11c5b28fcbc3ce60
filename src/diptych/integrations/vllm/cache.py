"""vLLM's own blocks as plain bytes and back, and as they are.

In the canonical order a block's elements are gathered by the packing that was found; in vLLM's own order its bytes are taken as
they lie, which is what two workers that keep their blocks alike hand over. On a CPU those lie in the tensor itself, and a socket
reads and writes them there. All else are tensor operations on the tensor's own device, so that a tensor on a GPU takes the same
path; its bytes pass through pinned host memory, behind an event that was recorded when they were computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diptych.boundary.descriptor import KVState
from diptych.errors import Finding, InvalidInput
from diptych.integrations.vllm.packing import Run, name_of, runs_of
from diptych.runtime.memory import LayerMemory, allocate

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
Places = NDArray[np.int64]


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory with the dimensions of a block as they lie there, the widest step first, whatever a backend calls them."""
    steps = tensor.stride()
    return tensor.permute(0, *sorted(range(1, tensor.ndim), key=lambda dim: (-steps[dim], dim)))


@dataclass(frozen=True, slots=True)
class TorchBlocks:
    """One tensor a layer, a block along its first dimension; `places` say where each element of a block of `state` lies.

    `places` is None where blocks are taken as they lie. `heads_total`: KV heads of the model, of which this rank has some.
    """

    tensors: tuple[torch.Tensor, ...]
    places: Places | None
    state: KVState
    heads_total: int
    _runs: tuple[Run, ...] | None = None
    _index: torch.Tensor | None = None

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor], places: Places, state: KVState, heads_total: int = 0) -> TorchBlocks:
        """Tensors of a layer each, all of one packing. Raises InvalidInput where a block's elements do not lie together."""
        whole = tuple(each.view(_WHOLE[each.element_size()]) for each in tensors)
        if not all(each[0].is_contiguous() for each in whole):
            raise InvalidInput(
                Finding("vLLM's KV cache", "blocks lie in pieces", "the elements of a layer's block together")
            )
        return cls(whole, None, state, heads_total or places.shape[1])._ordered(places, state)

    def kept(self) -> TorchBlocks:
        """The same blocks as they lie: for a worker that keeps its own in exactly this order."""
        assert self.places is not None
        storage = replace(self.state.storage, packing=name_of(self.places))
        return TorchBlocks(self.tensors, None, replace(self.state, storage=storage), self.heads_total)

    def narrowed(self, at: int, heads: int) -> TorchBlocks:
        """Some of this rank's heads."""
        assert self.places is not None
        if heads == self.places.shape[1]:
            return self
        layers = tuple(replace(each, kv_heads=heads) for each in self.state.layers)
        return self._ordered(self.places[:, at : at + heads], replace(self.state, layers=layers))

    def like(self, count: int) -> tuple[LayerMemory, ...]:
        """Zeroed host memory for `count` blocks of every layer, in this order."""
        return allocate(self.state, count).layers

    def own(self) -> tuple[LayerMemory, ...] | None:
        """The tensors' own bytes, block by block; None where another order is wanted, or the host does not have them."""
        if self.places is not None or not all(
            each.device.type == "cpu" and each.is_contiguous() for each in self.tensors
        ):
            return None
        return tuple(
            replace(shape, bytes=tensor.view(torch.uint8).reshape(-1).numpy().data)
            for shape, tensor in zip(self.like(0), self.tensors, strict=True)
        )

    def fence(self) -> Any:
        """An event behind the work that was given to the device so far; None where work is done when it is given."""
        if self.tensors[0].device.type == "cpu":
            return None
        event: Any = torch.Event(self.tensors[0].device.type)
        event.record()
        return event

    def read(self, layer: int, blocks: Sequence[int], after: Any = None) -> LayerMemory:
        """Blocks of a layer, in order, in host memory: what lies there after the event `after`."""
        if after is not None:
            after.synchronize()
        shape = self.like(0)[layer]
        host = self._host(shape, len(blocks))
        if self._runs is None or self.tensors[layer].device.type != "cpu":
            taken = self._flat(layer).index_select(0, self._ids(blocks))
            host.copy_(taken if self._index is None else taken.index_select(1, self._index))
        else:
            room = host.view(len(blocks), shape.parts, shape.heads, shape.tokens, shape.dim)
            for at, run in _neighbours(blocks):
                for part in range(shape.parts):
                    room[at : at + len(run), part] = self._part(layer, run, part, shape)
        return replace(shape, bytes=host.view(torch.uint8).reshape(-1).numpy().data)

    def write(self, layer: int, blocks: Sequence[int], memory: LayerMemory) -> None:
        """The first `len(blocks)` blocks of `memory` into these of the layer. They must be nobody else's."""
        flat = self._flat(layer)
        size = len(blocks) * memory.stride
        plain = torch.from_numpy(np.frombuffer(memory.bytes, np.uint8, size)).view(flat.dtype).view(len(blocks), -1)
        if self._runs is None or flat.device.type != "cpu":
            ids, plain = self._ids(blocks), plain.to(flat.device)
            if self._index is None:
                flat.index_copy_(0, ids, plain)
            else:
                flat[ids[:, None], self._index] = plain
            return
        room = plain.view(len(blocks), memory.parts, memory.heads, memory.tokens, memory.dim)
        for at, run in _neighbours(blocks):
            for part in range(memory.parts):
                self._part(layer, run, part, memory).copy_(room[at : at + len(run), part])

    def settle(self) -> None:
        """Wait until what was written is there."""
        if self.tensors[0].device.type != "cpu":
            torch.accelerator.current_stream().synchronize()

    def _ordered(self, places: Places, state: KVState) -> TorchBlocks:
        runs = runs_of(places)
        index = None if runs else torch.from_numpy(places.reshape(-1).copy()).to(self.tensors[0].device)
        if self.tensors[0].device.type != "cpu" or not all(each.is_contiguous() for each in self.tensors):
            runs, index = None, torch.from_numpy(places.reshape(-1).copy()).to(self.tensors[0].device)
        return TorchBlocks(self.tensors, places, state, self.heads_total, runs, index)

    def _part(self, layer: int, blocks: range, part: int, shape: LayerMemory) -> torch.Tensor:
        """Keys or values of neighbouring blocks, as a view of (blocks, heads, tokens, dim)."""
        assert self._runs is not None
        tensor, run = self.tensors[layer], self._runs[part]
        step = tensor[0].numel()
        begin = tensor.storage_offset() + blocks.start * step + run.begin
        return tensor.as_strided((len(blocks), shape.heads, shape.tokens, shape.dim), (step, *run.steps), begin)

    def _flat(self, layer: int) -> torch.Tensor:
        tensor = self.tensors[layer]
        return tensor.view(tensor.shape[0], -1)

    def _ids(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.as_tensor(list(blocks), dtype=torch.int64, device=self.tensors[0].device)

    def _host(self, shape: LayerMemory, count: int) -> torch.Tensor:
        elements = count * shape.stride // self.tensors[0].element_size()
        pinned = self.tensors[0].device.type == "cuda"
        return torch.empty(elements, dtype=self.tensors[0].dtype, pin_memory=pinned).view(count, -1)


def _neighbours(blocks: Sequence[int]) -> list[tuple[int, range]]:
    """Runs of blocks that lie behind one another, each with its place in `blocks`."""
    found: list[tuple[int, range]] = []
    for at, block in enumerate(blocks):
        if found and found[-1][1].stop == block:
            begin, run = found[-1]
            found[-1] = begin, range(run.start, block + 1)
        else:
            found.append((at, range(block, block + 1)))
    return found
