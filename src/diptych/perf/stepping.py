"""What one engine step holds: how prompts are cut into chunks, packed together, and run beside decoding sequences.

This is the one place where a prompt becomes seconds. The open-loop pools and the closed loop both build on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.design.axes import Worker
from diptych.perf.estimate import Array
from diptych.perf.model import PerfModel
from diptych.workload.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Stepping:
    """How an engine fills its steps: prefill tokens per step and DP rank, whether decodes ride along, most sequences per rank.

    vLLM and TensorRT-LLM mix prompts into decode steps; SGLang runs a step of prompts alone while its decodes wait.
    Defaults of vLLM V1's API server (8192 tokens, 1024 sequences), TensorRT-LLM (8192, 2048) and SGLang (8192, by memory).
    """

    budget: float
    mixes: bool
    sequences: float


_ENGINES = {
    "vllm": Stepping(8192, True, 1024),
    "trtllm": Stepping(8192, True, 2048),
    "sglang": Stepping(8192, False, 4096),
}


def stepping(worker: Worker) -> Stepping:
    """The rules of a worker's engine for the whole worker (all DP ranks), its own limits first."""
    rules = _ENGINES.get(worker.engine, _ENGINES["vllm"])
    ranks = worker.parallelism.dp
    return Stepping(
        float(worker.max_batched_tokens or rules.budget) * ranks,
        rules.mixes,
        float(worker.max_batch) if worker.max_batch else rules.sequences * ranks,
    )


@dataclass(frozen=True, slots=True)
class PromptCosts:
    """Seconds of prompts, shape (K, B): K length points by B batches of decoding sequences beside them.

    `alone`: from the start of a prompt's first step to its first token, nothing else in the queue.
    `packed`: engine time one prompt takes when steps are filled up to the budget (≤ alone).
    `extra`: the part of `packed` that the decoding sequences would not have spent anyway: what a prompt costs them.
    """

    alone: Array
    packed: Array
    extra: Array


def prompt_costs(
    perf: PerfModel, worker: Worker, lengths: Lengths, batch: Any = 0.0, context: Any = 0.0
) -> PromptCosts:
    """Costs of each length point beside each of `batch` (B,) decoding sequences with mean `context` tokens.

    A prompt above the step budget is cut into chunks. A chunk's time is affine in the tokens before it (attention reads them),
    so n equal chunks cost n times the one in the middle.
    """
    rules = stepping(worker)
    batch = np.atleast_1d(np.asarray(batch, dtype=float))
    tokens = np.maximum(lengths.isl - lengths.cached, 1.0)[:, None]
    past = lengths.cached[:, None]
    beside = _Beside(perf, worker, rules, batch[None, :], context)
    full = np.floor(tokens / rules.budget)
    rest = tokens - full * rules.budget
    middle = past + np.maximum(full - 1, 0) / 2 * rules.budget
    chunks = np.where(full > 0, full * beside.step(rules.budget, middle), 0.0)
    tail = np.where(rest > 0, beside.step(np.maximum(rest, 1.0), past + full * rules.budget), 0.0)
    sharing = np.where(full > 0, rules.budget / np.maximum(rest, 1.0), np.maximum(np.floor(rules.budget / tokens), 1.0))
    packed_tail = np.where(
        rest > 0, beside.step(np.maximum(rest, 1.0), past + full * rules.budget, sharing) / sharing, 0.0
    )
    alone, packed = chunks + tail, np.minimum(chunks + packed_tail, chunks + tail)
    steps = full + np.where(rest > 0, 1.0 / sharing, 0.0)
    extra = np.maximum(packed - steps * beside.idle, 0.0) if rules.mixes else packed
    return PromptCosts(*(np.maximum.accumulate(cost, axis=1) for cost in (alone, packed, extra)))


class _Beside:
    """Steps of prompts beside a batch (1, B), or alone where the batch is 0 or the engine doesn't mix."""

    def __init__(self, perf: PerfModel, worker: Worker, rules: Stepping, batch: Array, context: Any) -> None:
        self.perf, self.worker, self.batch, self.context = perf, worker, batch, context
        self.mixed = rules.mixes and bool(np.any(batch > 0))
        self.idle = perf.decode(worker, np.maximum(batch, 1.0), context).seconds * (batch > 0) if self.mixed else 0.0

    def step(self, tokens: Any, past: Any, prompts: Any = 1.0) -> Array:
        """Seconds of a step with `prompts` chunks of `tokens` tokens, shape (K, B)."""
        lone = self.perf.prefill(self.worker, tokens, past, prompts).seconds
        if not self.mixed:
            return np.broadcast_to(lone, np.broadcast_shapes(np.shape(lone), self.batch.shape))
        beside = self.perf.mixed(
            self.worker, np.asarray(tokens) * prompts, past, np.maximum(self.batch, 1.0), self.context
        ).seconds
        return np.where(self.batch > 0, np.maximum(beside, self.idle), lone)
