"""Multi-token prediction: a step verifies drafted tokens beside the next one and keeps those that were right."""

from __future__ import annotations

from typing import Any

import numpy as np

from diptych.design.axes import Worker
from diptych.perf.estimate import Array
from diptych.perf.model import PerfModel

ACCEPTANCE = 0.8  # share of drafted tokens kept, each given the one before; DeepSeek-V3's report measures 0.85 to 0.90


def tokens_per_step(drafts: int, acceptance: float = ACCEPTANCE) -> float:
    """Expected tokens that a step yields: 1 + a + a² + … over the drafts.

    >>> round(tokens_per_step(3, 0.8), 3)
    2.952
    """
    return sum(acceptance**i for i in range(drafts + 1))


def seconds_per_token(perf: PerfModel, worker: Worker, batch: Any, context: Any, drafts: int = 0) -> Array:
    """Decode seconds per token and sequence at each `batch`; with drafts, a verifying step over the tokens it yields.

    Verifying n drafts of b sequences is n·b prompt tokens beside the batch; each draft runs one more layer.
    """
    batch = np.asarray(batch, dtype=float)
    plain = perf.decode(worker, batch, context).seconds
    if not drafts:
        return plain
    verified = perf.mixed(worker, batch * drafts, context, batch, context).seconds
    drafted = drafts * plain / worker.model.num_layers
    return np.asarray(np.maximum(verified + drafted, plain) / tokens_per_step(drafts))
