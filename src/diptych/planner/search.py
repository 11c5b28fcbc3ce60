"""The exact search: best first over pairs of candidates, each stage timed only when its bound cannot dismiss it.

A disaggregated design costs at least what its pools cost alone with a free handoff, so for prefill candidate p and decode
candidate d

    floor(p) + floor(d) ≤ alone(p) + alone(d) ≤ cost(p, d, any boundary),

where `floor` comes from the data sheet (`floors`) and `alone` from the stage tables (`stages`). Pairs are taken in the order of
the best bound known; a bound is sharpened, from floor to alone to the sized pair, only while it lies below the incumbent of its
class. What is never touched is dismissed by a bound at or above an incumbent: no cheaper design is lost. `brute_force` sizes
everything and must agree.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from diptych.catalog.interconnect import Link
from diptych.design.axes import Role, Worker
from diptych.design.boundary import Boundary, Placement
from diptych.perf.estimate import Array
from diptych.perf.queueing import wait
from diptych.planner.ask import Ask
from diptych.planner.boundaries import Boundaries
from diptych.planner.delay import Delay, no_wait
from diptych.planner.enumerate import Candidate, RoleSpace
from diptych.planner.floors import Floors
from diptych.planner.meeting import Meeting, Sized, cheapest, cheapest_on_nodes, idle_in_time
from diptych.planner.plan import Answer
from diptych.planner.rushes import Steps
from diptych.planner.size import MOST_WORKERS, fewest, fluid
from diptych.planner.stages import ColocatedStage, DecodeStage, Load, PrefillStage, answer_seconds

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Pooled:
    """A colocated pool, sized."""

    candidate: Candidate
    stage: ColocatedStage
    workers: int
    usd_per_hour: float


@dataclass
class Tables:
    """Stage tables by worker, each built once, and the counts they need at a rate."""

    ask: Ask
    load: Load
    floors: Floors
    prefill: dict[Worker, PrefillStage] = field(default_factory=dict)
    decode: dict[Worker, DecodeStage] = field(default_factory=dict)
    colocated: dict[Worker, ColocatedStage] = field(default_factory=dict)
    _least: dict[tuple[Role, Worker, float], int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, ask: Ask, spaces: Mapping[Role, RoleSpace] | None = None) -> Tables:
        """Empty tables; with the candidates known, each stage knows what the fastest of the others leaves it of an e2e limit."""
        tiers = {tier.kind: tier for tier in ask.catalog.tiers.values()}
        load = Load(ask.lengths, ask.slo, Steps.of(ask.workload.arrivals, ask.size_for, ask.rate), tiers)
        floors = Floors.of(ask.model, load, ask.perf)
        if ask.slo.of("e2e") and spaces is not None:
            load = replace(load, quickest=_quickest(floors, spaces))
        return cls(ask, load, floors)

    def prefill_stage(self, worker: Worker) -> PrefillStage:
        if worker not in self.prefill:
            self.prefill[worker] = PrefillStage(self.ask.perf, worker, self.load)
        return self.prefill[worker]

    def decode_stage(self, worker: Worker) -> DecodeStage:
        if worker not in self.decode:
            self.decode[worker] = DecodeStage(self.ask.perf, worker, self.load)
        return self.decode[worker]

    def colocated_stage(self, worker: Worker) -> ColocatedStage:
        if worker not in self.colocated:
            self.colocated[worker] = ColocatedStage(self.ask.perf, worker, self.load)
        return self.colocated[worker]

    def stage(self, role: Role, worker: Worker) -> PrefillStage | DecodeStage | ColocatedStage:
        """The table of one role and worker."""
        if role is Role.PREFILL:
            return self.prefill_stage(worker)
        return self.decode_stage(worker) if role is Role.DECODE else self.colocated_stage(worker)

    def least(self, role: Role, worker: Worker, rate: float) -> int | None:
        """The fewest workers that keep the role's promises at `rate` alone."""
        key = (role, worker, rate)
        if key not in self._least:
            self._least[key] = self.stage(role, worker).least(rate)
        return self._least[key]

    def alike(self, candidate: Candidate) -> tuple[object, ...]:
        """What the bill, a handoff and the rules on pairs see of a candidate."""
        worker = candidate.worker
        formats = worker.precision if self.ask.stock else worker.precision.kv
        return (
            candidate.offer, worker.accelerator.name, formats, worker.parallelism, worker.engine, worker.max_batch,
            worker.max_batched_tokens, worker.residency,
        )  # fmt: skip

    def floor(self, role: Role, worker: Worker, rate: float) -> int | None:
        """A count no larger than `least`, from the data sheet alone; None when the data sheet already rules the worker out."""
        slo, floors = self.load.slo, self.floors
        if role is not Role.PREFILL and any(floors.lone_step(worker) > goal.limit for goal in slo.of("tpot")):
            return None
        if role is Role.PREFILL and any(
            goal.quantile is not None
            and float(self.load.lengths.weight @ (floors.prefill_seconds(worker) <= goal.limit)) < goal.quantile - 1e-9
            for goal in slo.of("ttft")
        ):
            return None
        if not self._in_time(role, worker):
            return None
        if role is Role.PREFILL:
            return fluid(rate, floors.prefill_capacity(worker))
        return max(fluid(rate * factor, capacity) for factor, capacity in floors.decode_capacities(worker, role))

    def _in_time(self, role: Role, worker: Worker) -> bool:
        """Whether the floors of a worker, beside the fastest of the other role, leave an end-to-end limit possible."""
        load, (prompt, step) = self.load, self.load.quickest
        if not load.slo.of("e2e"):
            return True
        prompt = self.floors.prefill_seconds(worker) if role is not Role.DECODE else prompt
        step = self.floors.lone_step(worker) if role is not Role.PREFILL else step
        alone = Delay(prompt + answer_seconds(load, step), load.lengths.weight, no_wait(), no_wait())
        return all(bool(alone.keeps(goal.quantile, goal.limit) >= -1e-9) for goal in load.slo.of("e2e"))

    def queued_floor(self, worker: Worker, rate: float) -> int | None:
        """A count no larger than a colocated pool's `least`: its queue with the floor's service, equal for all, is no longer."""
        floors, load = self.floors, self.load
        sure, weight = floors.prefill_seconds(worker), load.lengths.weight
        service = load.lengths.mean(sure)

        def keeps(workers: Array) -> Any:
            rates = load.steps.lowest(rate, workers)
            queue = wait(rates, workers, service, 0.0, load.cv2, load.steps.lasting)
            delay = Delay(np.broadcast_to(sure, (*queue.prob.shape, len(sure))), weight, queue, no_wait(), load.steps)
            met = [delay.keeps(goal.quantile, goal.limit) >= 0 for goal in load.slo.of("ttft")]
            return np.logical_and.reduce([rates[0] / workers * service < 1, *met])

        return fewest(keeps, self.floor(Role.COLOCATED, worker, rate) or 1)


