"""What an engine is: it computes tokens for sequences whose blocks others have chosen. It knows no queues, no HTTP, no peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from diptych.boundary.descriptor import KVState
from diptych.runtime.memory import KVMemory
from diptych.runtime.sampling import Sampled, Sampling


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a prompt to compute: `tokens` from position `start` on.

    `blocks` hold positions 0 to start + len(tokens); those before `start` are filled. `sampling` is None unless this is the
    prompt's last chunk, after which the first token is chosen. `prompt` are all of the prompt's tokens, for penalties;
    `generated` are those at its end that an earlier attempt chose. `prompt_logprobs` is said with every chunk, of a prompt
    that is computed from its first token on.
    """

    sequence: int
    tokens: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    sampling: Sampling | None = None
    prompt: tuple[int, ...] = ()
    generated: tuple[int, ...] = ()
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One more token of a sequence: `token` is its last one, at `position`, whose KV is not in `blocks` yet.

    `generated` are the tokens chosen so far, `token` included, for penalties and minimum lengths.
    """

    sequence: int
    token: int
    position: int
    blocks: tuple[int, ...]
    sampling: Sampling
    generated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What a chunk gave: the first token after a prompt's last chunk, and log probabilities of the chunk's own tokens if asked.

    `prompt` has one entry for each token of the chunk but the first of the whole prompt, which nothing predicts.
    """

    sampled: Sampled | None = None
    prompt: tuple[Sampled, ...] = ()


class EngineFault(Exception):
    """An engine cannot go on with one sequence, such as KV that cannot be right. The others are unharmed."""

    def __init__(self, sequence: int, why: str) -> None:
        self.sequence, self.why = sequence, why
        super().__init__(f"sequence {sequence}: {why}")


class Engine(Protocol):
    """One model in one precision on one device. One thread at a time drives it.

    `state` says what it stores, for the boundary's contract. Blocks are chosen by the caller, who never hands one to two
    sequences unless their tokens up to its end are the same.
    """

    state: KVState
    memory: KVMemory
    vocabulary: int
    max_context: int
    eos: frozenset[int]

    def prefill(
        self, chunks: Sequence[Chunk], on_layer: Callable[[int], None] | None = None
    ) -> list[Prefilled | EngineFault]:
        """Compute chunks of prompts together, one result each; `on_layer` is called when a layer's KV of all is in memory."""
        ...

    def insert(self, sequence: int, blocks: tuple[int, ...], tokens: int) -> None:
        """`tokens` of a sequence's KV were written into `blocks` by somebody else and are the engine's to use from now on."""
        ...

    def decode_step(
        self, steps: Sequence[Step], on_layer: Callable[[int], None] | None = None
    ) -> list[Sampled | EngineFault]:
        """One token for each sequence; `on_layer` as in `prefill`."""
        ...

    def release(self, sequence: int) -> None:
        """Nothing of this sequence will be asked again; its blocks may be reused."""
        ...
