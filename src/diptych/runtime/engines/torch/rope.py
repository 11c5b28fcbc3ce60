"""The rotary embedding, in the order of halves that Hugging Face checkpoints use."""

from __future__ import annotations

import math

import torch

from diptych.runtime.engines.torch.shape import Rope


def frequencies(rope: Rope, head_dim: int, factors: torch.Tensor | None = None) -> torch.Tensor:
    """How far each pair turns per position: (head_dim / 2,), float32.

    Scaling: 'linear' divides all; 'llama3' divides the slow ones and blends between (Llama 3.1's release, as in transformers).
    """
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if factors is not None:
        return plain / factors
    if rope.kind == "linear":
        return plain / rope.numbers["factor"]
    return _llama3(plain, rope) if rope.kind == "llama3" else plain


def _llama3(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    factor, low, high, original = (
        rope.numbers[name]
        for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    wavelength = 2 * math.pi / plain
    slow = torch.where(wavelength > original / low, plain / factor, plain)
    share = (original / wavelength - low) / (high - low)
    blended = (1 - share) * slow / factor + share * slow
    between = (wavelength >= original / high) & (wavelength <= original / low)
    return torch.where(between, blended, slow)


class Rotation:
    """Cosines and sines of the positions seen so far, in a table that grows."""

    def __init__(self, turning: torch.Tensor, device: torch.device, dtype: torch.dtype) -> None:
        self._turning, self._device, self._dtype = turning, device, dtype
        self._cos = self._sin = torch.empty(0, device=device)

    def at(self, positions: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines, (tokens, 1, dim) each; no position is above `most`."""
        if most >= self._cos.shape[0]:
            self._grow(1 << max(most + 1, 256).bit_length())
        return self._cos[positions], self._sin[positions]

    def _grow(self, length: int) -> None:
        angle = torch.arange(length).float()[:, None] * self._turning[None]
        cos, sin = angle.cos(), angle.sin()
        self._cos = torch.cat((cos, cos), -1)[:, None].to(self._device, self._dtype)
        self._sin = torch.cat((-sin, sin), -1)[:, None].to(self._device, self._dtype)


def rotate(values: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """(tokens, heads, dim) turned by the angles of its tokens."""
    return torch.addcmul(values * cos, values.roll(values.shape[-1] // 2, -1), sin)