def _quickest(floors: Floors, spaces: Mapping[Role, RoleSpace]) -> tuple[Array | float, float]:
    """Seconds below which no prefill candidate computes a prompt, by length point, and no decode candidate makes a token."""
    prompts = [floors.prefill_seconds(worker) for worker in spaces[Role.PREFILL].workers]
    steps = [floors.lone_step(worker) for worker in spaces[Role.DECODE].workers]
    return np.min(prompts, axis=0) if prompts else 0.0, min(steps, default=0.0)


@dataclass
class Found:
    """What a search keeps: the best of every pair of accelerators, and how many designs it sized."""

    apart: dict[tuple[str, str], Sized] = field(default_factory=dict)
    together: dict[str, Pooled] = field(default_factory=dict)
    sized: int = 0

    def best_apart(self, heterogeneous: bool | None = None) -> Sized | None:
        """The cheapest disaggregated fleet, of one kind of accelerator or of two."""
        fleets = [s for (p, d), s in self.apart.items() if heterogeneous is None or heterogeneous == (p != d)]
        return min(fleets, key=lambda sized: sized.usd_per_hour, default=None)

    @property
    def best_together(self) -> Pooled | None:
        return min(self.together.values(), key=lambda pooled: pooled.usd_per_hour, default=None)


def search(
    ask: Ask,
    tables: Tables,
    boundaries: Boundaries,
    spaces: dict[Role, RoleSpace],
    rate: float,
    *,
    ceiling: float = math.inf,
    runners_up: int = 3,
    progress: Progress | None = None,
    kinds: frozenset[Answer] = frozenset(Answer),
) -> Found:
    """The cheapest fleet of each class in `kinds` at `rate` that costs less than `ceiling` USD/h.

    Exact are: the best colocated, the best disaggregated of one accelerator, the best of two, and the best `runners_up` + 1 pairs
    of accelerators over both.
    """
    found = Found()
    if ask.placement in (None, Placement.COLOCATED) and Answer.DO_NOT_DISAGGREGATE in kinds:
        _search_together(tables, spaces[Role.COLOCATED].candidates, rate, found, ceiling, 0)
    if ask.placement is not Placement.COLOCATED:
        _search_apart(ask, tables, boundaries, spaces, rate, found, ceiling, runners_up, progress, kinds)
    return found


