"""Runtime KV State: everything a consumer must know to read the KV a producer wrote, so that it means the same on both sides.

In parts that a contract compares one by one: what it is of (`Identity`), its layers, how an element is stored (`Format`), how
elements lie in memory (`Storage`), which rank holds what (`Shard`), and who holds it now (`Holding`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from diptych.boundary.element import ScaleSource, Scaling
from diptych.boundary.format import Format
from diptych.boundary.identity import Identity
from diptych.boundary.layers import LayerKind, Layers, merged_layers
from diptych.boundary.limits import PARTS, SHAPES, within
from diptych.catalog.memory import TierKind
from diptych.errors import Finding, InvalidInput, did_you_mean

if TYPE_CHECKING:
    from diptych.catalog.model import Model
    from diptych.design.axes import Parallelism, Precision

MAJOR, MINOR = 1, 0
SCHEMA = f"{MAJOR}.{MINOR}"
"""The version of this description. The policy is in `serial`."""


class Layout(StrEnum):
    """The order of dimensions in memory: L layers, B blocks, N tokens of a block, H heads, C the elements of one head.

    vLLM's names (0.33). Keys and values (or a latent) are tensors of their own, each laid out so. UNKNOWN is not equal to
    anything, itself included.
    """

    LBHNC = "LBHNC"
    LBNHC = "LBNHC"
    LHBNC = "LHBNC"
    BLHNC = "BLHNC"
    BLNHC = "BLNHC"
    BHLNC = "BHLNC"
    UNKNOWN = "unknown"

    @property
    def without_heads(self) -> str:
        """The order of the other dimensions."""
        return self.replace("H", "")

    @classmethod
    def of(cls, name: str) -> Layout:
        """The layout of this name or alias.

        >>> Layout.of("HND"), Layout.of("layer_first")
        (<Layout.LBHNC: 'LBHNC'>, <Layout.LBNHC: 'LBNHC'>)

        Raises:
            InvalidInput: no engine calls a layout so.
        """
        try:
            return cls(LAYOUT_ALIASES.get(name.strip().casefold(), name.strip().upper()))
        except ValueError:
            known = [*cls, *(alias.upper() for alias in LAYOUT_ALIASES)]
            raise InvalidInput(
                Finding("layout", f"unknown layout {name[:60]!r}", hint=did_you_mean(name[:60], known))
            ) from None


LAYOUT_ALIASES = {
    "hnd": "LBHNC",  # FlashInfer and vLLM: one layer's blocks as heads, tokens, dim
    "nhd": "LBNHC",
    "layer_first": "LBNHC",  # SGLang's pools: a page is a run of token slots, each (heads, dim)
    "page_first_direct": "BLNHC",  # SGLang HiCache: pages of (layers, tokens, heads, dim)
    "unknown": "unknown",
}


@dataclass(frozen=True, slots=True)
class Storage:
    """How elements lie in memory.

    `block_tokens`: tokens of a block. `page_stride`: bytes from one block to the next where something lies between them (0:
    nothing does). `packing`: the name of a kernel's own order of elements inside a block ("": none; vLLM's CPU attention packs
    keys), which only the same kernel undoes.
    """

    block_tokens: int
    layout: Layout = Layout.UNKNOWN
    page_stride: int = 0
    packing: str = ""

    def __post_init__(self) -> None:
        findings = [*within("block_tokens", self.block_tokens, 1), *within("page_stride", self.page_stride, 0)]
        if findings:
            raise InvalidInput(findings)


def _even_stages(count: int, stages: int) -> tuple[int, ...]:
    sizes = [count // stages] * stages
    for back in range(2, count % stages + 2):
        sizes[-back] += 1
    return tuple(sizes)


def _shard_findings(shard: Shard) -> Iterator[Finding]:
    for name in ("tp", "pp", "dp", "cp"):
        size, rank = getattr(shard, name), getattr(shard, f"{name}_rank", None)
        yield from within(name, size, 1, PARTS)
        if rank is not None and not 0 <= rank < size:
            yield Finding(f"{name}_rank", f"is {rank}", f"0 to {size - 1}")
    for place, layers in enumerate(shard.stage_layers):
        yield from within(f"stage_layers[{place}]", layers, 0, PARTS)
    if shard.stage_layers and len(shard.stage_layers) != shard.pp:
        yield Finding("stage_layers", f"has {len(shard.stage_layers)} stages", f"{shard.pp}, as pp says")


@dataclass(frozen=True, slots=True)
class Shard:
    """How a worker spreads a request's KV over ranks: heads over `tp`, layers over `pp`, tokens over `cp`; `dp` only replicates.

    The ranks are None in the static form, which speaks of the whole worker. `stage_layers`: layers of each pipeline stage where
    they were chosen by hand.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    tp_rank: int | None = None
    pp_rank: int | None = None
    dp_rank: int | None = None
    stage_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        findings = list(_shard_findings(self))
        if findings:
            raise InvalidInput(findings)

    def heads(self, rank: int, kv_heads: int) -> range:
        """The KV heads that TP rank `rank` holds: a run of its own, or one that `replication` neighbours share.

        >>> [list(Shard(tp=4).heads(rank, 2)) for rank in range(4)]
        [[0], [0], [1], [1]]
        """
        if self.tp >= kv_heads:
            head = rank // (self.tp // kv_heads)
            return range(head, head + 1)
        mine = kv_heads // self.tp
        return range(rank * mine, (rank + 1) * mine)

    def replication(self, kv_heads: int) -> int:
        """Ranks that hold the same head."""
        return max(1, self.tp // kv_heads)

    def layers(self, stage: int, count: int) -> range:
        """The layers of a pipeline stage: an even split, what remains going to the stages before the last, as vLLM splits.

        >>> [len(Shard(pp=4).layers(stage, 30)) for stage in range(4)]
        [7, 8, 8, 7]
        """
        sizes = self.stage_layers or _even_stages(count, self.pp)
        start = sum(sizes[:stage])
        return range(start, start + sizes[stage])


@dataclass(frozen=True, slots=True)
class Holding:
    """Who holds the state now, where, and under which epoch: it does not change what the bytes mean."""

    tier: TierKind = TierKind.HBM
    owner: str = ""
    epoch: int = 0

    def __post_init__(self) -> None:
        findings = list(within("epoch", self.epoch, 0))
        if findings:
            raise InvalidInput(findings)


@dataclass(frozen=True, slots=True)
class KVState:
    """One side's KV, described. Frozen and hashable; `serial` writes it and `contract` compares two."""

    identity: Identity
    layers: tuple[Layers, ...]
    format: Format
    storage: Storage
    shard: Shard = Shard()
    holding: Holding = Holding()
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        findings = list(_state_findings(self))
        if findings:
            raise InvalidInput(findings)

    @classmethod
    def of(cls, model: Model, precision: Precision, parallelism: Parallelism, **given: Any) -> KVState:
        """The state of a worker in the nouns of a design; `describe.describe` lists what else may be given."""
        from diptych.boundary.describe import describe

        return describe(model, precision, parallelism, **given)

    @property
    def num_layers(self) -> int:
        """Layers that leave something for decode."""
        return sum(layers.count for layers in self.layers)

    def held_bytes(self, tokens: float) -> float:
        """Bytes that the ranks of a worker hold for a request of `tokens` tokens: copies, state and travelling scales too."""
        return self.cache_bytes(tokens) + self.state_bytes

    def cache_bytes(self, tokens: float, *, once: bool = False) -> float:
        """The part that grows with the tokens: keys and values or latents, as every rank holds them, or each element once."""
        return sum(self.layer_bytes(each, tokens, 1.0 if once else self.copies(each)) for each in self.caches)

    @property
    def state_bytes(self) -> float:
        """The part that does not: what linear-attention layers keep of a request, never copied over ranks."""
        states = (each for each in self.layers if each.kind is LayerKind.STATE)
        return sum(each.count * each.state_elements * each.state_format.bits / 8 for each in states)

    def held_elements(self, tokens: float, *, once: bool = False) -> float:
        """Elements of keys and values or latents, counted as in `cache_bytes`."""
        copies = ((each, 1.0 if once else self.copies(each)) for each in self.caches)
        return sum(each.count * many * each.kept(tokens) * each.elements_per_token for each, many in copies)

    def copies(self, layers: Layers) -> float:
        """Copies of each element over the ranks: a shared latent is whole on every one, a head on those beyond the head count."""
        return max(1.0, self.shard.tp / layers.heads)

    def layer_bytes(self, layers: Layers, tokens: float, copies: float) -> float:
        """Bytes of the keys and values or latents of one entry of `layers`, each element `copies` times."""
        kept = layers.kept(tokens)
        each = kept * layers.elements_per_token * self.format.element.bits / 8 + self.format.scale_bytes(layers, kept)
        return layers.count * copies * each

    @property
    def caches(self) -> tuple[Layers, ...]:
        """The layers that keep tokens, not state."""
        return tuple(layers for layers in self.layers if layers.kind is not LayerKind.STATE)

    @property
    def has_one_head(self) -> bool:
        """Whether a rank holds one head, or latent, of every layer."""
        return all(layers.heads <= self.shard.tp for layers in self.caches)

    @property
    def is_split(self) -> bool:
        """Whether TP deals something out: heads, or a state; a latent is whole on every rank."""
        return not all(layers.is_shared for layers in self.layers)

    def block_bytes(self, layers: Layers) -> float:
        """Bytes of one block of one layer's keys (or latent) on one rank, without scales: what a connector registers."""
        heads = max(1.0, layers.heads / self.shard.tp)
        width = layers.elements_per_token if layers.is_shared else heads * layers.head_dim / layers.compress
        return self.storage.block_tokens * width * self.format.element.bits / 8


def canonical(state: KVState) -> KVState:
    """The one form of all that mean the same: equal layers merged and sorted, unit scales plain, the layout as it lies."""
    position, scaling = state.identity.position, state.format.scaling
    if position.theta is not None:
        position = replace(position, theta=float(position.theta))
    if scaling.source is ScaleSource.UNIT:
        scaling = Scaling(ScaleSource.UNIT)
    return replace(
        state,
        identity=replace(state.identity, position=position),
        layers=tuple(merged_layers(state.layers)),
        format=Format(state.format.element, scaling),
        storage=replace(state.storage, layout=order_in_memory(state)),
        schema=SCHEMA,
    )


def order_in_memory(state: KVState) -> Layout:
    """The layout as it lies on a rank: where each holds one head, the place of H is no matter, and LBHNC or BLHNC stands."""
    layout = state.storage.layout
    if layout is Layout.UNKNOWN or not state.has_one_head:
        return layout
    return next(each for each in Layout if each.without_heads == layout.without_heads)


def meaning(state: KVState) -> KVState:
    """What two states must share to mean the same: the canonical form, whoever holds it and wherever it lies."""
    return replace(canonical(state), holding=Holding())


def _state_findings(state: KVState) -> Iterator[Finding]:
    major, _, minor = state.schema.partition(".")
    if major != str(MAJOR) or not minor.isdecimal():
        yield Finding("schema", f"is {state.schema[:20]!r}", f"a version {MAJOR}.x")
    if not state.layers:
        yield Finding("layers", "are none", "one or more")
    if len(state.layers) > SHAPES:
        yield Finding("layers", f"are {len(state.layers)} entries", f"{SHAPES} at most")
    elif state.num_layers > PARTS:
        yield Finding("layers", f"are {state.num_layers}", f"{PARTS} at most")
    tp = state.shard.tp
    for heads in sorted({layers.heads for layers in state.layers if layers.kind is not LayerKind.STATE}):
        if heads and heads % tp and tp % heads:
            yield Finding("shard.tp", f"{tp} ranks cannot share {heads} KV heads evenly", "a divisor or a multiple")
    if state.shard.stage_layers and sum(state.shard.stage_layers) < state.num_layers:
        yield Finding("shard.stage_layers", f"hold {sum(state.shard.stage_layers)} layers", f"{state.num_layers}")
    named = [index for layers in state.layers for index in layers.index]
    if len(named) != len(set(named)):
        yield Finding("layers", "name one layer twice", "each index once")
