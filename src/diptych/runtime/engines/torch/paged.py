"""KV in blocks, as tensors over the very bytes that sockets read and write.

On a CPU the tensors are views of the memory. On another device they are its own, and `publish` and `fetch` copy blocks between
them and the memory, which is then the staging area that the device can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import NO_SCALES, Format
from diptych.errors import Finding, InvalidInput
from diptych.runtime.memory import KVMemory, LayerMemory, code_bytes

TORCH_DTYPES = {
    Element.FP32: torch.float32,
    Element.BF16: torch.bfloat16,
    Element.FP16: torch.float16,
    Element.E4M3FN: torch.float8_e4m3fn,
    Element.INT8: torch.int8,
}
STORED = {
    "fp32": Format(Element.FP32, NO_SCALES),
    "bf16": Format(Element.BF16, NO_SCALES),
    "fp16": Format(Element.FP16, NO_SCALES),
    "fp8": Format(Element.E4M3FN, Scaling(ScaleSource.UNIT)),
    "int8": Format(Element.INT8, Scaling(ScaleSource.INLINE, ScaleGranularity.TOKEN)),
}
"""The formats this engine keeps KV in, by the names of a precision."""
_TOP = {Element.FP16: 65504.0, Element.E4M3FN: 448.0}
SMALLEST_SCALE = 2.0**-125


def stored_as(name: str) -> Format:
    """The format of a KV precision: fp32, bf16, fp16, fp8 (e4m3fn under a scale of one), int8 (a scale per token and head).

    Raises:
        InvalidInput: another name.
    """
    form = STORED.get("fp8" if name == "e4m3fn" else name)
    if form is None:
        raise InvalidInput(Finding("kv", f"is {name[:40]!r}", ", ".join(STORED)))
    return form


def pinned_room(size: int) -> memoryview:
    """Memory that a CUDA device copies from and to without the CPU's help."""
    return torch.zeros(size, dtype=torch.uint8, pin_memory=True).numpy().data