def _search_together(
    tables: Tables, candidates: Iterable[Candidate], rate: float, found: Found, ceiling: float, runners_up: int
) -> None:
    """Colocated pools in the order of their floors."""
    floors: list[tuple[float, int, Candidate]] = []
    for candidate in candidates:
        least = tables.floor(Role.COLOCATED, candidate.worker, rate)
        if least is not None and least <= MOST_WORKERS:
            floors.append((candidate.usd_per_hour(least), len(floors), candidate))
    for floor, _, candidate in sorted(floors, key=lambda entry: entry[:2]):
        name = candidate.worker.accelerator.name
        mine = found.together[name].usd_per_hour if name in found.together else ceiling
        limit = min(mine, _worst_kept([p.usd_per_hour for p in found.together.values()], runners_up, ceiling))
        if floor >= limit:
            continue
        queued = tables.queued_floor(candidate.worker, rate)
        if queued is None or candidate.usd_per_hour(queued) >= limit:
            continue
        least = tables.least(Role.COLOCATED, candidate.worker, rate)
        found.sized += 1
        if least is not None and (cost := candidate.usd_per_hour(least)) < mine:
            found.together[name] = Pooled(candidate, tables.colocated_stage(candidate.worker), least, cost)


def _worst_kept(costs: list[float], runners_up: int, ceiling: float) -> float:
    """The bill a new class must stay below to be among those kept."""
    return sorted(costs)[runners_up] if len(costs) > runners_up else ceiling


class _Side:
    """The candidates of one accelerator, role and place: bounds on what each costs alone, sharpened on demand."""

    def __init__(self, role: Role, candidates: list[Candidate], tables: Tables, rate: float) -> None:
        self.role, self.candidates, self.tables, self.rate = role, candidates, tables, rate
        self.exact = np.zeros(len(candidates), dtype=bool)
        self._best: dict[tuple[object, ...], list[Any]] = defaultdict(list)
        self.counts = [self.tables.floor(role, c.worker, rate) for c in candidates]
        self.costs = np.array([self._cost(i, whole=True) for i in range(len(candidates))], dtype=float)
        self.shares = np.array([self._cost(i, whole=False) for i in range(len(candidates))], dtype=float)

    def _cost(self, index: int, whole: bool) -> float:
        """The bill on instances of its own, or its share of full ones where the other pool may fill the rest."""
        count, candidate = self.counts[index], self.candidates[index]
        if count is None or count > MOST_WORKERS:
            return math.inf
        return candidate.usd_per_hour(count) if whole else candidate.share_per_hour(count)

    def sharpen(self, index: int) -> None:
        """Replace a floor by the count the stage table needs; a worker that another is never slower than needs no look."""
        self.counts[index] = None if self._beaten(index) else self._least(index)
        self.costs[index], self.shares[index] = self._cost(index, whole=True), self._cost(index, whole=False)
        self.exact[index] = True

    def _least(self, index: int) -> int | None:
        return self.tables.least(self.role, self.candidates[index].worker, self.rate)

    def _beaten(self, index: int) -> bool:
        """Whether a worker that was looked at before serves every fleet of this one no later, at the same bill.

        It is alike in all that the bill, the handoff and the rules see, so that no boundary and no other side tells them apart.
        """
        candidate = self.candidates[index]
        stage: Any = self.tables.stage(self.role, candidate.worker)
        peers = self._best[self.tables.alike(candidate)]
        if any(peer.never_slower(stage) for peer in peers):
            return True
        peers.append(stage)
        return False

    def bounds(self, shared: bool) -> Array:
        """What each candidate costs at least beside the other pool."""
        return self.shares if shared else self.costs


def _search_apart(
    ask: Ask,
    tables: Tables,
    boundaries: Boundaries,
    spaces: dict[Role, RoleSpace],
    rate: float,
    found: Found,
    ceiling: float,
    runners_up: int,
    progress: Progress | None,
    kinds: frozenset[Answer],
) -> None:
    sides = {role: _sides(role, spaces[role].candidates, tables, rate) for role in (Role.PREFILL, Role.DECODE)}
    anywhere = ask.pins.interconnect is not None
    work = sorted(
        (float(p.bounds(pair[0] == pair[1]).min() + d.bounds(pair[0] == pair[1]).min()), *pair)
        for pair, p, d in (
            ((mine, theirs), sides[Role.PREFILL][mine], sides[Role.DECODE][theirs])
            for mine in sides[Role.PREFILL]
            for theirs in sides[Role.DECODE]
            if (anywhere or mine[1:] == theirs[1:]) and _kind(mine[0], theirs[0]) in kinds
        )
    )
    for number, (floor, mine, theirs) in enumerate(work):
        if progress is not None and number % 64 == 0:
            progress(number, len(work), f"{mine[0]} → {theirs[0]}")
        if not math.isfinite(floor):
            break
        key = (mine[0], theirs[0])
        if floor < _limit(found, key, ceiling, runners_up):
            limit = partial(_limit, found, key, ceiling, runners_up)
            _explore(tables, boundaries, sides[Role.PREFILL][mine], sides[Role.DECODE][theirs], key, found, limit)


