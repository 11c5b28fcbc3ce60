"""A vLLM worker's KV as a runtime KV state, from facts that its configuration and its self-test say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from diptych.boundary.descriptor import KVState, Layout, Shard, Storage
from diptych.boundary.element import Element, ScaleSource, Scaling
from diptych.boundary.format import Format, element_named
from diptych.boundary.identity import Identity, Position, PositionKind
from diptych.boundary.layers import LayerKind, Layers
from diptych.errors import Finding, InvalidInput

CACHE_ELEMENTS = {"fp8": Element.E4M3FN, "fp8_e4m3": Element.E4M3FN, "fp8_e5m2": Element.E5M2}
"""What vLLM's CPU and CUDA backends store under these flags."""
_SAMPLED = 1 << 20


@dataclass(frozen=True, slots=True)
class Facts:
    """`kv_heads`: of one rank. `cache_dtype`: as the flag says it, "auto" being the model's. `fnuz`: fp8 as MI300 has it."""

    model: str
    revision: str
    weights: str | None
    rope: Mapping[str, Any]
    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    model_dtype: str
    cache_dtype: str
    fnuz: bool = False

    def state(self) -> KVState:
        """The state of one rank, in the canonical order of a block. Raises InvalidInput."""
        return KVState(
            identity=Identity(self.model, self.revision, self.weights, position=_position(self.rope)),
            layers=(Layers(LayerKind.FULL, self.layers, self.kv_heads, self.head_dim, self.head_dim),),
            format=self._format(),
            storage=Storage(self.block_tokens, Layout.LBHNC),
            shard=Shard(),
        )

    def _format(self) -> Format:
        if self.cache_dtype in ("auto", ""):
            return Format(element_named(self.model_dtype))
        if self.cache_dtype in CACHE_ELEMENTS:
            stored = CACHE_ELEMENTS[self.cache_dtype]
            fnuz = self.fnuz and stored is Element.E4M3FN
            return Format(Element.E4M3FNUZ if fnuz else stored, Scaling(ScaleSource.UNIT))
        try:
            element = element_named(self.cache_dtype)
        except InvalidInput:
            element = None
        if element is None or not element.is_float:
            known = ", ".join(["auto", *CACHE_ELEMENTS])
            raise InvalidInput(Finding("kv_cache_dtype", f"{self.cache_dtype[:40]!r} is not handed over", known))
        return Format(element)


def weights_digest(place: Path) -> str | None:
    """A digest of a checkpoint's weight files: names, sizes, and the first and last MiB of each. None where there are none."""
    found = xxhash.xxh3_128()
    files = sorted(place.glob("*.safetensors")) if place.is_dir() else []
    for file in files:
        size = file.stat().st_size
        found.update(f"{file.name}:{size}:".encode())
        with file.open("rb") as data:
            found.update(data.read(_SAMPLED))
            data.seek(max(0, size - _SAMPLED))
            found.update(data.read(_SAMPLED))
    return found.hexdigest() if files else None


def _position(rope: Mapping[str, Any]) -> Position:
    """Rotary parameters as the model's config has them; without a base nobody has said."""
    theta = rope.get("rope_theta")
    if theta is None:
        return Position(PositionKind.UNKNOWN)
    kind = rope.get("rope_type", rope.get("type", "default"))
    rest = {name: value for name, value in rope.items() if name not in ("rope_theta", "rope_type", "type")}
    said = "" if kind == "default" else f"{kind}:{json.dumps(rest, sort_keys=True, default=str)}"
    return Position(PositionKind.ROPE, float(theta), said[:500], keys_rotated=True)
