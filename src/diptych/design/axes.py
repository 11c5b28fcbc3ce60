"""The axes of one role: accelerator, precision, interconnect, KV residency. Precision belongs to the role, not the system."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.catalog.model import Model


class Role(StrEnum):
    """What a pool does."""

    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"


@dataclass(frozen=True, slots=True)
class Precision:
    """Formats of one role: stored weights, activations (hence the multiply), KV cache.

    Weight-only formats keep 16-bit activations: `Precision(INT4, BF16, BF16)` is W4A16.
    """

    weights: Dtype
    activations: Dtype
    kv: Dtype

    def __str__(self) -> str:
        return f"w={self.weights} a={self.activations} kv={self.kv}"

    @property
    def compute(self) -> Dtype:
        """The format multiplied: the wider of weights and activations, as mixed kernels up-convert."""
        return self.weights if self.weights.bytes >= self.activations.bytes else self.activations


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How one worker spreads a model: TP × PP ranks; attention DP and EP reuse the TP ranks for MoE models.

    `dp` replicates attention over groups of ranks (each with its own requests) while experts span all of them by `ep`.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    @property
    def accelerators(self) -> int:
        """Accelerators of one worker."""
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        named = (("tp", self.tp), ("pp", self.pp), ("dp", self.dp), ("ep", self.ep))
        return "·".join(f"{name}{size}" for name, size in named if size > 1) or "tp1"


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker: the model on `parallelism.accelerators` accelerators in one precision, run by an engine.

    `max_batch` caps the sequences, `max_batched_tokens` the prefill tokens of one step; 0 leaves the engine's default.
    """

    model: Model
    accelerator: Accelerator
    precision: Precision
    parallelism: Parallelism
    engine: str = "vllm"
    max_batch: int = 0
    max_batched_tokens: int = 0
    residency: TierKind = TierKind.HBM

    @property
    def accelerators(self) -> int:
        return self.parallelism.accelerators

    @property
    def label(self) -> str:
        """Short form: 'H100-SXM-80GB tp2 w=fp8 a=fp8 kv=fp8'."""
        return f"{self.accelerator.name} {self.parallelism} {self.precision}"
