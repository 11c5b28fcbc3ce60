"""How the next token is chosen: the parameters of a request, and draws that depend on its seed and the position alone.

A draw is a hash of (seed, position), so that a sequence continued by another worker goes on with the very tokens it would have
had: nothing random is carried along.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b


@dataclass(frozen=True, slots=True)
class Sampling:
    """One request's parameters, validated at the edge. `temperature` 0 is greedy.

    `logprobs` is how many alternatives to report beside the chosen token (None: no logprobs at all). `min_tokens` suppresses
    `stop_tokens` until so many have been generated; `bias` adds to logits by token.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    stop_tokens: frozenset[int] = field(default_factory=frozenset)


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token and, where asked for, its log probability and those of the likeliest tokens."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def draw(seed: int, position: int) -> float:
    """A number in [0, 1) for the token at `position`.

    >>> draw(7, 12) == draw(7, 12), 0 <= draw(7, 12) < 1
    (True, True)
    """
    digest = blake2b(seed.to_bytes(8, "little", signed=True) + position.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
