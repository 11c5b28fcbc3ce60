"""A prefill engine of several pipeline stages: a step goes through them one after another, the next one follows a stage behind.

Chunks and prompts overlap: throughput is one step per slowest stage, latency the sum over the stages. A stage takes its share of
the layers of the step's time and works first come first served, so step j leaves stage s at
max(when it left stage s − 1, when step j − 1 left stage s) + its share: a flow shop. Chunks of one prompt may follow each other
so, since a stage that has done a chunk holds its layers' KV, which is all that the next chunk reads there.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate, pairwise
from typing import Any

from diptych.serving.batching import BatchRules
from diptych.serving.blocks import BlockPool
from diptych.simulator.clock import THROUGH, Clock
from diptych.simulator.request import Request
from diptych.simulator.tables import StepTable
from diptych.simulator.worker import Done, VirtualWorker


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage: an even split, what remains going to the stages before the last, as vLLM splits.

    >>> stage_layers(61, 4)
    (15, 15, 16, 15)
    """
    even, rest = divmod(layers, stages)
    return tuple(even + (stages - 1 - rest <= stage < stages - 1) for stage in range(stages))


class PipelinedWorker(VirtualWorker):
    """A prefill worker whose `stages` work on successive steps at a time. Prompts stay in `partial` until the last stage is
    done with them. Should it have to decode (a fallback), it does so when the pipeline is empty."""

    __slots__ = ("clock", "ends", "flights", "upto")

    def __init__(
        self,
        index: int,
        member: Any,
        rules: BatchRules,
        pool: BlockPool,
        table: StepTable,
        clock: Clock,
        done: Done,
        skip: bool,
    ) -> None:
        super().__init__(index, member, rules, pool, table, clock, done, skip)
        self.clock = clock
        self.upto = tuple(accumulate(stage_layers(member.model.num_layers, member.parallelism.pp)))
        self.ends = [0] * len(self.upto)  # when each stage is done with what it has
        self.flights: deque[list[Request]] = deque()  # prompts that each step on its way completes

    @property
    def pace(self) -> float:
        """The slowest stage's share of a step."""
        return max(b - a for a, b in pairwise((0, *self.upto))) / self.upto[-1]

    def begin(self, now: int, early: bool = False) -> None:
        """The next step enters the first stage; decodes and conversions wait for an empty pipeline."""
        if not (self.flights and (self.batch or self.ready or self.debt)):
            super().begin(now, early)

    def complete(self, steps: int) -> bool:
        """The first stage is done with a step of prompts; nobody's prompt is complete before the last one is."""
        chunks = self.chunks
        if not chunks:
            return super().complete(steps)
        for request, tokens in chunks:
            request.computed += tokens
        self.chunks = []
        self.tokens = self.pairs = 0
        return False

    def die(self, now: int) -> None:
        """The worker stops: what is between its stages is lost too."""
        self.flights.clear()
        super().die(now)

    def apply(self, now: int) -> None:
        """Whoever leaves within a step on its way leaves when that step is through."""
        inside = {id(request) for ended in self.flights for request in ended}
        staying = [request for request in self.leaving if id(request) in inside]
        self.leaving = [request for request in self.leaving if id(request) not in inside]
        super().apply(now)
        self.leaving += staying
        self.between = bool(self.leaving or self.debt)

    def _prompt_ps(self, now: int) -> int:
        """A step enters: for how long it keeps the first stage busy."""
        stream, self.stream = self.stream, None
        took = super()._prompt_ps(now)
        self.stream = stream
        leaves, before = now, 0
        for stage, layers in enumerate(self.upto):
            leaves = max(leaves, self.ends[stage]) + took * layers // self.upto[-1] - before
            before = took * layers // self.upto[-1]
            self.ends[stage] = leaves
        ended = [request for request, tokens in self.chunks if request.computed + tokens >= request.todo]
        self.flights.append(ended)
        self.clock.at(leaves, THROUGH + self.index, self._leaves, ended)
        if stream is not None:
            self.tell(now, leaves - now)
        self.first = self.ends[0] - now
        return self.first

    def _leaves(self, now: int, ended: list[Request]) -> None:
        """A step is through the last stage, unless the worker died meanwhile."""
        if not self.flights or self.flights[0] is not ended:
            return
        self.flights.popleft()
        self.finished, self.prefilled = [], []
        for request in ended:
            self.partial.remove(request)
            self._prefilled(request)
        if ended:
            self.done(self, now)
        if not self.active and self.up:
            self.begin(now)
