"""The measurements of a probe, one after another on an idle fleet, each point the median of a few turns."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from diptych.perf.probed import DecodeStep, PromptStep
from diptych.runtime.probe.bench import Bench, Heard, Reached
from diptych.runtime.probe.plan import CHEAP, MORE_TURNS, SHORT, STEPS, TURNS, Plan

Say = Callable[[str], None]
BUSY_PROMPT, BUSY_BATCH = 256, 4
"""What the others do while one is measured beside them: prompts of so many tokens, so many answers."""


@dataclass(frozen=True, slots=True)
class Handed:
    """A prompt's handoff: seconds from prefill's word of the first token to decode's."""

    tokens: int
    seconds: float
    held: bool


async def warm(bench: Bench, plan: Plan) -> None:
    """What is slow only once: first batches, weights in another order, connections between workers."""
    for worker in bench.workers:
        await bench.whole(worker, bench.prompt(min(64, plan.longest)), 4)
        if worker.role != "prefill":
            count = max((batch for batch, tokens, _ in plan.decodes if tokens == SHORT), default=1)
            await bench.together(worker, [bench.prompt(min(SHORT, plan.longest)) for _ in range(count)], 4)
    for source in bench.of("prefill"):
        for target in bench.of("decode"):
            await bench.handed(source, target, bench.prompt(min(64, plan.longest)))


async def prompts(
    bench: Bench, worker: Reached, target: Reached | None, plan: Plan
) -> tuple[list[PromptStep], list[Handed]]:
    """Seconds from a prompt's submission to its first token on an idle worker, and of its handoff to `target` where there is
    one; turns of all sizes in rotation."""
    computed: dict[int, list[float]] = defaultdict(list)
    moved: dict[int, list[float]] = defaultdict(list)
    for turn in range(MORE_TURNS):
        for tokens in [size for size, _ in plan.prompts if turn < TURNS or size <= CHEAP]:
            heard, owned = await _first_token(bench, worker, target, bench.prompt(tokens))
            computed[tokens].append(heard.ttft)
            moved[tokens].append(max(owned - heard.times[0], 1e-6))
    steps = [
        PromptStep(tokens, 0.0, statistics.median(computed[tokens]), not fitted) for tokens, fitted in plan.prompts
    ]
    handed = [Handed(tokens, statistics.median(moved[tokens]), not fitted) for tokens, fitted in plan.prompts]
    return steps, handed if target is not None else []


async def _first_token(
    bench: Bench, worker: Reached, target: Reached | None, prompt: tuple[int, ...]
) -> tuple[Heard, float]:
    """What computed the prompt, and when its KV was the target's."""
    if target is None:
        heard = await bench.whole(worker, prompt)
        return heard, heard.times[0]
    heard, answered = await bench.handed(worker, target, prompt)
    return heard, answered.times[0]


async def pasts(bench: Bench, worker: Reached, plan: Plan) -> list[PromptStep]:
    """The same of prompts whose first part is in the prefix cache; what was really found there counts."""
    found = []
    for tokens, past, fitted in plan.pasts:
        before = bench.prompt(past)
        await bench.whole(worker, before + bench.prompt(1))
        turns = [await bench.whole(worker, before + bench.prompt(tokens)) for _ in range(TURNS)]
        sizes = {turn.cached for turn in turns}
        if len(sizes) == 1 and (cached := sizes.pop()):
            took = statistics.median(turn.ttft for turn in turns)
            found.append(PromptStep(past + tokens - cached, cached, took, not fitted))
    return found


async def decodes(bench: Bench, worker: Reached, plan: Plan) -> list[DecodeStep]:
    """Gaps between tokens while a batch of answers is under way together, two turns of each in rotation."""
    gaps: dict[tuple[int, int, bool], list[float]] = defaultdict(list)
    for _ in range(2):
        for point in plan.decodes:
            gaps[point] += await _gaps(bench, worker, point[0], point[1])
    return [
        DecodeStep(batch, tokens + STEPS / 2 + 1, statistics.median(seen), not fitted)
        for (batch, tokens, fitted), seen in gaps.items()
    ]


async def _gaps(bench: Bench, worker: Reached, batch: int, tokens: int) -> list[float]:
    """From when the last one has its first token until the first one ends."""
    begun = await bench.together(worker, [bench.prompt(tokens) for _ in range(batch)], STEPS + 2)
    start, end = max(heard.times[0] for heard in begun), min(heard.times[-1] for heard in begun)
    pairs = [pair for heard in begun for pair in zip(heard.times, heard.times[1:], strict=False)]
    together = [after - before for before, after in pairs if before >= start and after <= end]
    return together or [after - before for before, after in pairs]


async def slowed(bench: Bench, worker: Reached, others: list[Reached], plan: Plan) -> float:
    """How much longer a step of this worker takes while the others compute. 1 without others."""
    if not others:
        return 1.0
    alone = await _pace(bench, worker, plan)
    async with _busy(bench, others, plan):
        beside = await _pace(bench, worker, plan)
    return max(1.0, beside / alone)


async def _pace(bench: Bench, worker: Reached, plan: Plan) -> float:
    """Seconds of what this worker's role does."""
    if worker.role == "prefill":
        size = min(128, plan.longest)
        return statistics.median([(await bench.whole(worker, bench.prompt(size))).ttft for _ in range(2 * TURNS)])
    size = min(SHORT, plan.longest)
    batch = min(BUSY_BATCH, plan.sequences)
    return statistics.median([gap for _ in range(TURNS) for gap in await _gaps(bench, worker, batch, size)])


@contextlib.asynccontextmanager
async def _busy(bench: Bench, workers: list[Reached], plan: Plan) -> AsyncIterator[None]:
    """These compute without a pause: a prefill worker prompts, another one answers."""

    async def work(worker: Reached) -> None:
        while True:
            if worker.role == "prefill":
                await bench.whole(worker, bench.prompt(min(BUSY_PROMPT, plan.longest)))
            else:
                some = [bench.prompt(min(SHORT, plan.longest)) for _ in range(min(BUSY_BATCH, plan.sequences))]
                await bench.together(worker, some, 8 * STEPS)

    tasks = [asyncio.create_task(work(worker)) for worker in workers]
    await asyncio.sleep(0.3)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in workers:
            worker.stop()
