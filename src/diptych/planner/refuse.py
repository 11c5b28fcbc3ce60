"""Why nothing fits: which rule dropped how many designs, and how near the nearest came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from diptych.design.axes import Role, Worker
from diptych.design.boundary import Placement
from diptych.design.constraints import (
    BOUNDARY_RULES,
    FIT_RULES,
    OFFER_RULES,
    PRECISION_RULES,
    RESIDENCY_RULES,
    SHAPE_RULES,
)
from diptych.design.worker_rules import pinned_engine_executes_precision
from diptych.errors import NoFeasibleDesign
from diptych.perf.memory import fit_problem, memory_plan
from diptych.planner.ask import Ask
from diptych.planner.boundaries import Boundaries
from diptych.planner.enumerate import Dropped, RoleSpace, setting_of
from diptych.planner.space import PairCounts
from diptych.planner.tables import Tables
from diptych.units import format_bytes, format_seconds, format_usd


def refuse(ask: Ask, spaces: Mapping[Role, RoleSpace], tables: Tables, rate: float) -> NoFeasibleDesign:
    """The refusal for a search that found nothing at `rate`."""
    dropped: Counter[str] = Counter()
    for space in spaces.values():
        dropped.update(space.dropped.counts)
    idle: dict[Role, RoleSpace] = {role: space for role, space in spaces.items() if not space.candidates}
    asked_apart = ask.pinned_apart or ask.placement not in (None, Placement.COLOCATED)
    needed: dict[Role, RoleSpace] = dict(idle)
    if asked_apart:
        needed.pop(Role.COLOCATED, None)
    if needed and (asked_apart or (Role.COLOCATED in idle and (len(idle) > 1 or ask.placement is not None))):
        return NoFeasibleDesign(_nowhere(ask, needed), dropped, _nearest_fit(ask, needed))
    if (asked_apart or Role.COLOCATED in idle) and (broken := _no_pair(ask, spaces)):
        return NoFeasibleDesign(broken, dropped)
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
    if memory and not set(counts) & _PINNED_LAST:
        return f"{ask.model.name} with requests of {ask.lengths.max_context:.0f} tokens fits on nothing that is offered"
    rule = max(counts, key=lambda name: (_ORDER.get(name, -1), counts[name]), default="")
    sentence = next((s.dropped.sentences[rule] for s in spaces.values() if rule in s.dropped.sentences), "")
    example = next((s.dropped.examples[rule] for s in spaces.values() if rule in s.dropped.examples), "")
    return (
        f"nothing that is offered can run {ask.model.name} under these pins: {sentence[:1].lower()}{sentence[1:]}"
        + (f" ({example})" if example else "")
    )


_APPLIED = (
    *PRECISION_RULES,
    pinned_engine_executes_precision,
    *SHAPE_RULES,
    *FIT_RULES,
    *OFFER_RULES,
    *RESIDENCY_RULES,
)
_ORDER = {rule.__name__: place for place, rule in enumerate(_APPLIED)} | {"prefixes_are_fetched_by_prefill_pools": 99}
"""When a rule is applied: the last to drop something is what stood in the way of the designs that came furthest."""
_HANDING = {rule.__name__: place for place, rule in enumerate(BOUNDARY_RULES)}
_PINNED_LAST = {"live_kv_is_in_hbm", "prefixes_are_fetched_by_prefill_pools"}


def _no_pair(ask: Ask, spaces: Mapping[Role, RoleSpace]) -> str:
    """The rule that leaves no way to hand over between any two candidates, '' when some way is left."""
    prefill, decode, setting, dropped = spaces[Role.PREFILL], spaces[Role.DECODE], setting_of(ask), Dropped()
    if not (prefill.candidates and decode.candidates):
        return ""
    if PairCounts(Boundaries(ask, setting), setting).count(prefill.candidates, decode.candidates, dropped):
        return ""
    rule = max(dropped.counts, key=lambda name: _HANDING.get(name, -1))
    sentence = dropped.sentences[rule]
    return (
        f"no handoff is left for {ask.model.name} under these pins: {sentence[:1].lower()}{sentence[1:]} "
        f"({dropped.examples[rule]})"
    )


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


def below_floor(ask: Ask, spaces: Mapping[Role, RoleSpace], tables: Tables) -> NoFeasibleDesign | None:
    """The refusal of an objective that physics rules out, which no search is needed for; None when none is."""
    if not all(spaces[role].workers or spaces[Role.COLOCATED].workers for role in (Role.PREFILL, Role.DECODE)):
        return None
    below = _below_floor(ask, tables, spaces)
    dropped: Counter[str] = Counter()
    for space in spaces.values():
        dropped.update(space.dropped.counts)
    told = "loosen the objective, or allow narrower weights with --quality"
    return NoFeasibleDesign(below, dropped, told) if below else None


def _below_floor(ask: Ask, tables: Tables, spaces: Mapping[Role, RoleSpace]) -> str:
    """An objective that no candidate meets even at rest, with the lowest floor there is and what sets it."""
    for goal in ask.slo.of("tpot"):
        workers = (*spaces[Role.DECODE].workers, *spaces[Role.COLOCATED].workers)
        floors = [(tables.floors.lone_step(worker), worker) for worker in workers]
        lowest, worker = min(floors, key=lambda entry: entry[0])
        if lowest > goal.limit:
            return (
                f"{goal} is below the physical floor: reading the weights once takes at least {format_seconds(lowest)} "
                f"(weights over memory bandwidth, {worker.label})"
            )
    for goal in ask.slo.of("ttft"):
        workers = (*spaces[Role.PREFILL].workers, *spaces[Role.COLOCATED].workers)
        times = [(ask.lengths.quantile(tables.floors.prefill_seconds(w), goal.quantile or 0.5), w) for w in workers]
        lowest, worker = min(times, key=lambda entry: entry[0])
        if lowest > goal.limit:
            return (
                f"{goal} is below the physical floor: multiplying the prompt through the feed-forward layers takes at least "
                f"{format_seconds(lowest)} (FLOP over peak, {worker.label})"
            )
    for goal in ask.slo.of("e2e"):
        whole = _shortest_answers(ask, tables, spaces)
        lowest = ask.lengths.mean(whole) if goal.quantile is None else ask.lengths.quantile(whole, goal.quantile)
        if lowest > goal.limit:
            return (
                f"{goal} is below the physical floor: computing the prompt and reading the weights once for every other token "
                f"takes at least {format_seconds(lowest)} (FLOP over peak, weights over memory bandwidth)"
            )
    return ""


def _shortest_answers(ask: Ask, tables: Tables, spaces: Mapping[Role, RoleSpace]) -> NDArray[np.float64]:
    """Seconds of every length point, prompt and answer each on the worker that is fastest at it; shape (points,)."""
    prefill = (*spaces[Role.PREFILL].workers, *spaces[Role.COLOCATED].workers)
    decode = (*spaces[Role.DECODE].workers, *spaces[Role.COLOCATED].workers)
    prompt = np.min([tables.floors.prefill_seconds(worker) for worker in prefill], axis=0)
    answer = np.maximum(ask.lengths.osl - 1, 0) * min(tables.floors.lone_step(worker) for worker in decode)
    shortest: NDArray[np.float64] = prompt + answer
    return shortest


def beyond_budget(ask: Ask, usd_per_hour: float) -> NoFeasibleDesign:
    """The refusal of a budget below the smallest fleet that keeps the SLO for a single request at a time."""
    return NoFeasibleDesign(
        f"{format_usd(ask.budget or 0.0)} USD/h rents no fleet that keeps {ask.slo} for {ask.model.name}",
        nearest=f"the smallest that does costs {format_usd(usd_per_hour)} USD/h",
    )


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
