"""What one engine step holds: continuous batching of decodes, prompts in chunks beside them, blocks, preemption.

The rules are vLLM V1's: running sequences come first and each decode takes one token of the step's budget, then prompts already
begun, then waiting ones, first come first served (or shortest first), cut to what is left of the budget. When a decode finds no
block, the sequence admitted last gives its KV up and is computed again later. Engines that don't mix prompts into decode steps
(SGLang) run prompts alone while decodes wait. `reserve` holds every block of prompt and answer from admission on instead.

    plan()      → what the next step holds: `chunks` beside `batch` sequences of `context` tokens in all; for how many steps
    complete(n) → n such steps are done: `prefilled` and `finished` say for whom

Tokens of the decode batch are never touched one by one. A sequence is one entry in a heap of finishing steps, and the blocks of
the batch follow from two sums: with c_i tokens each, Σ⌈c_i/b⌉ = (Σc_i + Σ(−c_i mod b))/b, and since all c_i grow by one per step,
−c_i mod b is (phase_i − step) mod b with a phase that never changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, TypeVar

from diptych.serving.blocks import BlockPool
from diptych.serving.request import NO_BLOCKS, Sequence, Stage

PREFILLING: Final = Stage.PREFILLING
HANDING_OFF: Final = Stage.HANDING_OFF
DECODING: Final = Stage.DECODING
FINISHED: Final = Stage.FINISHED

S = TypeVar("S", bound=Sequence)
Holding = tuple[int, list[Any]]
"""Blocks held alone, and the hashes of those shared."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How an engine fills its steps: prefill tokens per step, most sequences, and the choices of the module's docstring."""

    budget: int = 8192
    sequences: int = 1024
    mixes: bool = True
    chunks: bool = True
    shortest_first: bool = False
    reserve: bool = False


