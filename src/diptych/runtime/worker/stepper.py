"""Steps of one engine: the batch plans by counts, blocks get their ids, the engine computes, and what came out is told.

A fault of one sequence ends it alone. When a call raises (memory ran out, a mistake in the engine), its sequences are computed
one by one, so that only those that cannot be computed are lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from diptych.runtime.engine import Chunk, Engine, EngineFault, Prefilled, Step
from diptych.runtime.sampling import Sampled
from diptych.runtime.worker.blocks import Blocks, LowerTiers, Table
from diptych.runtime.worker.half import Half
from diptych.serving.batching import Batch, BatchRules, Holding
from diptych.serving.blocks import BlockPool, blocks_for
from diptych.serving.request import Stage

log = logging.getLogger(__name__)
A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Result:
    """What a step gave one half: a token, the end of its answer ('stop', 'length'), or why it cannot go on."""

    half: Half
    sampled: Sampled | None = None
    finish: str = ""
    fault: str = ""


Streams = Callable[[Sequence[tuple[Half, int]], int], None]
"""Called when a layer's KV of these chunks is in memory: (half, tokens) of each, and the layer."""


class Stepper:
    """An engine, its batch and its blocks. One thread's alone."""

    def __init__(
        self, engine: Engine, rules: BatchRules, *, prefixes: bool = True, tiers: LowerTiers | None = None
    ) -> None:
        assert not rules.reserve, "a worker gives blocks as they are needed"
        memory = engine.memory
        size = memory.block_tokens
        self.engine, self.tiers = engine, tiers
        self.pool = BlockPool(memory.blocks, size, hash_tokens=size if prefixes else 0)
        self.batch: Batch[Half] = Batch(rules, self.pool)
        self.blocks = Blocks(self.pool, tiers)
        self.steps = self.prompt_tokens = self.output_tokens = 0
        self.asked = self.found = 0  # prompt blocks looked for in the cache, and found
        self.before_reuse: Callable[[Half], None] = lambda half: None

    # --- who is here ------------------------------------------------------------------------------------------------

    def add(self, half: Half) -> None:
        """It is to be computed here."""
        if half.blocks and self.tiers is not None:
            self._tidy()
            self.blocks.promote(half.blocks[: (half.todo - 1) // self.pool.size], self.spare)
        self.batch.add(half)

    def reserve(self, half: Half) -> Holding | None:
        """Blocks for KV that comes from elsewhere, and for its next token; None when there are not so many now."""
        holding = self.batch.reserve(half)
        if holding is None:
            return None
        self._tidy()
        half.table = self.blocks.begin(holding[1])
        self.blocks.grow(half.table, half.todo + 1)
        self.asked += len(half.blocks)
        self.found += len(holding[1])
        half.found = len(holding[1]) * self.pool.size
        return holding

    def join(self, half: Half, holding: Holding) -> None:
        """Its KV is here: it decodes from the next step on."""
        assert half.table is not None
        self.batch.join(half, holding)
        self.blocks.share(half.table, half.blocks, half.taken)
        self.blocks.evict()
        half.told_epoch = half.epoch
        self.engine.insert(half.id, tuple(half.table.blocks), half.todo)

    def withdraw(self, half: Half) -> Holding:
        """It leaves the batch, and what it holds stays held until `free`."""
        holding = self.batch.detach(half)
        self.batch.remove(half)
        return holding

    def free(self, half: Half, holding: Holding) -> None:
        """What was withdrawn or reserved is free again."""
        self.batch.free(holding)
        self._end(half)

    def remove(self, half: Half) -> None:
        """It is wanted no more, wherever it is."""
        if not self.batch.remove(half):
            self.batch.release(half)
        self._end(half)

    def hold(self, blocks: int) -> Table | None:
        """Take blocks out of use for what lies outside them for a while; None when there are not so many."""
        if not self.batch.has_room(blocks):
            return None
        self.pool.held += blocks
        self._tidy()
        table = Table()
        self.blocks.grow(table, blocks * self.pool.size)
        return table

    def let_go(self, table: Table) -> None:
        """They are of use again."""
        self.pool.held -= len(table.blocks)
        self.blocks.end(table)

    @property
    def busy(self) -> bool:
        """Whether anybody is here who may compute."""
        batch = self.batch
        return bool(batch.batch or batch.waiting or batch.ready or batch.partial)

    @property
    def computing(self) -> bool:
        """Whether anybody is here who has begun, and so gives memory back by itself."""
        batch = self.batch
        return bool(batch.batch or batch.ready or batch.partial)

    @property
    def spare(self) -> int:
        """Blocks that nobody needs now; cached ones are among them."""
        return self.pool.capacity - self.pool.held - self.batch.growing()

    def need(self, half: Half) -> int:
        """Blocks of what must be in KV, and of the next token."""
        return blocks_for(half.todo + 1, self.pool.size)

    def longest(self, half: Half) -> int:
        """Blocks of a prompt and the longest answer to it."""
        return min(
            blocks_for(len(half.submit.prompt) + half.submit.params.max_tokens, self.pool.size), self.pool.capacity
        )

    def due(self) -> int:
        """Blocks of the largest answer that is being computed here, or waits to be."""
        batch = self.batch
        here = [half for _, _, half in batch.running]
        own = [half for half in (*here, *batch.waiting, *batch.ready, *batch.partial) if not half.hands_off]
        return max(map(self.longest, own), default=0)

    # --- one step ---------------------------------------------------------------------------------------------------

    def step(self, streams: Streams | None = None, between: Callable[[], None] | None = None) -> list[Result]:
        """Plan and compute one step; nothing when nobody can run. `between` is called between its layers."""
        batch = self.batch
        before, runs = batch.preemptions, batch.plan()
        if batch.preemptions != before:
            self._preempted()
        if not runs:
            return []
        chunks = list(batch.chunks)
        decoding = [] if chunks and not batch.rules.mixes else [half for _, _, half in batch.running]
        self._give_blocks(chunks)
        results = [*self._prefill(chunks, streams, between), *self._decode(decoding, between)]
        faults = [result for result in results if result.fault]
        for result in faults:
            self._fault(result.half)
        changed = batch.complete(1)
        self.steps += 1
        for half in batch.prefilled if changed else ():
            assert half.table is not None
            self.blocks.share(half.table, half.blocks, half.taken)
        self.blocks.evict()
        return [*faults, *self._judged(results)]

    def _give_blocks(self, chunks: Sequence[tuple[Half, int]]) -> None:
        """Ids for what the plan has counted."""
        self._tidy()
        for half, _ in chunks:
            if half.table is None:
                half.table, half.told_epoch = self.blocks.begin(half.taken), half.epoch
                half.found = len(half.taken) * self.pool.size
                self.asked += len(half.blocks)
                self.found += len(half.taken)
            self.blocks.grow(half.table, (len(half.taken) + half.held) * self.pool.size)
        for _, _, half in self.batch.running:
            assert half.table is not None
            self.blocks.grow(half.table, len(half.tokens))
        self.blocks.agree(self.batch)

    def _tidy(self) -> None:
        self.batch.settle()
        self.blocks.evict()

    def _preempted(self) -> None:
        """Those who had to give their KV up."""
        for half in [*self.batch.waiting, *self.batch.partial]:
            if half.table is not None and half.told_epoch != half.epoch:
                self._end(half)

    def _end(self, half: Half) -> None:
        if half.table is not None:
            self.before_reuse(half)
            self.blocks.end(half.table)
            half.table = None
        self._tidy()
        self.engine.release(half.id)

    def _fault(self, half: Half) -> None:
        """It cannot go on; its KV is not for others either."""
        self.remove(half)
        self.blocks.distrust(half.blocks)

    # --- the engine -------------------------------------------------------------------------------------------------

    def _prefill(
        self, chunks: Sequence[tuple[Half, int]], streams: Streams | None, between: Callable[[], None] | None
    ) -> list[Result]:
        def compute(some: Sequence[tuple[Half, int]]) -> list[Prefilled | EngineFault]:
            def on_layer(layer: int) -> None:
                if streams is not None:
                    streams(some, layer)
                if between is not None:
                    between()

            return self.engine.prefill([_chunk(half, tokens) for half, tokens in some], on_layer)

        results = []
        for (half, tokens), found in zip(chunks, _one_by_one(compute, chunks, _number_of_chunk), strict=True):
            if isinstance(found, EngineFault):
                results.append(Result(half, fault=found.why))
                continue
            self.prompt_tokens += tokens
            half.prompt_told = [*(half.prompt_told if half.computed else ()), *found.prompt]
            if found.sampled is not None:
                results.append(Result(half, found.sampled))
        return results

    def _decode(self, halves: Sequence[Half], between: Callable[[], None] | None) -> list[Result]:
        on_layer = None if between is None else (lambda layer: between())

        def compute(some: Sequence[Half]) -> list[Sampled | EngineFault]:
            return self.engine.decode_step([_step(half) for half in some], on_layer)

        return [
            Result(half, fault=found.why) if isinstance(found, EngineFault) else Result(half, found)
            for half, found in zip(halves, _one_by_one(compute, halves, _number), strict=True)
        ]

    def _judged(self, results: Sequence[Result]) -> list[Result]:
        """Tokens put behind each half, and whether its answer ends there; one that ends before its length leaves the batch."""
        judged = []
        for half, sampled in ((each.half, each.sampled) for each in results if each.sampled is not None):
            half.tokens.append(sampled.token)
            self.output_tokens += 1
            finish = half.ending()
            judged.append(Result(half, sampled, finish))
            if half.hands_off:
                continue
            if half.stage is Stage.FINISHED:
                self._end(half)
            elif finish:
                self.remove(half)
        return judged


def _one_by_one(
    compute: Callable[[Sequence[A]], list[R | EngineFault]], asked: Sequence[A], number: Callable[[A], int]
) -> list[R | EngineFault]:
    """All in one call; where it raises, each alone."""
    if not asked:
        return []
    try:
        return compute(asked)
    except Exception as error:
        if len(asked) > 1:
            return [found for each in asked for found in _one_by_one(compute, (each,), number)]
        why = "out of memory" if isinstance(error, MemoryError) else f"{type(error).__name__}: {error}"
        log.exception("sequence %d cannot be computed", number(asked[0]))
        return [EngineFault(number(asked[0]), why)]


def _number(half: Half) -> int:
    return half.id


def _number_of_chunk(chunk: tuple[Half, int]) -> int:
    return chunk[0].id


def _chunk(half: Half, tokens: int) -> Chunk:
    """The next `tokens` of what must be in KV."""
    assert half.table is not None
    start, end = half.computed, half.computed + tokens
    last = end == half.todo
    return Chunk(
        half.id,
        tuple(half.tokens[start:end]),
        start,
        tuple(half.table.blocks),
        half.sampling if last else None,
        tuple(half.tokens) if last else (),
        half.answer if last else (),
        half.sampling.prompt_logprobs,
    )


def _step(half: Half) -> Step:
    assert half.table is not None
    return Step(half.id, half.tokens[-1], len(half.tokens) - 1, tuple(half.table.blocks), half.sampling, half.answer)
