"""An engine one can compute by hand: every step is affine in its tokens. No floors, no hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.catalog.accelerator import Accelerator, ScaleUp
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Attention, LayerGroup, Mlp, Model
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.perf.estimate import Basis, Timing

MODEL = Model("toy-8B", 4096, 128256, (LayerGroup(32, Attention(32, 8, 128, 128), Mlp(14336)),))
ACCELERATOR = Accelerator(
    "toy", "toy", 80e9, 2e12, {Dtype.BF16: 1e15}, ScaleUp("NVLink", 450e9, 8), 64e9, 50e9, 700.0
)  # fmt: skip


def worker(engine: str = "vllm", dp: int = 1, **limits: int) -> Worker:
    """A toy worker."""
    return Worker(
        MODEL, ACCELERATOR, Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16), Parallelism(dp=dp), engine, **limits
    )


@dataclass(frozen=True, slots=True)
class AffinePerf:
    """Seconds per step, per prefill token, per token pair, per decoding sequence and per token of its context."""

    start: float = 5e-3
    token: float = 20e-6
    pair: float = 1e-9
    sequence: float = 50e-6
    read: float = 20e-9

    def prefill(self, worker: Worker, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        return self._timing(self.start + self._prompt(tokens, past) * np.asarray(batch, dtype=float))

    def decode(self, worker: Worker, batch: Any, context: Any) -> Timing:
        return self._timing(self.start + self._decode(batch, context))

    def mixed(self, worker: Worker, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        return self._timing(self.start + self._prompt(tokens, past) + self._decode(batch, context))

    def _prompt(self, tokens: Any, past: Any) -> Any:
        tokens, past = np.asarray(tokens, dtype=float), np.asarray(past, dtype=float)
        return tokens * self.token + tokens * (past + tokens / 2) * self.pair

    def _decode(self, batch: Any, context: Any) -> Any:
        batch = np.asarray(batch, dtype=float)
        return batch * (self.sequence + np.asarray(context, dtype=float) * self.read)

    def _timing(self, seconds: Any) -> Timing:
        return Timing(np.asarray(seconds, dtype=float), np.zeros_like(seconds), Basis.FITTED, 0.1)
