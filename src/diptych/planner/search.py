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
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np

from diptych.catalog.interconnect import Link
from diptych.design.axes import Role
from diptych.design.boundary import Boundary, Placement
from diptych.planner.ask import Ask
from diptych.planner.boundaries import Boundaries
from diptych.planner.enumerate import Candidate, RoleSpace
from diptych.planner.found import Found, Pooled
from diptych.planner.meeting import Meeting, Sized, cheapest, cheapest_on_nodes, idle_in_time
from diptych.planner.plan import Answer
from diptych.planner.side import Side, sides_of
from diptych.planner.size import MOST_WORKERS
from diptych.planner.tables import Tables

Progress = Callable[[int, int, str], None]


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
    sides = {role: sides_of(role, spaces[role].candidates, tables, rate) for role in (Role.PREFILL, Role.DECODE)}
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
    prefill: Side,
    decode: Side,
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
    prefill: Side,
    row: int,
    decode: Side,
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
