"""A model as the arithmetic of its layers: parameters, FLOP, KV bytes.

A `Model` is a tuple of `LayerGroup`s, so GQA, MHA, MLA, MoE, sliding windows, hybrids and per-layer shapes need no special cases.
Counts are per token and for the whole model; how they are split over accelerators is `perf`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from diptych.catalog.dtype import Dtype
from diptych.catalog.provenance import Provenance


def _np() -> Any:
    """numpy when arithmetic on arrays begins: a command that only looks a model up does not wait for it."""
    import numpy

    return numpy


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention layer. MLA when `latent_rank` is set: the cache then holds latent + rope, once for all heads.

    `window` caps the tokens a query sees and the cache keeps (sliding or chunked). `index_topk` caps what a query *reads*
    (sparse attention) but not what is kept. `compress` divides the tokens kept (compressed attention).
    `key_is_value`: one cached vector serves as both (DeepSeek-V4); `tied_projection`: keys and values share a projection
    but are cached apart (Gemma 4). `o_rank` and `o_groups`: an output projection through a rank, in groups of heads.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    latent_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    q_rank: int = 0
    index_topk: int | None = None
    index_head_dim: int = 0
    index_heads: int = 0
    compress: int = 1
    gated_output: bool = False
    key_is_value: bool = False
    tied_projection: bool = False
    o_rank: int = 0
    o_groups: int = 1

    @property
    def is_mla(self) -> bool:
        return self.latent_rank > 0

    @property
    def kv_elements(self) -> float:
        """Cached elements of one kept token, before replication over TP."""
        if self.is_mla:
            return (self.latent_rank + self.rope_dim) / self.compress
        width = self.head_dim if self.key_is_value else self.head_dim + self.v_head_dim
        return self.kv_heads * width / self.compress

    def kept_tokens(self, context: Any) -> Any:
        """Tokens kept in the cache at `context` tokens (scalar or array)."""
        return context if self.window is None else _np().minimum(context, self.window)

    def read_tokens(self, context: Any) -> Any:
        """Tokens whose KV one new token reads."""
        kept = self.kept_tokens(context)
        return kept if self.index_topk is None else _np().minimum(kept, self.index_topk)

    @property
    def score_width(self) -> int:
        """Multiply-adds per head, query token and key token: QK and PV (naive form, as prefill computes MLA)."""
        qk = self.nope_dim + self.rope_dim if self.is_mla else self.head_dim
        return qk + self.v_head_dim

    def parameters(self, hidden: int) -> float:
        """Parameters of the projections and of the sparse index."""
        qk = self.nope_dim + self.rope_dim if self.is_mla else self.head_dim
        query = hidden * self.q_rank + self.q_rank * self.heads * qk if self.q_rank else hidden * self.heads * qk
        gate = hidden * self.heads * self.v_head_dim if self.gated_output else 0
        return float(query + gate + self._key_value_parameters(hidden) + self._output_parameters(hidden)) + (
            self._index_parameters(hidden)
        )

    def _key_value_parameters(self, hidden: int) -> int:
        if self.is_mla:
            up = self.latent_rank * self.heads * (self.nope_dim + self.v_head_dim)
            return hidden * (self.latent_rank + self.rope_dim) + up
        is_one = self.key_is_value or self.tied_projection
        return hidden * self.kv_heads * (self.head_dim if is_one else self.head_dim + self.v_head_dim)

    def _output_parameters(self, hidden: int) -> int:
        if not self.o_rank:
            return self.heads * self.v_head_dim * hidden
        return self.heads * self.v_head_dim * self.o_rank + self.o_groups * self.o_rank * hidden

    def _index_parameters(self, hidden: int) -> float:
        """Query, key and head-weight projections of the index."""
        query = self.index_heads * self.index_head_dim * (self.q_rank or hidden)
        return float(query + (self.index_head_dim + self.index_heads) * hidden)


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A linear-attention or state-space layer: a state of fixed size per sequence instead of a cache that grows."""

    state_elements: float
    layer_parameters: float
    state_dtype: Dtype = Dtype.FP32

    @property
    def state_bytes(self) -> float:
        return self.state_elements * self.state_dtype.bytes

    def parameters(self, hidden: int) -> float:
        del hidden
        return self.layer_parameters


