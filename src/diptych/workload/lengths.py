"""How long prompts and answers are: a joint distribution as weighted points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """A joint distribution of prompt (`isl`), cached prefix (`cached` ≤ isl) and answer (`osl`) lengths, in tokens.

    Each array has shape (n,); `weight` sums to one. Points are requests of a trace or a compressed form of them.
    """

    isl: NDArray[np.float64]
    osl: NDArray[np.float64]
    cached: NDArray[np.float64]
    weight: NDArray[np.float64]

    @classmethod
    def fixed(cls, isl: float, osl: float, cached: float = 0.0) -> Lengths:
        """Every request alike."""
        return cls(np.array([float(isl)]), np.array([float(osl)]), np.array([float(cached)]), np.ones(1))

    def __len__(self) -> int:
        return len(self.isl)

    def mean(self, values: NDArray[np.float64]) -> float:
        """Weighted mean of per-point values."""
        return float(np.dot(self.weight, values))

    @property
    def mean_isl(self) -> float:
        return self.mean(self.isl)

    @property
    def mean_osl(self) -> float:
        return self.mean(self.osl)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens found in a prefix cache."""
        return self.mean(self.cached) / self.mean_isl

    @property
    def max_context(self) -> float:
        return float(np.max(self.isl + self.osl))

    def quantile(self, values: NDArray[np.float64], q: float) -> float:
        """Weighted quantile of per-point values."""
        order = np.argsort(values, kind="stable")
        cumulative = np.cumsum(self.weight[order])
        index = min(int(np.searchsorted(cumulative, q - 1e-12)), len(values) - 1)
        return float(values[order[index]])
