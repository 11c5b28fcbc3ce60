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

WIDE_FROM = 4
"""Tokens from which bf16 products are faster through float32 on a CPU without bf16 instructions."""


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
        peaks = _peaks(wide)
        codes = torch.round(wide * (127 / peaks)).clamp_(-127, 127)
        self.codes = codes.to(torch.int8).t()
        self.scales = peaks[:, 0] / 127**2  # those of the inputs, which are their peaks, are over 127 as well
        self.bias = None if bias is None else bias.float()

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        peaks = _peaks(values)
        codes = (values * (127 / peaks)).round_().to(torch.int8)
        product = torch._int_mm(codes, self.codes) * peaks
        product.mul_(self.scales)
        return product if self.bias is None else product.add_(self.bias)


def _peaks(values: torch.Tensor) -> torch.Tensor:
    """The largest magnitude of every row, never quite zero: (rows, 1)."""
    peaks: torch.Tensor = torch.linalg.vector_norm(values, torch.inf, -1, keepdim=True)
    return peaks.clamp_(min=1e-30)


def linear(weight: torch.Tensor, bias: torch.Tensor | None, weights: Weights, device: torch.device) -> Linear:
    """The layer of these weights in a precision, on a device."""
    if weights is Weights.INT8:
        return Int8Linear(weight.to(device), None if bias is None else bias.to(device))
    kept = weight.to(device, weights.activations)
    kept_bias = None if bias is None else bias.to(device, weights.activations)
    slow = weights is Weights.BF16 and device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported()
    return WidenedLinear(kept, kept_bias) if slow else PlainLinear(kept, kept_bias)
