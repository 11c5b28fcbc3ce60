"""Chunks, batches, moves, recomputation, in whatever order: the toy's tokens are the expected ones."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.runtime.engine import Chunk, EngineFault, Step
from diptych.runtime.engines.toy import ToyEngine, ToyModel
from diptych.runtime.sampling import GREEDY, Sampling

MODEL = ToyModel(vocabulary=300)
ENGINES = 2
ROOM = 64  # tokens of a sequence
samplings = st.sampled_from((GREEDY, Sampling(temperature=1.0, seed=9)))


class Sequences:
    """Sequences on two engines, each with blocks of its own."""

    def __init__(self, prompts: Sequence[tuple[int, ...]], samplings: Sequence[Sampling]) -> None:
        self.prompts, self.samplings = prompts, samplings
        self.engines = [ToyEngine(MODEL, blocks=len(prompts) * ROOM // 4, block_tokens=4) for _ in range(ENGINES)]
        self.home = [0] * len(prompts)
        self.done = [0] * len(prompts)  # tokens whose KV is there
        self.answers: list[list[int]] = [[] for _ in prompts]

    def blocks(self, sequence: int) -> tuple[int, ...]:
        """Every `count`th block, so that neighbours in a sequence are not neighbours in memory."""
        return tuple(range(sequence, len(self.prompts) * ROOM // 4, len(self.prompts)))

    def known(self, sequence: int) -> tuple[int, ...]:
        return (*self.prompts[sequence], *self.answers[sequence])

    def prefill(self, sequence: int, size: int) -> None:
        known, start = self.known(sequence), self.done[sequence]
        if len(known) - start < 1 + bool(self.answers[sequence]) or len(known) >= ROOM:
            return
        part = known[start : start + size]
        is_last = start + len(part) == len(known)
        sampling = self.samplings[sequence] if is_last else None
        chunk = Chunk(sequence, part, start, self.blocks(sequence), sampling, known, tuple(self.answers[sequence]))
        found = self.engines[self.home[sequence]].prefill([chunk])[0]
        assert not isinstance(found, EngineFault)
        self.done[sequence] += len(part)
        if found.sampled is not None:
            self.answers[sequence].append(found.sampled.token)

    def decode(self, engine: int) -> None:
        """All that can go on there, together."""
        ready = [
            each
            for each in range(len(self.prompts))
            if self.home[each] == engine
            and self.answers[each]
            and self.done[each] == len(self.known(each)) - 1 < ROOM - 1
        ]
        steps = [
            Step(
                each,
                self.answers[each][-1],
                self.done[each],
                self.blocks(each),
                self.samplings[each],
                tuple(self.answers[each]),
            )
            for each in ready
        ]
        for each, found in zip(ready, self.engines[engine].decode_step(steps), strict=True):
            assert not isinstance(found, EngineFault)
            self.answers[each].append(found.token)
            self.done[each] += 1

    def move(self, sequence: int) -> None:
        here, there = self.home[sequence], 1 - self.home[sequence]
        for mine, theirs in zip(self.engines[here].memory.layers, self.engines[there].memory.layers, strict=True):
            for block in self.blocks(sequence):
                theirs.block(block)[:] = mine.block(block)
                mine.block(block)[:] = b"\x7f" * mine.block_bytes
        self.engines[here].release(sequence)
        self.engines[there].insert(sequence, self.blocks(sequence), self.done[sequence])
        self.home[sequence] = there

    def forget(self, sequence: int) -> None:
        """Preempted: what was there is overwritten, and computed again."""
        for layer in self.engines[self.home[sequence]].memory.layers:
            for block in self.blocks(sequence):
                layer.block(block)[:] = b"\x7f" * layer.block_bytes
        self.done[sequence] = 0

    def finish(self) -> None:
        """Let every sequence say at least two tokens where it is now."""
        for each in range(len(self.prompts)):
            while not self.answers[each] or self.done[each] < len(self.known(each)) - 1:
                self.prefill(each, 5)
        for engine in range(ENGINES):
            self.decode(engine)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 299), min_size=1, max_size=20), samplings), min_size=1, max_size=3),
    st.lists(
        st.tuples(
            st.sampled_from(("prefill", "decode", "decode", "move", "forget")), st.integers(0, 2), st.integers(1, 9)
        ),
        max_size=40,
    ),
)
@settings(max_examples=60)
def test_streams_are_the_expected_ones(
    requests: list[tuple[list[int], Sampling]], doings: list[tuple[str, int, int]]
) -> None:
    world = Sequences([tuple(prompt) for prompt, _ in requests], [sampling for _, sampling in requests])
    for doing, number, size in doings:
        sequence = number % len(requests)
        match doing:
            case "prefill":
                world.prefill(sequence, size)
            case "decode":
                world.decode(number % ENGINES)
            case "move":
                world.move(sequence)
            case _:
                world.forget(sequence)
    world.finish()
    for place, (prompt, sampling) in enumerate(requests):
        assert world.answers[place] == MODEL.expected(prompt, len(world.answers[place]), sampling)
