"""Linear layers in the precisions of weights: fp32, bf16, and int8.

int8 here is one scale per output row, and inputs rounded to int8 with one scale per token while they are multiplied (W8A8):
`torch._int_mm` is then the fastest product that this library has on a CPU, at every batch size. As a token's scale is its own,
its result does not depend on what else is in the batch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import torch
from torch.nn import functional

WIDE_FROM = 16
"""Tokens from which bf16 products are faster through float32 on a CPU without bf16 instructions."""
PACKED = range(3, 48)
"""Tokens at which oneDNN's product with weights in its own order beats the plain one (about 2 times at 8, equal at 64)."""


class Weights(StrEnum):
    """The precision that a role keeps its weights in."""

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"

    @property
    def activations(self) -> torch.dtype:
        """The type of what flows between layers."""
        return torch.bfloat16 if self is Weights.BF16 else torch.float32


class Linear(Protocol):
    """(tokens, in) to (tokens, out)."""

    def __call__(self, values: torch.Tensor) -> torch.Tensor: ...


class PlainLinear:
    """Weights and inputs of one float type."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight.contiguous(), bias

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        return functional.linear(values, self.weight, self.bias)


class PackedLinear(PlainLinear):
    """float32 weights on a CPU, and again in oneDNN's order from the first batch on that is better off with it."""

    _packed: torch.Tensor | None = None

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        if values.shape[0] not in PACKED:
            return super().__call__(values)
        if self._packed is None:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, 8)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(values, self._packed, self.bias, "none", [], "")
        return product


class WidenedLinear(PlainLinear):
    """bf16 weights on a CPU that multiplies them slowly: the same roundings of inputs and outputs, the product in float32."""

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        if values.shape[0] < WIDE_FROM:
            return super().__call__(values)
        bias = None if self.bias is None else self.bias.float()
        return functional.linear(values.float(), self.weight.float(), bias).to(values.dtype)


class Int8Linear:
    """int8 weights with a scale per output row."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        wide = weight.float()
        scales = _scales(wide)
        self.codes = torch.round(wide / scales).clamp_(-127, 127).to(torch.int8).t()
        self.scales = scales[:, 0].contiguous()
        self.bias = None if bias is None else bias.float()

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        scales = _scales(values)
        codes = (values / scales).round_().to(torch.int8)
        product = self._product(codes).float().mul_(scales).mul_(self.scales)
        return product if self.bias is None else product.add_(self.bias)

    def _product(self, codes: torch.Tensor) -> torch.Tensor:
        """CUDA's product wants more than 16 rows."""
        rows = codes.shape[0]
        if codes.is_cuda and rows <= 16:
            return torch._int_mm(functional.pad(codes, (0, 0, 0, 32 - rows)), self.codes)[:rows]
        return torch._int_mm(codes, self.codes)


def _scales(values: torch.Tensor) -> torch.Tensor:
    """What puts the largest magnitude of every row at 127: (rows, 1), never zero."""
    return values.abs().amax(-1, keepdim=True).clamp_(min=1e-30).mul_(1 / 127)


def linear(weight: torch.Tensor, bias: torch.Tensor | None, weights: Weights, device: torch.device) -> Linear:
    """The layer of these weights in a precision, on a device."""
    if weights is Weights.INT8:
        return Int8Linear(weight.to(device), None if bias is None else bias.to(device))
    kept = weight.to(device, weights.activations)
    kept_bias = None if bias is None else bias.to(device, weights.activations)
    if device.type != "cpu":
        return PlainLinear(kept, kept_bias)
    if weights is Weights.BF16:
        return (PlainLinear if torch.cpu._is_avx512_bf16_supported() else WidenedLinear)(kept, kept_bias)
    return (PackedLinear if torch._C._has_mkldnn else PlainLinear)(kept, kept_bias)
