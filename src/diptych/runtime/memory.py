"""KV memory of one worker: blocks of every layer as plain bytes, so that a socket can read from them and write into them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diptych.boundary.element import Element
from diptych.boundary.format import Format
from diptych.boundary.wire_table import Layer


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """One layer's blocks: block `b` is `bytes[b * stride : b * stride + block_bytes]`.

    A block holds (parts, heads, tokens, dim) elements of `form`, keys before values, then its scales where they are inline: the
    layout LBHNC. `tokens` of them fit a block.
    """

    form: Format
    parts: int
    heads: int
    tokens: int
    dim: int
    block_bytes: int
    stride: int
    bytes: memoryview

    @property
    def element(self) -> Element:
        return self.form.element

    def block(self, block: int) -> memoryview:
        """The bytes of one block."""
        begin = block * self.stride
        return self.bytes[begin : begin + self.block_bytes]

    def table(self, blocks: Sequence[int], first: int = 0) -> Layer:
        """These blocks, in order, as a side of a wire; the sequence's block `first` is the first of them."""
        return Layer(
            self.element, self.block_bytes, tuple(block * self.stride for block in blocks), (self.bytes,), first
        )


@dataclass(frozen=True, slots=True)
class KVMemory:
    """All layers of one worker, `blocks` in each; block ids mean the same tokens in every layer."""

    layers: tuple[LayerMemory, ...]
    blocks: int
    block_tokens: int

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return sum(layer.block_bytes for layer in self.layers)

    def tables(self, blocks: Sequence[int], first: int = 0) -> tuple[Layer, ...]:
        """The same blocks of every layer, for a reservation."""
        return tuple(layer.table(blocks, first) for layer in self.layers)