@dataclass(frozen=True, slots=True)
class Mlp:
    """A dense feed-forward layer; gated ones have three matrices, plain ones two."""

    intermediate: int
    gated: bool = True

    def parameters(self, hidden: int) -> float:
        return float((3 if self.gated else 2) * hidden * self.intermediate)

    def active_parameters(self, hidden: int) -> float:
        return self.parameters(hidden)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: `per_token` of `count` routed experts, and `shared_intermediate` columns always on.

    `latent`: the routed experts work on a projection of that width instead of `hidden` (Nemotron-3 Super, Kimi-K3).
    """

    count: int
    per_token: int
    intermediate: int
    shared_intermediate: int = 0
    gated: bool = True
    latent: int = 0

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    def expert_parameters(self, hidden: int) -> float:
        """Parameters of one routed expert."""
        return float(self.matrices * (self.latent or hidden) * self.intermediate)

    def parameters(self, hidden: int) -> float:
        return self.count * self.expert_parameters(hidden) + self._always_on(hidden)

    def active_parameters(self, hidden: int) -> float:
        """Parameters one token multiplies with."""
        return self.per_token * self.expert_parameters(hidden) + self._always_on(hidden)

    def _always_on(self, hidden: int) -> float:
        shared = self.matrices * hidden * self.shared_intermediate
        return float(shared + hidden * self.count + 2 * hidden * self.latent)

    def touched(self, tokens: Any) -> Any:
        """Expected number of routed experts that a batch of `tokens` touches, under uniform routing."""
        return self.count * (1.0 - (1.0 - self.per_token / self.count) ** _np().asarray(tokens, dtype=float))


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` equal layers: a token mixer (or none) and a feed-forward part (or none)."""

    count: int
    mixer: Attention | StateSpace | None
    mlp: Mlp | Experts | None


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only language model. `native` is the format its published weights are stored in."""

    name: str
    hidden: int
    vocab: int
    layers: tuple[LayerGroup, ...]
    tied_embeddings: bool = False
    max_context: int = 131072
    native: Dtype = Dtype.BF16
    tokenizer: str = ""
    published_parameters: float | None = None
    aliases: tuple[str, ...] = ()
    provenance: Provenance | None = field(default=None, compare=False)

    def attention_groups(self) -> Iterator[tuple[int, Attention]]:
        """(layer count, attention) of every group that has attention."""
        for group in self.layers:
            if isinstance(group.mixer, Attention):
                yield group.count, group.mixer

    @property
    def num_layers(self) -> int:
        return sum(group.count for group in self.layers)

    @property
    def is_moe(self) -> bool:
        return any(isinstance(group.mlp, Experts) for group in self.layers)

    @property
    def kv_heads(self) -> int:
        """KV heads that TP can split; 1 for MLA, whose latent is shared by all heads."""
        heads = [1 if attention.is_mla else attention.kv_heads for _, attention in self.attention_groups()]
        return min(heads, default=1)

    @property
    def embedding_parameters(self) -> float:
        """Input embedding and output head (one matrix when tied)."""
        return float(self.vocab * self.hidden * (1 if self.tied_embeddings else 2))

    @property
    def parameters(self) -> float:
        """All parameters."""
        return self.embedding_parameters + sum(
            group.count
            * (
                (group.mixer.parameters(self.hidden) if group.mixer else 0.0)
                + (group.mlp.parameters(self.hidden) if group.mlp else 0.0)
            )
            for group in self.layers
        )

    @property
    def active_parameters(self) -> float:
        """Parameters one token multiplies with, output head included, input embedding (a look-up) not."""
        return float(self.vocab * self.hidden) + sum(
            group.count
            * (
                (group.mixer.parameters(self.hidden) if group.mixer else 0.0)
                + (group.mlp.active_parameters(self.hidden) if group.mlp else 0.0)
            )
            for group in self.layers
        )

    def weight_bytes(self, weights: Dtype) -> float:
        """Bytes of all weights with the layers in `weights`, block scales included, and the embeddings in 16 bit or wider."""
        inner = self.parameters - self.embedding_parameters
        return inner * weights.stored_bytes + self.embedding_parameters * max(weights.bytes, 2.0)

    def kv_bytes_per_token(self, kv: Dtype) -> float:
        """KV bytes of one token with every attention layer kept in full: the slope at short context.

        2·L·n_kv·d_head·s for GQA and MHA, L·(d_latent + d_rope)·s for MLA as in the GQA and MLA papers.
        """
        return sum(count * attention.kv_elements for count, attention in self.attention_groups()) * kv.bytes

    def kv_bytes(self, context: Any, kv: Dtype) -> Any:
        """KV and state bytes of one sequence at `context` tokens (scalar or array), windows respected."""
        context = _np().asarray(context, dtype=float)
        cache = sum(
            (
                count * attention.kv_elements * attention.kept_tokens(context)
                for count, attention in self.attention_groups()
            ),
            start=_np().zeros_like(context),
        )
        return cache * kv.bytes + self.state_bytes

    @property
    def state_bytes(self) -> float:
        """Bytes of fixed-size state per sequence (0 without state-space layers)."""
        return sum(
            group.count * group.mixer.state_bytes for group in self.layers if isinstance(group.mixer, StateSpace)
        )
