"""Engines and the answers that they must give, for tests that every engine passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from diptych.runtime.engine import Chunk, Engine, EngineFault, Step
from diptych.runtime.engines.torch.engine import Setup, TorchEngine
from diptych.runtime.engines.toy import ToyEngine, ToyModel
from diptych.runtime.sampling import GREEDY, Sampled, Sampling


@dataclass(frozen=True)
class World:
    """One kind of engine: how to make one, and what a prompt's answer is by somebody else's account."""

    make: Callable[..., Engine]
    expected: Callable[[Sequence[int], int], list[int]]
    vocabulary: int
    damage: bytes  # a byte that no sound KV consists of


def toy_world() -> World:
    model = ToyModel(vocabulary=500)
    return World(lambda **given: ToyEngine(model, **{"blocks": 64, **given}), model.expected, model.vocabulary, b"\x7f")


def torch_world(place: Path, reference: Callable[[Sequence[int], int], list[int]], vocabulary: int) -> World:
    setup = Setup(blocks=64)
    return World(lambda **given: TorchEngine.load(place, replace(setup, **given)), reference, vocabulary, b"\xff")


class Driver:
    """The duties of a worker in their plainest form: sequences, their blocks, and the tokens so far."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.free = list(range(engine.memory.blocks))[::-1]
        self.blocks: dict[int, tuple[int, ...]] = {}

    def take(self, sequence: int, tokens: int) -> tuple[int, ...]:
        count = -(-tokens // self.engine.memory.block_tokens)
        self.blocks[sequence] = tuple(self.free.pop() for _ in range(count))
        return self.blocks[sequence]

    def drop(self, sequence: int) -> None:
        self.engine.release(sequence)
        self.free.extend(self.blocks.pop(sequence))

    def prefill(
        self, prompts: dict[int, tuple[int, ...]], chunk: int = 1 << 20, sampling: Sampling = GREEDY
    ) -> dict[int, int]:
        """First tokens, every prompt in chunks of at most `chunk`, those of one round together."""
        firsts: dict[int, int] = {}
        for start in range(0, max(len(prompt) for prompt in prompts.values()), chunk):
            some = [
                Chunk(
                    sequence,
                    prompt[start : start + chunk],
                    start,
                    self.blocks[sequence],
                    sampling if start + chunk >= len(prompt) else None,
                    prompt,
                )
                for sequence, prompt in prompts.items()
                if start < len(prompt)
            ]
            for part, found in zip(some, self.engine.prefill(some), strict=True):
                assert not isinstance(found, EngineFault), found
                if found.sampled is not None:
                    firsts[part.sequence] = found.sampled.token
        return firsts

    def decode(
        self,
        prompts: dict[int, tuple[int, ...]],
        answers: dict[int, list[int]],
        count: int,
        sampling: Sampling = GREEDY,
    ) -> None:
        """Bring every answer to `count` tokens, all sequences in one batch."""
        while any(len(answers[sequence]) < count for sequence in prompts):
            steps = [
                Step(
                    sequence,
                    answers[sequence][-1],
                    len(prompt) + len(answers[sequence]) - 1,
                    self.blocks[sequence],
                    sampling,
                    tuple(answers[sequence]),
                )
                for sequence, prompt in prompts.items()
                if len(answers[sequence]) < count
            ]
            for step, found in zip(steps, self.engine.decode_step(steps), strict=True):
                assert isinstance(found, Sampled), found
                answers[step.sequence].append(found.token)

    def answer(
        self, prompts: dict[int, tuple[int, ...]], count: int, chunk: int = 1 << 20, sampling: Sampling = GREEDY
    ) -> dict[int, list[int]]:
        for sequence, prompt in prompts.items():
            self.take(sequence, len(prompt) + count)
        answers = {sequence: [first] for sequence, first in self.prefill(prompts, chunk, sampling).items()}
        self.decode(prompts, answers, count, sampling)
        return answers


def move(source: Driver, target: Driver, sequence: int, tokens: int) -> None:
    """Copy the bytes of a sequence's KV, block by block where blocks are of one size, else token by token."""
    mine, theirs = source.blocks[sequence], target.blocks[sequence]
    for here, there in zip(source.engine.memory.layers, target.engine.memory.layers, strict=True):
        assert (here.form, here.parts, here.heads, here.dim) == (there.form, there.parts, there.heads, there.dim)
        if here.tokens == there.tokens:
            for one, other in zip(mine, theirs, strict=False):
                there.block(other)[:] = here.block(one)
            continue
        wide = here.dim * here.element.bits // 8
        for token in range(tokens):
            for row in range(here.parts * here.heads):
                of, at = (
                    (row * here.tokens + token % here.tokens) * wide,
                    (row * there.tokens + token % there.tokens) * wide,
                )
                piece = here.block(mine[token // here.tokens])[of : of + wide]
                there.block(theirs[token // there.tokens])[at : at + wide] = piece
    target.engine.insert(sequence, theirs, tokens)
