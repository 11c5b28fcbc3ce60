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
        self.scales = inline.view(torch.float32).view(blocks, *dims[:3]) if scaled else None

    def write(self, slots: Slots, values: torch.Tensor) -> None:
        """Store (tokens, 2, heads, dim) values at their slots."""
        if self.scales is not None:
            scales, values = _quantised(values)
            self.scales[slots.block, :, :, slots.place] = scales[..., 0]
        elif (top := _TOP.get(self.form.element)) is not None:
            values = values.clamp(-top, top)
        self.codes[slots.block, :, :, slots.place] = values.to(self.codes.dtype)

    def read(self, table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The blocks of `table` (sequences, blocks), as (2, sequences, heads, blocks · tokens, dim) values."""
        sequences, many = table.shape
        flat = table.reshape(-1)
        codes = torch.index_select(self.codes, 0, flat).view(sequences, many, 2, self.heads, self.size, self.dim)
        room = torch.empty((2, sequences, self.heads, many, self.size, self.dim), dtype=dtype, device=codes.device)
        ordered = codes.permute(2, 0, 3, 1, 4, 5)
        if self.scales is None:
            room.copy_(ordered)
        else:
            scales = torch.index_select(self.scales, 0, flat).view(sequences, many, 2, self.heads, self.size, 1)
            torch.mul(ordered, scales.permute(2, 0, 3, 1, 4, 5), out=room)
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


def over(memory: KVMemory, device: torch.device) -> list[Blocks]:
    """The blocks of every layer of a memory."""
    return [Blocks(layer, memory.blocks, device) for layer in memory.layers]


Room = Callable[[int], memoryview]
