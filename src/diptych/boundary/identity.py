"""What KV is of: facts that no transformation changes, so that a mismatch is never repaired, only refused or recomputed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from diptych.boundary.limits import WHOLE
from diptych.errors import Finding, InvalidInput


class PositionKind(StrEnum):
    """How positions enter attention."""

    ROPE = "rope"
    NONE = "none"
    ALIBI = "alibi"
    LEARNED = "learned"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Position:
    """The position convention. `theta` and `scaling` are the config's ("" is no scaling), None where nobody said.

    `keys_rotated`: keys are cached after the rotary embedding, as vLLM and SGLang do; a cache of unrotated keys reads as noise.
    """

    kind: PositionKind = PositionKind.UNKNOWN
    theta: float | None = None
    scaling: str | None = None
    keys_rotated: bool | None = None

    def __post_init__(self) -> None:
        if self.theta is not None and not 0 < self.theta < float("inf"):
            raise InvalidInput(Finding("theta", f"is {self.theta}", "a positive number"))


@dataclass(frozen=True, slots=True)
class TokenRange:
    """The tokens [start, stop) of a request that the state covers."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop <= WHOLE:
            raise InvalidInput(Finding("", f"covers [{self.start}, {self.stop})", f"0 <= start < stop <= {WHOLE}"))

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop})"


@dataclass(frozen=True, slots=True)
class Identity:
    """Which model, of which revision, with which adapter, over which tokens. None is 'nobody said', "" is 'there is none'.

    `weights` is a digest of the checkpoint that both roles' weights come from: a role that quantises it for itself, or loads a
    quantised copy, still serves it. `tokens` and `blocks` (one hash per block) are of a concrete handoff; the static form of a
    worker has neither.
    """

    model: str
    revision: str | None = None
    weights: str | None = None
    adapter: str | None = ""
    tokenizer: str | None = None
    position: Position = Position()
    tokens: TokenRange | None = None
    blocks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.model:
            raise InvalidInput(Finding("model", "is empty", "the model's name"))
        if self.blocks and self.tokens is None:
            raise InvalidInput(Finding("blocks", "are given without tokens", "the range of tokens they hash"))
