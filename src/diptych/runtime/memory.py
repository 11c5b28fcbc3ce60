"""KV memory of one worker: blocks of every layer as plain bytes, so that a socket can read from them and write into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diptych.boundary.descriptor import KVState, Layout
from diptych.boundary.element import Element
from diptych.boundary.format import Format
from diptych.boundary.layers import LayerKind, Layers
from diptych.boundary.wire_table import Layer
from diptych.errors import Finding, InvalidInput


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


def code_bytes(form: Format, parts: int, heads: int, tokens: int, dim: int) -> int:
    """Bytes of a block's elements, behind which its inline scales begin."""
    return parts * heads * tokens * dim * form.element.bits // 8


def allocate(state: KVState, blocks: int, room: Callable[[int], memoryview] | None = None) -> KVMemory:
    """Zeroed memory for `blocks` blocks of every layer of `state`, one buffer a layer from `room` (by default the process's own).

    Inline scales follow a block's elements in the order of the elements: (parts, heads, tokens) for scales per token.

    Raises:
        InvalidInput: a layout other than LBHNC, or layers without keys and values of one width.
    """
    findings = list(_unstorable(state))
    if findings:
        raise InvalidInput(findings)
    found: dict[int, LayerMemory] = {}
    for entry in state.layers:
        for number in entry.index or range(len(found), len(found) + entry.count):
            found[number] = _layer(state, entry, blocks, room or (lambda size: memoryview(bytearray(size))))
    return KVMemory(tuple(found[number] for number in sorted(found)), blocks, state.storage.block_tokens)


def _layer(state: KVState, entry: Layers, blocks: int, room: Callable[[int], memoryview]) -> LayerMemory:
    dims = entry.parts, entry.kv_heads, state.storage.block_tokens, entry.head_dim
    scales = state.format.scale_bytes(entry, state.storage.block_tokens)
    size = code_bytes(state.format, *dims) + int(scales)
    stride = max(state.storage.page_stride, size)
    return LayerMemory(state.format, *dims, size, stride, room(blocks * stride))


def _unstorable(state: KVState) -> list[Finding]:
    findings = [
        Finding("layers", f"{entry}", "full attention with keys and values of one width")
        for entry in state.layers
        if entry.kind is not LayerKind.FULL or entry.v_head_dim != entry.head_dim
    ]
    if state.storage.layout is not Layout.LBHNC:
        findings.append(Finding("storage.layout", f"is {state.storage.layout}", "LBHNC, as this memory is laid out"))
    return findings
