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
from diptych.units import GIB
from diptych.workload.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Stepping:
    """How an engine fills its steps: prefill tokens per step and DP rank, whether decodes ride along, most sequences per rank.

    vLLM and TensorRT-LLM mix prompts into decode steps; SGLang runs a step of prompts alone while its decodes wait.
    TensorRT-LLM admits a request only if its longest answer fits (`reserves`); the others fill blocks as answers grow.
    Defaults of vLLM V1's API server (8192 tokens and 1024 sequences, or 2048 and 256 on smaller accelerators), TensorRT-LLM
    (8192, 2048) and SGLang (8192, by memory). TensorRT-LLM keeps a sliding layer's whole context unless its windows are
    configured; the others free what slid out (`frees`).
    """

    budget: float
    mixes: bool
    sequences: float
    reserves: bool = False
    frees: bool = True


_ENGINES = {
    "vllm": Stepping(8192, True, 1024),
    "trtllm": Stepping(8192, True, 2048, reserves=True, frees=False),
    "trtllm-cpp": Stepping(
        8192, True, 2048, reserves=True, frees=False
    ),  # the C++ runtime and engine files, before its PyTorch one
    "sglang": Stepping(8192, False, 4096),
}


_SMALL_VLLM = Stepping(2048, True, 256)


def _is_large(worker: Worker) -> bool:
    """Where vLLM's API server takes its larger defaults: 70 GiB or more, but not on an A100."""
    return worker.accelerator.memory_bytes >= 70 * GIB and not worker.accelerator.name.startswith("A100")


def stepping(worker: Worker) -> Stepping:
    """The rules of a worker's engine for the whole worker (all DP ranks), its own limits first."""
    rules = _ENGINES.get(worker.engine, _ENGINES["vllm"])
    if rules is _ENGINES["vllm"] and not _is_large(worker):
        rules = _SMALL_VLLM
    ranks = worker.parallelism.dp
    return Stepping(
        float(worker.max_batched_tokens or rules.budget) * ranks,
        rules.mixes,
        float(worker.max_batch) if worker.max_batch else rules.sequences * ranks,
        rules.reserves,
        rules.frees,
    )


def kv_taken(worker: Worker, isl: Any, osl: Any) -> Array:
    """KV bytes that a decoding sequence keeps others from using, on average over its answer (scalars or arrays)."""
    rules, model, kv = stepping(worker), worker.model, worker.precision.kv
    tokens = np.asarray(isl, dtype=float) + np.asarray(osl, dtype=float) * (1.0 if rules.reserves else 0.5)
    if rules.frees:
        return np.asarray(model.kv_bytes(tokens, kv))
    return np.asarray(model.kv_bytes_per_token(kv) * tokens + model.state_bytes)


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
    tokens = np.maximum(lengths.isl - lengths.cached, 1.0)
    full = np.floor(tokens / rules.budget)
    rest = tokens - full * rules.budget
    sharing = np.where(full > 0, rules.budget / np.maximum(rest, 1.0), np.maximum(np.floor(rules.budget / tokens), 1.0))
    tail = lengths.cached + full * rules.budget
    # A prompt's last (or only) piece alone, and with as many others as fit; then its full chunks, the middle one for all.
    pieces = [(np.maximum(rest, 1.0), tail, np.ones_like(rest)), (np.maximum(rest, 1.0), tail, sharing)]
    if np.any(full > 0):
        middle = lengths.cached + np.maximum(full - 1, 0) / 2 * rules.budget
        pieces.append((np.full_like(rest, rules.budget), middle, np.ones_like(rest)))
    seconds, idle = _beside(perf, worker, rules, pieces, batch, context)
    last = rest > 0
    lone, packed = (np.where(last[:, None], part, 0.0) for part in (seconds[0], seconds[1] / sharing[:, None]))
    chunks = full[:, None] * seconds[2] if len(pieces) > 2 else np.zeros_like(lone)
    alone, packed = chunks + lone, chunks + np.minimum(packed, lone)
    steps = full + np.where(last, 1.0 / sharing, 0.0)
    extra = np.maximum(packed - steps[:, None] * idle, 0.0) if rules.mixes else packed
    return PromptCosts(*(np.maximum.accumulate(cost, axis=1) for cost in (alone, packed, extra)))


def _beside(
    perf: PerfModel,
    worker: Worker,
    rules: Stepping,
    pieces: list[tuple[Array, Array, Array]],
    batch: Array,
    context: Any,
) -> tuple[Array, Array]:
    """Seconds (P, K, B) of steps of `prompts` pieces (tokens, past, prompts) beside each batch, and (B,) without prompts.

    Where the batch is 0, or the engine does not mix, the prompts run alone.
    """
    tokens, past, prompts = (np.stack(parts) for parts in zip(*pieces, strict=True))
    lone = perf.prefill(worker, tokens, past, prompts).seconds[..., None]
    held = batch > 0
    if not rules.mixes or not held.any():
        return np.broadcast_to(lone, (*lone.shape[:-1], len(batch))), np.zeros_like(batch)
    idle = np.where(held, perf.decode(worker, np.maximum(batch, 1.0), context).seconds, 0.0)
    mixed = perf.mixed(worker, (tokens * prompts)[..., None], past[..., None], np.maximum(batch, 1.0), context).seconds
    return np.where(held, np.maximum(mixed, idle), lone), idle
