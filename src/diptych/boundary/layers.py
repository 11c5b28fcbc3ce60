"""The layers of a model as what they leave behind for decode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from diptych.boundary.element import Element
from diptych.boundary.limits import PARTS, within
from diptych.errors import Finding, InvalidInput


class LayerKind(StrEnum):
    """What a layer leaves behind for decode."""

    FULL = "full"
    SLIDING = "sliding"
    LATENT = "latent"  # MLA: one compressed vector and its rotary part, for all heads
    STATE = "state"  # linear attention, state space: fixed size per sequence


@dataclass(frozen=True, slots=True)
class Layers:
    """`count` layers that leave the same shape. `index` names them when the order is known.

    Per kept token a FULL or SLIDING layer stores `kv_heads` · (`head_dim` + `v_head_dim`) elements (`v_head_dim` 0: the key is
    also the value), a LATENT one `latent_rank` + `rope_dim`. `window`: tokens kept. `compress`: tokens per stored entry.
    A STATE layer stores `state_elements` of `state_format` per sequence.
    """

    kind: LayerKind
    count: int
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    window: int = 0
    latent_rank: int = 0
    rope_dim: int = 0
    compress: int = 1
    state_elements: float = 0.0
    state_format: Element = Element.FP32
    index: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        findings = list(_layer_findings(self))
        if findings:
            raise InvalidInput(findings)

    def __str__(self) -> str:
        widths = {
            LayerKind.STATE: f"{self.state_elements:g} elements",
            LayerKind.LATENT: f"{self.latent_rank} + {self.rope_dim}",
        }
        shape = widths.get(self.kind, f"{self.kv_heads} heads of {self.head_dim} + {self.v_head_dim}")
        kept = f", {self.window} tokens kept" if self.window else ""
        return f"{self.count} {self.kind} of {shape}{kept}" + (f", {self.compress} to 1" if self.compress > 1 else "")

    @property
    def is_shared(self) -> bool:
        """One stored vector serves all heads, so that every TP rank needs it whole."""
        return self.kind is LayerKind.LATENT or (self.kind is not LayerKind.STATE and self.v_head_dim == 0)

    @property
    def heads(self) -> int:
        """KV heads that TP can split."""
        return 1 if self.is_shared or self.kind is LayerKind.STATE else self.kv_heads

    @property
    def parts(self) -> int:
        """Tensors per layer: keys and values, or the one vector that is both; a state has none."""
        return 0 if self.kind is LayerKind.STATE else 1 if self.is_shared else 2

    @property
    def elements_per_token(self) -> float:
        """Stored elements of one kept token in one layer, without replication."""
        if self.kind is LayerKind.STATE:
            return 0.0
        if self.kind is LayerKind.LATENT:
            return (self.latent_rank + self.rope_dim) / self.compress
        return self.kv_heads * (self.head_dim + self.v_head_dim) / self.compress

    def kept(self, tokens: float) -> float:
        """Tokens that a layer keeps of `tokens`."""
        return min(tokens, self.window) if self.window else tokens


def merged_layers(layers: tuple[Layers, ...]) -> Iterator[Layers]:
    """Layers of one shape as one entry; their indices are kept when every part named its own."""
    counts: Counter[Layers] = Counter()
    indices: dict[Layers, list[int] | None] = {}
    for entry in layers:
        shape = replace(entry, count=1, index=(), state_elements=float(entry.state_elements))
        counts[shape] += entry.count
        known = indices.setdefault(shape, [])
        indices[shape] = [*known, *entry.index] if known is not None and entry.index else None
    for shape in sorted(counts, key=_layer_order):
        yield replace(shape, count=counts[shape], index=tuple(sorted(indices[shape] or ())))


def _layer_order(layers: Layers) -> tuple[str, ...]:
    numbers = ("kv_heads", *_WIDTHS, "compress")
    return (str(layers.kind), *(f"{getattr(layers, name):020}" for name in numbers), str(layers.state_format))


_WIDTHS = ("head_dim", "v_head_dim", "window", "latent_rank", "rope_dim", "state_elements")
_NEEDS = {
    LayerKind.FULL: ("kv_heads", "head_dim"),
    LayerKind.SLIDING: ("kv_heads", "head_dim", "window"),
    LayerKind.LATENT: ("latent_rank",),
    LayerKind.STATE: ("state_elements",),
}


def _layer_findings(layers: Layers) -> Iterator[Finding]:
    yield from within("count", layers.count, 1, PARTS)
    yield from within("compress", layers.compress, 1)
    yield from within("kv_heads", layers.kv_heads, 0, PARTS)
    for name in _WIDTHS:
        yield from within(name, getattr(layers, name), 0)
    for name in _NEEDS[layers.kind]:
        if getattr(layers, name) == 0:
            yield Finding(name, f"is missing of a {layers.kind} layer", "1 or more")
    if layers.index and (len(set(layers.index)) != layers.count or min(layers.index) < 0):
        yield Finding("index", f"names {len(set(layers.index))} layers", f"{layers.count} different ones, from 0")