class Batch(Generic[S]):
    """The queue and the running set of one engine."""

    __slots__ = (
        "batch",
        "chunks",
        "context",
        "finished",
        "order",
        "pairs",
        "partial",
        "phases",
        "pool",
        "preemptions",
        "prefilled",
        "ready",
        "reserves",
        "rules",
        "running",
        "shared",
        "step",
        "tokens",
        "waiting",
    )

    def __init__(self, rules: BatchRules, pool: BlockPool) -> None:
        self.rules, self.pool, self.reserves = rules, pool, rules.reserve
        self.waiting: deque[S] = deque()
        self.ready: deque[S] = deque()  # KV is here, no slot yet
        self.partial: list[S] = []  # prompts begun
        self.running: list[tuple[int, int, S]] = []  # heap of (finishing step, order, sequence)
        self.batch = self.context = self.shared = self.step = self.order = self.preemptions = 0
        self.phases = [0] * pool.size
        self.chunks: list[tuple[S, int]] = []  # of the step planned last: (sequence, tokens)
        self.tokens = self.pairs = 0  # of these chunks: tokens, and token pairs their attention forms
        self.prefilled: list[S] = []
        self.finished: list[S] = []

    @property
    def idle(self) -> bool:
        """Nothing to run, unless something waiting finds room."""
        return not (self.batch or self.chunks)

    @property
    def queued(self) -> int:
        """Sequences that wait for a slot, for blocks or for the budget."""
        return len(self.waiting) + len(self.ready)

    # --- events -----------------------------------------------------------------------------------------------------

    def add(self, sequence: S) -> None:
        """A sequence whose KV must be computed here joins the queue."""
        if not self.rules.shortest_first:
            self.waiting.append(sequence)
            return
        place = len(self.waiting)
        while place and self.waiting[place - 1].todo > sequence.todo:
            place -= 1
        self.waiting.insert(place, sequence)

    def reserve(self, sequence: S, steps: int = 0) -> Holding | None:
        """Hold the blocks that a sequence handed over needs for its first step; None when they are not free `steps` from now.

        Prefix blocks that are here already are shared, not reserved again. A preempted sequence that waits for blocks goes first.
        """
        if self.waiting and self.waiting[0].generated:
            return None
        pool = self.pool
        tokens = sequence.todo + (sequence.osl - sequence.generated if self.reserves else 1)
        taken, woken = NO_BLOCKS, 0
        if sequence.blocks and pool.cache is not None:
            taken, woken = self._match(sequence.blocks, sequence.todo // pool.hash_tokens, steps)
        need = -(-tokens // pool.size) - len(taken) * pool.per_hash
        if not self.has_room(need + woken, steps):
            return None
        pool.held += need
        if taken:
            self._take(taken)
        return need, taken

    def join(self, sequence: S, holding: Holding, steps: int = 0) -> None:
        """A sequence whose KV is here, in the blocks reserved for it, may decode from the next step on, `steps` from now."""
        sequence.computed = sequence.todo
        sequence.held, taken = holding
        if taken:
            sequence.taken, sequence.shared = taken, len(taken) * self.pool.hash_tokens
        if sequence.blocks and self.pool.cache is not None:
            self._share(sequence, steps)
        self.ready.append(sequence)

    def detach(self, sequence: S) -> Holding:
        """What a sequence holds here, from now on held in its handoff's name until `free`."""
        holding = sequence.held, sequence.taken
        sequence.held = sequence.shared = 0
        sequence.taken = NO_BLOCKS
        return holding

    def free(self, holding: Holding, steps: int = 0) -> None:
        """Blocks reserved or pinned are free again, `steps` into the run."""
        pool = self.pool
        if pool.cache is not None:
            self.settle(steps)
            if holding[1]:
                pool.held -= pool.cache.drop(holding[1]) * pool.per_hash
        pool.held -= holding[0]

    def release(self, sequence: S) -> None:
        """Blocks that a sequence holds outside the decode batch are free again."""
        self.free(self.detach(sequence))

    def remove(self, sequence: S) -> bool:
        """Forget a sequence wherever it is, blocks and all; False when it is not here."""
        for queue in (self.waiting, self.ready, self.partial):
            if sequence in queue:
                queue.remove(sequence)
                self.chunks = [chunk for chunk in self.chunks if chunk[0] is not sequence]
                self.release(sequence)
                return True
        for index, (_, _, other) in enumerate(self.running):
            if other is sequence:
                del self.running[index]
                heapify(self.running)
                self._leave(sequence)
                return True
        return False

    def forget(self) -> None:
        """Memory is gone: nobody is here, nothing is held or cached."""
        self.waiting.clear()
        self.ready.clear()
        self.partial.clear()
        self.running.clear()
        self.chunks = []
        self.prefilled, self.finished = [], []
        self.batch = self.context = self.shared = 0
        self.phases = [0] * self.pool.size
        pool = self.pool
        pool.held = 0
        pool.evicted.clear()
        if pool.cache is not None:
            pool.cache.live.clear()
            pool.cache.idle.clear()

    def everyone(self) -> Iterator[S]:
        """Every sequence that waits or runs here."""
        yield from self.waiting
        yield from self.ready
        yield from self.partial
        for _, _, sequence in self.running:
            yield sequence

    # --- blocks -----------------------------------------------------------------------------------------------------

    def growing(self, steps: int = 0) -> int:
        """Blocks of the decode batch during the step `steps` from now, exactly."""
        if self.reserves:
            return 0
        size, now = self.pool.size, self.step + steps
        tokens = self.context - self.shared + steps * self.batch
        padding = sum(count * ((phase - now) % size) for phase, count in enumerate(self.phases) if count)
        return (tokens + padding) // size

    def has_room(self, need: int, steps: int = 0) -> bool:
        """Whether `need` blocks are free during the step `steps` from now. A bound settles it unless the pool is nearly full."""
        pool = self.pool
        room = pool.capacity - pool.held - need
        if self.reserves:
            return room >= 0
        size = pool.size
        if self.context - self.shared + (steps + size - 1) * self.batch <= room * size:
            return True
        return self.growing(steps) <= room

    def settle(self, steps: int = 0) -> None:
        """Evict idle cached blocks that live ones have grown into. Called before anything shrinks, so that no peak is missed."""
        pool = self.pool
        if pool.cache is not None and pool.cache.idle:
            gone = pool.cache.evict((pool.capacity - pool.held - self.growing(steps)) // pool.per_hash)
            if pool.reports:
                pool.evicted.extend(gone)

    # --- one step ---------------------------------------------------------------------------------------------------

    def plan(self) -> int:
        """Form the next step in `chunks`, `tokens`, `pairs`, `batch`, `context`.

        Returns for how many steps it stays as it is unless somebody comes: until a sequence finishes or the batch outgrows its
        blocks, 1 when it holds prompts, 0 when nothing can run.
        """
        if self.ready:
            self._start_ready()
        if self.waiting or self.partial:
            before = self.preemptions
            if self._prompts():
                return 1
            if self.preemptions != before:
                return 1 if self.batch else self.plan()  # a slot came free: the next step may hold somebody else
        size = self.batch
        if not size:
            return 0
        steps = self.running[0][0] - self.step
        pool = self.pool
        most = self.context - self.shared + (steps + pool.size - 2) * size
        if self.reserves or most <= (pool.capacity - pool.held) * pool.size:
            return steps
        return self._until_full()

    def complete(self, steps: int) -> bool:
        """`steps` steps as planned are done; whether that was the last one for anybody in `prefilled` and `finished`."""
        chunks = self.chunks
        if chunks and not self.rules.mixes:
            steps = 0  # decodes waited
        self.step = step = self.step + steps
        self.context += steps * self.batch
        running = self.running
        if not chunks and (not running or running[0][0] > step):
            return False
        self.finished = finished = []
        self.prefilled = []
        while running and running[0][0] <= step:
            sequence = heappop(running)[2]
            self._leave(sequence)
            sequence.stage = FINISHED
            finished.append(sequence)
        if chunks:
            self.chunks = []
            self.tokens = self.pairs = 0
            for sequence, tokens in chunks:
                sequence.computed += tokens
                if sequence.computed >= sequence.todo:
                    self.partial.remove(sequence)
                    self._prefilled(sequence)
        return True

    # --- inside -----------------------------------------------------------------------------------------------------

    def _start_ready(self) -> None:
        """Into the batch with those whose KV is here, as far as there are slots."""
        ready, slots = self.ready, self.rules.sequences - self.batch - len(self.partial)
        while ready and slots > 0:
            self._start(ready.popleft())
            slots -= 1

    def _make_room(self) -> bool:
        """Preempt until the decodes find blocks for their next token; whether anybody had to go."""
        preempted = False
        while self.batch and not self.has_room(0):
            self._preempt(self._last())
            preempted = True
        return preempted

    def _until_full(self) -> int:
        """The most steps until a sequence finishes for which blocks suffice. They never come free along a run."""
        if self._make_room():
            return 1 if self.batch else self.plan()
        low, high = 1, self.running[0][0] - self.step
        if self.has_room(0, high - 1):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.has_room(0, middle - 1) else (low, middle)
        return low

    def _prompts(self) -> bool:
        """Chunks of prompts begun, then of waiting ones while budget, slots and blocks last; whether there are any."""
        rules, waiting, partial = self.rules, self.waiting, self.partial
        self.tokens = self.pairs = 0
        preempted = self.batch > 0 and self._make_room()
        left = rules.budget - (self.batch if rules.mixes else 0)
        if partial:
            for sequence in tuple(partial):
                if left > 0:
                    left -= self._chunk(sequence, left)
        if not preempted:
            slots = rules.sequences - self.batch - len(partial)
            while waiting and left > 0 and slots > 0:
                tokens = self._admit(waiting[0], left)
                if not tokens:
                    break
                waiting.popleft()
                left -= tokens
                slots -= 1
        return bool(self.chunks)

    def _admit(self, sequence: S, left: int) -> int:
        """Give a waiting sequence the blocks of its first chunk, or of all it will need. Tokens scheduled, 0 without room."""
        pool = self.pool
        past, taken, woken = sequence.computed, NO_BLOCKS, 0
        if sequence.blocks and pool.cache is not None:
            # The last token is always computed: it gives the first one of the answer.
            taken, woken = self._match(sequence.blocks, (sequence.todo - 1) // pool.hash_tokens)
            past = max(past, len(taken) * pool.hash_tokens)
        tokens = sequence.todo - past
        if tokens > left:
            if self.rules.chunks:
                tokens = left
            elif self.chunks:
                return 0
        if sequence.hands_off or not self.rules.mixes:
            # Whole or not begun: half prompts could wait for each other, or keep decodes from ending.
            kept = sequence.todo
        else:
            kept = sequence.todo + sequence.osl - sequence.generated if self.reserves else past + tokens
        need = -(-kept // pool.size) - len(taken) * pool.per_hash
        if pool.held + need + woken > pool.capacity or (self.batch and not self.has_room(need + woken)):
            return 0
        sequence.held = need
        sequence.computed = past
        pool.held += need
        if taken:
            self._take(taken)
            sequence.taken, sequence.shared = taken, len(taken) * pool.hash_tokens
        self.order = sequence.order = self.order + 1
        sequence.stage = PREFILLING
        self.partial.append(sequence)
        self.chunks.append((sequence, tokens))
        self.tokens += tokens
        self.pairs += tokens * (2 * past + tokens)  # twice the pairs of n(past + n/2)
        return tokens

    def _chunk(self, sequence: S, left: int) -> int:
        """The next chunk of a prompt begun; others, or itself, are preempted when its blocks are not free. Tokens scheduled."""
        if not sequence.order:
            return 0  # preempted for an older prompt of this step
        tokens = min(sequence.todo - sequence.computed, left)
        if not tokens:
            return 0  # all of it is in steps on their way through a pipeline
        if not self.reserves:
            need = max(-(-(sequence.computed + tokens - sequence.shared) // self.pool.size) - sequence.held, 0)
            while need and not self.has_room(need):
                victim = self._last()
                self._preempt(victim)
                if victim is sequence:
                    return 0
            sequence.held += need
            self.pool.held += need
        self.chunks.append((sequence, tokens))
        self.tokens += tokens
        self.pairs += tokens * (2 * sequence.computed + tokens)
        return tokens

    def _prefilled(self, sequence: S) -> None:
        """A prompt is complete: its first token (or the next one, after a loss) is out."""
        self.prefilled.append(sequence)
        if sequence.blocks and self.pool.cache is not None:
            self._share(sequence)
        sequence.generated += 1
        if sequence.generated >= sequence.osl:
            self.release(sequence)
            sequence.stage = FINISHED
            self.finished.append(sequence)
        elif sequence.hands_off:
            sequence.stage = HANDING_OFF  # its blocks stay held until released
        else:
            self._start(sequence)

    def _start(self, sequence: S) -> None:
        """Into the decode batch: its blocks are counted by phase from now on."""
        if not sequence.order:
            self.order = sequence.order = self.order + 1
        context = sequence.todo + 1
        step = self.step
        sequence.finish = finish = step + sequence.osl - sequence.generated
        sequence.stage = DECODING
        heappush(self.running, (finish, sequence.order, sequence))
        self.batch += 1
        self.context += context
        self.shared += sequence.shared
        if not self.reserves:
            pool = self.pool
            pool.held -= sequence.held
            sequence.held = 0
            self.phases[(step - context) % pool.size] += 1

    def _leave(self, sequence: S) -> None:
        """Out of the decode batch (and already out of its heap): how far it got, its blocks free."""
        pool, step = self.pool, self.step
        if pool.cache is not None:
            self.settle()
        sequence.generated = generated = sequence.osl - sequence.finish + step
        context = sequence.prompt + generated
        if not self.reserves:
            self.phases[(step - context) % pool.size] -= 1
        self.batch -= 1
        self.context -= context
        self.shared -= sequence.shared
        if sequence.held or sequence.taken:
            self.release(sequence)

    def _last(self) -> S:
        """The sequence admitted last."""
        newest = max(self.running, key=_admission, default=None)
        if self.partial and (newest is None or self.partial[-1].order > newest[1]):
            return self.partial[-1]
        assert newest is not None, "preemption of an empty batch"
        return newest[2]

    def _preempt(self, sequence: S) -> None:
        """Its KV goes; it waits first in line to be computed again."""
        self.preemptions += 1
        if sequence in self.partial:
            self.partial.remove(sequence)
            self.release(sequence)
        else:
            self.running.remove((sequence.finish, sequence.order, sequence))
            heapify(self.running)
            self._leave(sequence)
        sequence.lose()
        sequence.order = 0
        self.waiting.appendleft(sequence)

    def _match(self, hashes: tuple[Any, ...], most: int, steps: int = 0) -> tuple[list[Any], int]:
        """The leading blocks that are cached, `most` hashes at most, and how many blocks of them are idle. Nothing is touched:
        a look that comes to nothing must not make a prefix look used."""
        cache = self.pool.cache
        assert cache is not None
        self.settle(steps)
        taken = list(hashes[: min(cache.match(hashes), most)])
        return taken, sum(key in cache.idle for key in taken) * self.pool.per_hash

    def _take(self, taken: list[Any]) -> None:
        """Refer to cached blocks."""
        assert self.pool.cache is not None
        self.pool.held += self.pool.cache.take(taken) * self.pool.per_hash

    def _share(self, sequence: S, steps: int = 0) -> None:
        """Let others find the blocks of a prompt just computed."""
        pool = self.pool
        assert pool.cache is not None
        self.settle(steps)
        full = sequence.blocks[len(sequence.taken) : sequence.prompt // pool.hash_tokens]
        mine, _ = pool.cache.add(full)
        sequence.taken = [*sequence.taken, *mine]
        sequence.shared += len(mine) * pool.hash_tokens
        sequence.held -= len(mine) * pool.per_hash


def _admission(entry: tuple[int, int, Any]) -> int:
    return entry[1]
