"""Where the roles meet: compute placement, KV representation, KV ownership."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link


class Placement(StrEnum):
    """Where prefill and decode run relative to each other."""

    DISAGGREGATED = "disaggregated"
    SAME_NODE = "same-node"
    COLOCATED = "colocated"
    CONDITIONAL = "conditional"  # prompts below a length stay on the decode side, the rest are handed off


class Side(StrEnum):
    """Where KV is converted."""

    PREFILL = "prefill"
    TRANSFER = "transfer"
    DECODE = "decode"


class Codec(StrEnum):
    """How KV is represented on the wire."""

    RAW = "raw"
    CAST = "cast"
    QUANTISED = "quantised"
    COMPRESSED = "compressed"


class Ownership(StrEnum):
    """Who moves the KV: prefill writes it (push) or decode reads it (pull). The source is held until released either way."""

    PUSH = "push"
    PULL = "pull"


class Overlap(StrEnum):
    """When KV moves: after prefill, or layer by layer beside it."""

    SERIAL = "serial"
    LAYERWISE = "layerwise"


@dataclass(frozen=True, slots=True)
class Representation:
    """KV on the wire: its format, how it is made from the producer's, and which side converts to the consumer's."""

    codec: Codec
    wire: Dtype
    converts_at: Side | None = None

    def __str__(self) -> str:
        return f"{self.codec} {self.wire}" + (f" at {self.converts_at}" if self.converts_at else "")


@dataclass(frozen=True, slots=True)
class Boundary:
    """The three boundary decisions and the path that carries the state. `local_below` (tokens) is for CONDITIONAL only."""

    placement: Placement
    link: Link
    representation: Representation
    ownership: Ownership = Ownership.PUSH
    overlap: Overlap = Overlap.SERIAL
    local_below: int = 0
