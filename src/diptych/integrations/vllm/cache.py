"""vLLM's own blocks as plain bytes and back: gathered by the packing that was found, through host memory.

Every call is a tensor operation on the tensor's own device, so that a tensor on a GPU takes the same path; there its bytes pass
through pinned host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diptych.boundary.descriptor import KVState
from diptych.runtime.memory import LayerMemory, allocate

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, slots=True)
class TorchBlocks:
    """One tensor a layer, a block along its first dimension; `places` are those of the canonical order in a flat block."""

    tensors: tuple[torch.Tensor, ...]
    places: torch.Tensor
    state: KVState
    packing: str = ""

    @classmethod
    def of(
        cls, tensors: Sequence[torch.Tensor], places: NDArray[np.int64], state: KVState, packing: str = ""
    ) -> TorchBlocks:
        """Tensors of a layer each, all of one packing."""
        whole = tuple(each.view(_WHOLE[each.element_size()]) for each in tensors)
        return cls(whole, torch.from_numpy(places.reshape(-1)).to(whole[0].device), state, packing)

    def like(self, count: int) -> tuple[LayerMemory, ...]:
        """Zeroed host memory for `count` blocks of every layer, in the canonical order."""
        return allocate(self.state, count).layers

    def read(self, layer: int, blocks: Sequence[int]) -> LayerMemory:
        """Blocks of a layer, in order, in host memory."""
        tensor = self.tensors[layer]
        taken = tensor.index_select(0, self._ids(tensor, blocks)).reshape(len(blocks), -1)
        plain = taken.index_select(1, self.places).contiguous()
        array = _to_host(plain).numpy().view(np.uint8).reshape(-1)
        entry = allocate(self.state, 0).layers[layer]
        return LayerMemory(
            entry.form, entry.parts, entry.heads, entry.tokens, entry.dim, entry.block_bytes, entry.block_bytes,
            memoryview(array.data),
        )  # fmt: skip

    def write(self, layer: int, blocks: Sequence[int], memory: LayerMemory) -> None:
        """The first `len(blocks)` blocks of `memory` into these of the layer. They must be nobody else's."""
        tensor = self.tensors[layer]
        bytes_ = np.frombuffer(memory.bytes, np.uint8, len(blocks) * memory.stride)
        plain = torch.from_numpy(bytes_.copy()).view(tensor.dtype).view(len(blocks), -1).to(tensor.device)
        packed = torch.empty_like(plain)
        packed[:, self.places] = plain
        tensor.index_copy_(0, self._ids(tensor, blocks), packed.view(len(blocks), *tensor.shape[1:]))

    @staticmethod
    def _ids(tensor: torch.Tensor, blocks: Sequence[int]) -> torch.Tensor:
        return torch.as_tensor(list(blocks), dtype=torch.int64, device=tensor.device)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "cpu":
        return tensor
    host: Any = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor)
    return host  # type: ignore[no-any-return]
