"""The dull twin of `search`: size every design of a small space, skip nothing, trust no bound.

It shares the rules, the stage tables and the promises with the search, for these say what a fleet does; it shares none of what
makes the search fast: no floors, no dominance, no order, no staircase.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

import numpy as np

from diptych.catalog.offer import Offer
from diptych.design.axes import Role
from diptych.design.boundary import Boundary, Placement
from diptych.design.constraints import pair_violations
from diptych.design.ruling import Setting
from diptych.perf.transfer import path
from diptych.planner.ask import Ask
from diptych.planner.boundaries import BoundaryAxes, pair_of
from diptych.planner.enumerate import Candidate, RoleSpace
from diptych.planner.found import Found, Pooled
from diptych.planner.meeting import Meeting, Sized
from diptych.planner.stages import kept
from diptych.planner.tables import Tables


def brute_force(
    ask: Ask,
    tables: Tables,
    axes: BoundaryAxes,
    spaces: dict[Role, RoleSpace],
    setting: Setting,
    rate: float,
    most: int,
) -> Found:
    """The cheapest fleet of every pair of accelerators with at most `most` workers in each pool."""
    found = Found()
    for candidate in spaces[Role.COLOCATED].candidates:
        for workers in range(1, most + 1):
            _note_pool(found, tables, candidate, rate, workers)
    for prefill, decode in product(spaces[Role.PREFILL].candidates, spaces[Role.DECODE].candidates):
        for sized in _sizes(prefill, decode, tables, axes, setting, rate, most):
            key = (prefill.worker.accelerator.name, decode.worker.accelerator.name)
            if key not in found.apart or sized.usd_per_hour < found.apart[key].usd_per_hour:
                found.apart[key] = sized
    return found


def _note_pool(found: Found, tables: Tables, candidate: Candidate, rate: float, workers: int) -> None:
    stage, name = tables.colocated_stage(candidate.worker), candidate.worker.accelerator.name
    cost = _bill(candidate.offer, [(candidate.worker.accelerators, workers)])
    found.sized += 1
    if stage.capacity <= 0 or not bool(np.all(kept(stage.margins(rate, float(workers))))):
        return
    if name not in found.together or cost < found.together[name].usd_per_hour:
        found.together[name] = Pooled(candidate, stage, workers, cost)


def _sizes(
    prefill: Candidate,
    decode: Candidate,
    tables: Tables,
    axes: BoundaryAxes,
    setting: Setting,
    rate: float,
    most: int,
) -> Iterator[Sized]:
    """Every design of a pair that keeps the rules and the SLO, with its bill."""
    first, second = tables.prefill_stage(prefill.worker), tables.decode_stage(decode.worker)
    for boundary in _boundaries(axes):
        if any(pair_violations(pair_of(prefill, decode, boundary), setting)):
            continue
        route = path(prefill.worker, decode.worker, boundary.link, prefill.nic, decode.nic)
        meeting = Meeting(prefill, decode, first, second, boundary, route)
        if boundary.placement is Placement.SAME_NODE:
            for n_p, n_d, nodes in _servers(prefill, decode, most):
                sized = Sized(meeting, n_p, n_d, nodes * prefill.offer.usd_per_hour, nodes)
                if sized.keeps(rate):
                    yield sized
            continue
        counts = np.arange(1.0, most + 1)
        for n_p, n_d in np.argwhere(kept(meeting.margins(rate, counts[:, None], counts[None, :]))) + 1:
            yield Sized(meeting, int(n_p), int(n_d), _fleet_bill(prefill, decode, int(n_p), int(n_d)))


def _boundaries(axes: BoundaryAxes) -> Iterator[Boundary]:
    for link, place, form, owner, overlap in product(
        axes.links, axes.placements, axes.representations, axes.ownerships, axes.overlaps
    ):
        yield Boundary(place, link, form, owner, overlap)


def _servers(prefill: Candidate, decode: Candidate, most: int) -> Iterator[tuple[int, int, int]]:
    """(prefill workers, decode workers, servers) of equal servers."""
    if prefill.offer != decode.offer:
        return
    gpus = prefill.offer.gpus
    for x, y, nodes in product(range(1, gpus + 1), range(1, gpus + 1), range(1, most + 1)):
        if x * prefill.worker.accelerators + y * decode.worker.accelerators <= gpus:
            yield x * nodes, y * nodes, nodes


def _fleet_bill(prefill: Candidate, decode: Candidate, n_p: int, n_d: int) -> float:
    """What a fleet costs, instances filled worker by worker."""
    mine, theirs = (prefill.worker.accelerators, n_p), (decode.worker.accelerators, n_d)
    if prefill.offer == decode.offer:
        return _bill(prefill.offer, [mine, theirs])
    return _bill(prefill.offer, [mine]) + _bill(decode.offer, [theirs])


def _bill(offer: Offer, groups: Iterable[tuple[int, int]]) -> float:
    """First fit, largest workers first; a worker larger than an instance takes whole ones."""
    instances, room = 0, list[int]()
    for size, count in sorted(groups, reverse=True):
        for _ in range(count):
            if size > offer.gpus:
                instances += -(-size // offer.gpus)
                continue
            place = next((i for i, left in enumerate(room) if left >= size), None)
            if place is None:
                room.append(offer.gpus)
                place = len(room) - 1
            room[place] -= size
    return (instances + len(room)) * offer.usd_per_hour
