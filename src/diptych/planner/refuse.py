"""Why nothing fits: which rule dropped how many designs, and how near the nearest came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from diptych.design.axes import Role, Worker
from diptych.errors import NoFeasibleDesign
from diptych.perf.memory import fit_problem, memory_plan
from diptych.planner.ask import Ask
from diptych.planner.enumerate import RoleSpace
from diptych.planner.search import Tables
from diptych.units import format_bytes, format_seconds


def refuse(ask: Ask, spaces: Mapping[Role, RoleSpace], tables: Tables, rate: float) -> NoFeasibleDesign:
    """The refusal for a search that found nothing at `rate`."""
    dropped: Counter[str] = Counter()
    for space in spaces.values():
        dropped.update(space.dropped.counts)
    if not any(space.candidates for space in spaces.values()):
        return NoFeasibleDesign(_nowhere(ask, spaces), dropped, _nearest_fit(ask, spaces))
    below = _below_floor(ask, tables, spaces)
    if below:
        return NoFeasibleDesign(below, dropped, "loosen the objective, or allow narrower weights with --quality")
    return NoFeasibleDesign(
        f"no fleet keeps {ask.slo} for {ask.model.name} at {rate:g} requests/s",
        dropped,
        _nearest_miss(ask, tables, spaces),
    )


def _nowhere(ask: Ask, spaces: Mapping[Role, RoleSpace]) -> str:
    counts: Counter[str] = Counter()
    for space in spaces.values():
        counts.update(space.dropped.counts)
    memory = counts.get("weights_fit", 0) + counts.get("longest_request_fits", 0)
    if memory:
        return f"{ask.model.name} with requests of {ask.lengths.max_context:.0f} tokens fits on nothing that is offered"
    rule, _ = counts.most_common(1)[0] if counts else ("", 0)
    sentence = next((s.dropped.sentences[rule] for s in spaces.values() if rule in s.dropped.sentences), "")
    return f"nothing that is offered can run {ask.model.name} under these pins: {sentence[:1].lower()}{sentence[1:]}"


def _nearest_fit(ask: Ask, spaces: Mapping[Role, RoleSpace]) -> str:
    """The worker that comes nearest to holding the model."""
    examples = [
        space.dropped.examples.get(rule)
        for space in spaces.values()
        for rule in ("longest_request_fits", "weights_fit")
    ]
    nearest = _roomiest(spaces)
    if nearest is not None:
        short = memory_plan(nearest).shortfall * nearest.accelerators
        problem = fit_problem(nearest, ask.lengths.max_context)
        return f"nearest: {problem}" if problem else f"nearest: {nearest.label}, short by {format_bytes(short)}"
    return next((f"nearest: {example}" for example in examples if example), "")


def _roomiest(spaces: Mapping[Role, RoleSpace]) -> Worker | None:
    misses = [space.nearest for space in spaces.values() if space.nearest is not None]
    return min(misses, key=lambda worker: memory_plan(worker).shortfall * worker.accelerators, default=None)


def _below_floor(ask: Ask, tables: Tables, spaces: Mapping[Role, RoleSpace]) -> str:
    """An objective that no candidate meets even at rest, with the lowest floor there is and what sets it."""
    for goal in ask.slo.of("tpot"):
        workers = spaces[Role.DECODE].workers or spaces[Role.COLOCATED].workers
        floors = [(tables.floors.lone_step(worker), worker) for worker in workers]
        lowest, worker = min(floors, key=lambda entry: entry[0])
        if lowest > goal.limit:
            return (
                f"{goal} is below the physical floor: reading the weights once takes at least {format_seconds(lowest)} "
                f"(weights over memory bandwidth, {worker.label})"
            )
    for goal in ask.slo.of("ttft"):
        workers = spaces[Role.PREFILL].workers or spaces[Role.COLOCATED].workers
        times = [(ask.lengths.quantile(tables.floors.prefill_seconds(w), goal.quantile or 0.5), w) for w in workers]
        lowest, worker = min(times, key=lambda entry: entry[0])
        if lowest > goal.limit:
            return (
                f"{goal} is below the physical floor: multiplying the prompt through the feed-forward layers takes at least "
                f"{format_seconds(lowest)} (FLOP over peak, {worker.label})"
            )
    return ""


def _nearest_miss(ask: Ask, tables: Tables, spaces: Mapping[Role, RoleSpace]) -> str:
    """The lowest latency any timed worker reaches at rest, for the objective that rules most out."""
    lone = [(float(stage.pool.step(1.0)), stage.worker) for stage in tables.decode.values()]
    best = min(lone, key=lambda entry: entry[0], default=None)
    notes = [
        f"the best TPOT at rest is {format_seconds(best[0])} ({best[1].label}), {goal} was asked"
        for goal in ask.slo.of("tpot")
        if best is not None and best[0] > goal.limit
    ]
    for goal in ask.slo.of("ttft"):
        alone = [
            (ask.lengths.quantile(np.asarray(stage.pool.service), goal.quantile or 0.5), stage.worker)
            for stage in tables.prefill.values()
        ]
        if alone and (first := min(alone, key=lambda entry: entry[0]))[0] > goal.limit:
            notes.append(f"the best prefill at rest is {format_seconds(first[0])} ({first[1].label}), {goal} was asked")
    return "; ".join(notes) or "each stage alone would do, but not with the handoff or at this rate"