class Blocks:
    """One layer's blocks on the engine's device.

    `codes`: (blocks, 2, heads, tokens, dim); `scales`, where a format has them inline: (blocks, 2, heads, tokens).
    """

    def __init__(self, layer: LayerMemory, blocks: int, device: torch.device) -> None:
        self.form, self.heads, self.size, self.dim = layer.form, layer.heads, layer.tokens, layer.dim
        self.host = torch.frombuffer(layer.bytes, dtype=torch.uint8).view(blocks, layer.stride)
        self.bytes = self.host if device.type == "cpu" else self.host.to(device)
        self.is_shared = device.type == "cpu"
        dims = layer.parts, layer.heads, layer.tokens, layer.dim
        end = code_bytes(layer.form, *dims)
        self.codes = self.bytes[:, :end].view(TORCH_DTYPES[layer.form.element]).view(blocks, *dims)
        scaled = self.form.scaling.source is ScaleSource.INLINE
        inline = self.bytes[:, end : layer.block_bytes]
        self._tiles = (
            None
            if scaled or layer.stride != end
            else self.bytes.view(-1, layer.tokens * layer.dim * self.codes.itemsize)
        )
        self.scales = inline.view(torch.float32).view(blocks, *dims[:3]) if scaled else None

    def write(self, slots: Slots, values: torch.Tensor) -> None:
        """Store (tokens, 2, heads, dim) values at their slots."""
        if self.scales is not None:
            scales, values = _quantised(values)
            self.scales[slots.block, :, :, slots.place] = scales[..., 0]
        elif (top := _TOP.get(self.form.element)) is not None:
            values = values.clamp(-top, top)
        self.codes[slots.block, :, :, slots.place] = values.to(self.codes.dtype)

    def write_each(self, places: Sequence[tuple[int, int]], values: torch.Tensor) -> None:
        """The same for a few tokens at (block, place in it) each: plain copies cost less than one scattered write."""
        if self.scales is not None:
            scales, values = _quantised(values)
            for (block, place), scale in zip(places, scales[..., 0].unbind(), strict=True):
                self.scales[block, :, :, place].copy_(scale)
        elif (top := _TOP.get(self.form.element)) is not None:
            values = values.clamp(-top, top)
        for (block, place), value in zip(places, values.unbind(), strict=True):
            self.codes[block, :, :, place].copy_(value)

    def read(self, table: Table, dtype: torch.dtype) -> torch.Tensor:
        """The blocks of `table` (sequences, blocks), as (2, sequences, heads, blocks · tokens, dim) values."""
        if self._tiles is not None:
            found = torch.index_select(self._tiles, 0, table.tiles).view(self.codes.dtype)
            sequences, many = table.blocks.shape
            return found.view(2, sequences, self.heads, many * self.size, self.dim).to(dtype)
        return self._read_blocks(table.blocks, dtype)

    def _read_blocks(self, table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        sequences, many = table.shape
        flat = table.reshape(-1)
        codes = torch.index_select(self.codes, 0, flat).view(sequences, many, 2, self.heads, self.size, self.dim)
        room = torch.empty((2, sequences, self.heads, many, self.size, self.dim), dtype=dtype, device=codes.device)
        room.copy_(codes.permute(2, 0, 3, 1, 4, 5))
        if self.scales is not None:
            scales = torch.index_select(self.scales, 0, flat).view(sequences, many, 2, self.heads, self.size, 1)
            room.mul_(scales.permute(2, 0, 3, 1, 4, 5))
        return room.view(2, sequences, self.heads, many * self.size, self.dim)

    def round_trip(self, values: torch.Tensor) -> torch.Tensor:
        """(tokens, 2, heads, dim) values as they would be read back, so that a chunk sees itself as later ones see it."""
        if self.scales is not None:
            scales, codes = _quantised(values)
            return (codes * scales).to(values.dtype)
        if self.codes.dtype == values.dtype:
            return values
        top = _TOP.get(self.form.element)
        return (values if top is None else values.clamp(-top, top)).to(self.codes.dtype).to(values.dtype)

    def publish(self, blocks: Sequence[int]) -> None:
        """Make what the device wrote visible in the memory."""
        if not self.is_shared and blocks:
            some = torch.tensor(sorted(set(blocks)))
            self.host[some] = self.bytes[some.to(self.bytes.device)].cpu()

    def fetch(self, blocks: Sequence[int]) -> None:
        """Take over what others wrote into the memory."""
        if not self.is_shared and blocks:
            some = torch.tensor(sorted(set(blocks)))
            self.bytes[some.to(self.bytes.device)] = self.host[some].pin_memory().to(self.bytes.device)


def _quantised(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and codes of (tokens, 2, heads, dim) values, as the boundary's codec makes them."""
    wide = values.float()
    peak = wide.abs().amax(-1, keepdim=True)
    scales = torch.where(peak > 0, (peak / 127).clamp_(min=SMALLEST_SCALE), 1.0)
    return scales, torch.round(wide * scales.reciprocal()).clamp_(-127, 127)


@dataclass(frozen=True, slots=True)
class Slots:
    """Where tokens lie: their block, and their place in it; (tokens,) each."""

    block: torch.Tensor
    place: torch.Tensor

    @classmethod
    def of(cls, runs: Sequence[tuple[Sequence[int], int, int]], size: int, device: torch.device) -> Slots:
        """Those of runs of tokens, each given by its blocks, first position and length, in blocks of `size`."""
        block: list[int] = []
        place: list[int] = []
        for blocks, start, count in runs:
            for position in range(start, start + count):
                block.append(blocks[position // size])
                place.append(position % size)
        return cls(torch.tensor(block, device=device), torch.tensor(place, device=device))


@dataclass(frozen=True, slots=True)
class Table:
    """The blocks of sequences, (sequences, blocks), and their tiles: of each part and head of each sequence in turn."""

    blocks: torch.Tensor
    tiles: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], heads: int, device: torch.device) -> Table:
        """Short rows are filled with their own last block."""
        most = max(len(row) for row in rows)
        blocks = torch.tensor([[*row, *([row[-1]] * (most - len(row)))] for row in rows], device=device)
        tiles = torch.arange(2 * heads, device=device).view(2, 1, heads, 1) + 2 * heads * blocks[:, None]
        return cls(blocks, tiles.view(-1))


def over(memory: KVMemory, device: torch.device) -> list[Blocks]:
    """The blocks of every layer of a memory."""
    return [Blocks(layer, memory.blocks, device) for layer in memory.layers]


Room = Callable[[int], memoryview]