def _kind(prefill: str, decode: str) -> Answer:
    return Answer.HOMOGENEOUS_DISAGGREGATED if prefill == decode else Answer.HETEROGENEOUS


def _sides(
    role: Role, candidates: Iterable[Candidate], tables: Tables, rate: float
) -> dict[tuple[str, str, str], _Side]:
    grouped: dict[tuple[str, str, str], list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        grouped[candidate.worker.accelerator.name, *candidate.site].append(candidate)
    return {key: _Side(role, group, tables, rate) for key, group in grouped.items()}


def _limit(found: Found, key: tuple[str, str], ceiling: float, runners_up: int) -> float:
    """The bill below which a pair of accelerators is still wanted: cheaper than its own best, and either the best of its
    class (one accelerator or two) or among the best pairs overall."""
    own = found.apart[key].usd_per_hour if key in found.apart else ceiling
    peers = [s.usd_per_hour for (p, d), s in found.apart.items() if (p != d) == (key[0] != key[1])]
    worst = _worst_kept([s.usd_per_hour for s in found.apart.values()], runners_up, ceiling)
    return min(own, max(min(peers, default=ceiling), worst))


def _explore(
    tables: Tables,
    boundaries: Boundaries,
    prefill: _Side,
    decode: _Side,
    key: tuple[str, str],
    found: Found,
    limit: Callable[[], float],
) -> None:
    """Best first over the pairs of two accelerators at one place."""
    shared = key[0] == key[1]
    mine, theirs = prefill.bounds(shared), decode.bounds(shared)
    bounds = mine[:, None] + theirs[None, :]
    while True:
        flat = int(np.argmin(bounds))
        row, column = divmod(flat, bounds.shape[1])
        if not bounds[row, column] < limit():
            return
        if not prefill.exact[row]:
            prefill.sharpen(row)
            bounds[row] = np.where(np.isinf(bounds[row]), np.inf, mine[row] + theirs)
        elif not decode.exact[column]:
            decode.sharpen(column)
            bounds[:, column] = np.where(np.isinf(bounds[:, column]), np.inf, mine + theirs[column])
        else:
            sized = size_pair(tables, boundaries, prefill, row, decode, column, found, limit())
            bounds[row, column] = math.inf
            if sized is not None:
                found.apart[key] = sized


def size_pair(
    tables: Tables,
    boundaries: Boundaries,
    prefill: _Side,
    row: int,
    decode: _Side,
    column: int,
    found: Found,
    below: float,
) -> Sized | None:
    """The cheapest sizing of one pair over all its boundaries, below `below` USD/h. Among equals the simplest boundary."""
    mine, theirs = prefill.candidates[row], decode.candidates[column]
    first, second = tables.prefill_stage(mine.worker), tables.decode_stage(theirs.worker)
    if tables.load.slo.of("e2e") and not idle_in_time(first, second):
        return None
    counts = prefill.counts[row] or 1, decode.counts[column] or 1
    bound = mine.share_per_hour(counts[0]) + theirs.share_per_hour(counts[1])
    if mine.offer != theirs.offer:
        bound = mine.usd_per_hour(counts[0]) + theirs.usd_per_hour(counts[1])
    best: Sized | None = None
    for ways in _choices(tables.ask, boundaries, mine, theirs):
        meetings = [Meeting(mine, theirs, first, second, boundary, route) for boundary, route in ways]
        size = cheapest_on_nodes if meetings[0].boundary.placement is Placement.SAME_NODE else cheapest
        found.sized += len(meetings)
        limit = best.usd_per_hour if best else below
        relaxed = size(meetings[0].relax(), prefill.rate, *counts, limit)
        if relaxed is None:
            continue
        for meeting in meetings:
            limit = best.usd_per_hour if best else below
            if relaxed.usd_per_hour >= limit:
                break
            best = size(meeting, prefill.rate, *counts, limit) or best
        if best is not None and best.usd_per_hour <= bound:
            break
    return best


def _choices(
    ask: Ask, boundaries: Boundaries, mine: Candidate, theirs: Candidate
) -> Iterator[list[tuple[Boundary, Link]]]:
    """The boundaries of a pair that keep the rules, by what moves the same bytes over the same path; inside one server first when
    both pools fit in it."""
    if mine.offer == theirs.offer and mine.worker.accelerators + theirs.worker.accelerators <= mine.offer.gpus:
        yield from boundaries.of(mine, theirs, Placement.SAME_NODE)
    if ask.placement is not Placement.SAME_NODE:
        yield from boundaries.of(mine, theirs, Placement.DISAGGREGATED)
