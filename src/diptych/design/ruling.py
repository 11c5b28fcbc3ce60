"""What a rule looks at and what it says: designs are judged against a `Setting`, and a broken rule is a `Violation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from diptych.catalog.memory import MemoryTier, TierKind
from diptych.catalog.offer import Offer
from diptych.design.axes import Worker
from diptych.design.boundary import Boundary


class Quality(StrEnum):
    """The narrowest weights a plan may choose on its own."""

    NATIVE = "native"  # as published, or wider
    EIGHT_BIT = "8bit"  # FP8 and INT8 too
    ANY = "any"  # 4 bit as well


class StockEngine(Protocol):
    """One release of an engine, as the rules ask it: a reason against a choice, or None."""

    def worker(self, worker: Worker) -> str | None: ...

    def pair(self, pair: Pair) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What designs are judged against.

    `memory` gives a worker's (weights, left for KV) in bytes, negative when short: `perf`'s arithmetic, passed in. `tiers` are
    the slower places KV may live in, `engine` the stock engine to stay with.
    """

    max_context: float
    memory: Callable[[Worker], tuple[float, float]] = field(compare=False)
    quality: Quality = Quality.EIGHT_BIT
    stock_only: bool = False
    link_is_given: bool = False
    tiers: Mapping[TierKind, MemoryTier] = field(default_factory=dict, compare=False)
    engine: StockEngine | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two workers and the boundary between them, with the offers they are rented from (None when owned)."""

    prefill: Worker
    decode: Worker
    boundary: Boundary
    prefill_offer: Offer | None = None
    decode_offer: Offer | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a design breaks."""

    rule: str
    sentence: str
    detail: str

    def __str__(self) -> str:
        return f"{self.sentence} ({self.detail})"


WorkerRule = Callable[[Worker, Setting], str | None]
PairRule = Callable[[Pair, Setting], str | None]
