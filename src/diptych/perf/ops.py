"""A worker as the operations of one forward step, each with its FLOP and bytes on one accelerator.

Nothing here knows how fast anything is: an op turns a `Step` into `Work`, and `roofline` turns work into seconds.
Counts follow the layer arithmetic of `catalog.model`: a gated MLP has three matrices, MLA's `kv_b` costs the same FLOP in its
naive (prefill) and absorbed (decode) forms, attention is causal, windows and sparse top-k cap what a query reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from diptych.catalog.dtype import Dtype
from diptych.perf.estimate import Array


class OpKind(StrEnum):
    """Ops that share one efficiency curve."""

    LINEAR = "linear"
    EXPERTS = "experts"
    PREFILL_ATTENTION = "prefill_attention"
    DECODE_ATTENTION = "decode_attention"
    PREFILL_MLA = "prefill_mla"
    DECODE_MLA = "decode_mla"
    STATE = "state"
    ELEMENTWISE = "elementwise"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    POINT_TO_POINT = "point_to_point"


@dataclass(frozen=True, slots=True)
class Format:
    """How a matrix is stored and multiplied: bytes per weight (scales included), bytes per activation, the multiply."""

    name: str
    weight_bytes: float
    activation_bytes: float
    compute: Dtype


@dataclass(frozen=True, slots=True)
class Step:
    """What one forward step carries, per DP rank unless said otherwise. Arrays broadcast together.

    `prompts` prompts of `tokens` new tokens after `past` cached ones, beside `batch` decoding sequences of mean `context`.
    `group_tokens` counts the tokens of all DP ranks together: what the experts see.
    """

    tokens: Array
    past: Array
    prompts: Array
    batch: Array
    context: Array
    group_tokens: Array

    @property
    def rows(self) -> Array:
        """Tokens that pass the linear layers of one rank."""
        return self.tokens * self.prompts + self.batch

    @property
    def sampled(self) -> Array:
        """Sequences whose last token passes the output head."""
        return self.prompts + self.batch


@dataclass(frozen=True, slots=True)
class Work:
    """FLOP and bytes of one op on one accelerator. `padding` is the FLOP that one unit of a curve's inertia adds,
    `columns` the width of its matrices and `rows` the tokens they meet, where a curve depends on them."""

    flop: Any
    bytes: Any
    padding: Any = 0.0
    columns: float = 1e12
    rows: Any = 0.0


class Op(Protocol):
    """One kind of kernel, launched `count` times a step."""

    @property
    def kind(self) -> OpKind: ...
    @property
    def count(self) -> float: ...
    @property
    def format(self) -> Format: ...
    def work(self, step: Step) -> Work: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix of `inputs` × `outputs` on one accelerator, over every token or only over sampled ones."""

    name: str
    count: float
    inputs: float
    outputs: float
    format: Format
    sampled_only: bool = False

    @property
    def kind(self) -> OpKind:
        return OpKind.LINEAR

    def work(self, step: Step) -> Work:
        rows = step.sampled if self.sampled_only else step.rows
        weights = self.inputs * self.outputs
        traffic = weights * self.format.weight_bytes + rows * (
            self.inputs * self.format.activation_bytes + self.outputs * 2.0
        )
        return Work(2.0 * rows * weights, np.where(rows > 0, traffic, 0.0), rows=rows)


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """The routed experts held by one accelerator: `local` of `total` experts, `columns` of each one's intermediate width.

    Weights are read once per touched expert; under uniform routing N tokens touch total·(1 − (1 − k/total)^N) of them.
    """

    count: float
    hidden: float
    columns: float
    total: float
    local: float
    per_token: float
    matrices: int
    format: Format

    @property
    def kind(self) -> OpKind:
        return OpKind.EXPERTS

    def work(self, step: Step) -> Work:
        tokens = step.group_tokens
        share = self.local / self.total
        touched = self.local * (1.0 - (1.0 - self.per_token / self.total) ** tokens)
        rows = tokens * self.per_token * share
        per_expert = self.matrices * self.hidden * self.columns
        activations = rows * (2.0 * self.hidden * self.format.activation_bytes + self.matrices * self.columns * 2.0)
        return Work(
            2.0 * rows * per_expert,
            touched * per_expert * self.format.weight_bytes + activations,
            2.0 * touched * per_expert,
            self.columns,
        )


def read_area(new: Any, past: Any, cap: float | None) -> Any:
    """Query-key pairs of `new` causal queries after `past` tokens, each reading at most `cap` keys.

    The integral of min(x, cap) from past to past + new.
    """

    def below(x: Any) -> Any:
        if cap is None:
            return x * x / 2.0
        return np.where(x <= cap, x * x / 2.0, cap * x - cap * cap / 2.0)

    return below(np.asarray(past + new, dtype=float)) - below(np.asarray(past, dtype=float))


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """Causal attention of the prompt tokens: `width` multiply-adds per head, query and key; `kv_width` cached elements."""

    count: float
    heads: float
    width: float
    kv_width: float
    cap: float | None
    mla: bool
    format: Format

    @property
    def kind(self) -> OpKind:
        return OpKind.PREFILL_MLA if self.mla else OpKind.PREFILL_ATTENTION

    def work(self, step: Step) -> Work:
        pairs = step.prompts * read_area(step.tokens, step.past, self.cap)
        flop = 2.0 * self.heads * self.width * pairs
        length = np.maximum(step.tokens + step.past, 1.0)
        keys = length if self.cap is None else np.minimum(length, self.cap + step.tokens)
        traffic = step.prompts * (
            self.kv_width * keys * self.format.weight_bytes + self.heads * self.width * step.tokens * 2.0
        )
        return Work(flop, traffic, flop / length)


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """One query per sequence over its cache: bound by the KV bytes, for MLA by the absorbed FLOP as well."""

    count: float
    heads: float
    width: float
    kv_width: float
    cap: float | None
    mla: bool
    format: Format

    @property
    def kind(self) -> OpKind:
        return OpKind.DECODE_MLA if self.mla else OpKind.DECODE_ATTENTION

    def work(self, step: Step) -> Work:
        keys = step.context if self.cap is None else np.minimum(step.context, self.cap)
        read = step.batch * keys
        return Work(2.0 * self.heads * self.width * read, self.kv_width * read * self.format.weight_bytes)


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """A state-space layer: the state is read and written once per decoded token and once per 64-token chunk of a prompt."""

    count: float
    state_bytes: float
    state_elements: float
    format: Format

    @property
    def kind(self) -> OpKind:
        return OpKind.STATE

    def work(self, step: Step) -> Work:
        visits = step.batch + step.prompts * step.tokens / 64.0
        return Work(4.0 * self.state_elements * step.rows, 2.0 * self.state_bytes * visits)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Norms, rotary embedding, activation, quantisation, KV write: `bytes_per_token` of traffic in each of `count` kernels."""

    count: float
    bytes_per_token: float
    format: Format

    @property
    def kind(self) -> OpKind:
        return OpKind.ELEMENTWISE

    def work(self, step: Step) -> Work:
        return Work(0.0, self.bytes_per_token * step.rows)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over `world` accelerators; bytes are those that one accelerator sends, per direction."""

    kind: OpKind
    count: float
    world: int
    bytes_per_token: float
    format: Format

    def work(self, step: Step) -> Work:
        return Work(0.0, self.bytes_per_token * step.rows)
