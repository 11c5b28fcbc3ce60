"""The best use of what is owned: how many workers of which kind in which role, mixed inside a pool when that carries more.

Each worker is worth its knee, the requests/s it carries alone inside the SLO, so the total is linear in whole counts and the best
counts are an integer program (HiGHS, solved to optimality). Pools then queue better than lone workers do, so a fleet carries at
least what the program promises: that is checked with the queues, and the goodput reported is the checked one.

The router gives every worker a share in proportion to its knee. All members of a handoff keep one KV format, so nothing is
converted between them, unless the roles are left no format in common: then KV is converted in the simplest way there is.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import highspy
import numpy as np

from diptych.catalog.dtype import Dtype
from diptych.design.axes import Role
from diptych.design.boundary import Codec, Placement
from diptych.planner.boundaries import Boundaries
from diptych.planner.enumerate import Candidate, RoleSpace
from diptych.planner.goodput import most, stage_keeps
from diptych.planner.meeting import Meeting
from diptych.planner.stages import Margins, kept
from diptych.planner.tables import Tables

NEGLIGIBLE = 1e-6
"""Requests/s below which a worker is not worth its place."""


@dataclass(frozen=True, slots=True)
class Column:
    """One kind of worker in one role and what it carries alone (requests/s)."""

    role: Role
    candidate: Candidate
    knee: float

    @property
    def accelerator(self) -> str:
        return self.candidate.worker.accelerator.name


@dataclass(frozen=True, slots=True)
class Share:
    """`workers` of a column, and their share of their pool's requests."""

    column: Column
    workers: int
    share: float


@dataclass(frozen=True, eq=False)
class Mixture:
    """A fleet of mixed pools: `prefill` hands over to `decode`, `together` serves the rest on its own.

    `apart` is the share of requests that is handed over.
    """

    prefill: tuple[Share, ...]
    decode: tuple[Share, ...]
    together: tuple[Share, ...]
    apart: float
    tables: Tables
    boundaries: Boundaries

    @cached_property
    def meetings(self) -> dict[tuple[int, int], Meeting]:
        """Every pair that hands over, by places in the two pools."""
        return {
            (i, j): _meeting(mine.column.candidate, theirs.column.candidate, self.tables, self.boundaries)
            for i, mine in enumerate(self.prefill)
            for j, theirs in enumerate(self.decode)
        }

    def margins(self, rate: float) -> Margins:
        """The least margin of any member, each at its share of `rate`."""
        gathered: dict[str, list[Any]] = defaultdict(list)
        for (i, j), meeting in self.meetings.items():
            mine, theirs = self.prefill[i], self.decode[j]
            first, second = rate * self.apart * mine.share, rate * self.apart * theirs.share
            source = meeting.margins(first, float(mine.workers), np.inf)
            target = meeting.margins(second, np.inf, float(theirs.workers))
            for margins in (source, target):
                for name, margin in margins.items():
                    gathered[name].append(float(np.min(margin)))
        for share in self.together:
            stage = self.tables.colocated_stage(share.column.candidate.worker)
            for name, margin in stage.margins(rate * (1 - self.apart) * share.share, float(share.workers)).items():
                gathered[name].append(float(np.min(margin)))
        return {name: np.asarray(min(values)) for name, values in gathered.items()}

    def keeps(self, rate: float) -> bool:
        return bool(np.all(kept(self.margins(rate))))

    @property
    def shares(self) -> tuple[Share, ...]:
        return (*self.prefill, *self.decode, *self.together)


@dataclass(frozen=True, eq=False)
class Columns:
    """Every worker worth having, by role and KV format, computed once for all the mixtures of a question."""

    together: list[Column]
    apart: dict[tuple[Dtype, Dtype], tuple[list[Column], list[Column]]]
    tables: Tables
    boundaries: Boundaries

    @classmethod
    def of(cls, tables: Tables, boundaries: Boundaries, spaces: Mapping[Role, RoleSpace]) -> Columns:
        pools = columns(Role.COLOCATED, spaces[Role.COLOCATED].candidates, tables, boundaries, ())
        apart = {}
        for made, kept_as in _formats(spaces):
            takers = columns(Role.DECODE, _of(spaces[Role.DECODE], kept_as), tables, boundaries, ())
            givers = columns(Role.PREFILL, _of(spaces[Role.PREFILL], made), tables, boundaries, _narrowest(takers))
            apart[made, kept_as] = (givers, takers)
        return cls(pools, apart, tables, boundaries)

    def best(self, inventory: Mapping[str, int], *, apart: bool = True, together: bool = True) -> Mixture | None:
        """The mixture with the most requests/s on `inventory` (accelerator names and counts), over every KV format."""
        pools = [column for column in self.together if column.accelerator in inventory] if together else []
        choices = [_solve([], [], pools, inventory)] if pools else []
        for givers, takers in self.apart.values() if apart else ():
            mine, theirs = ([c for c in group if c.accelerator in inventory] for group in (givers, takers))
            choices += [_solve(*groups, pools, inventory) for groups in self._joinable(mine, theirs)]
        counts, rate = max(choices, key=lambda choice: choice[1], default=({}, 0.0))
        return _mixture(counts, self.tables, self.boundaries) if rate > NEGLIGIBLE else None

    def _joinable(self, givers: list[Column], takers: list[Column]) -> Iterator[tuple[list[Column], list[Column]]]:
        """Groups in which everyone may hand over to everyone: pairs alone under a stock engine, which need not serve them all."""
        if self.tables.ask.stock is None:
            yield givers, takers
            return
        for mine, theirs in product(givers, takers):
            if _ways(mine.candidate, theirs.candidate, self.boundaries):
                yield [mine], [theirs]


def _narrowest(takers: list[Column]) -> tuple[Candidate, ...]:
    """Of each accelerator the decode worker with the fewest ranks: the narrowest path there is to it."""
    least: dict[str, Candidate] = {}
    for column in sorted(takers, key=lambda c: c.candidate.worker.parallelism.tp * c.candidate.worker.parallelism.pp):
        least.setdefault(column.accelerator, column.candidate)
    return tuple(least.values())


def columns(
    role: Role, candidates: Iterable[Candidate], tables: Tables, boundaries: Boundaries, targets: tuple[Candidate, ...]
) -> list[Column]:
    """The candidates worth having: of each accelerator and size the one with the largest knee.

    Dominance: another of the same size carries no more on the same accelerators, so swapping it in never loses.
    """
    best: dict[tuple[str, int], Column] = {}
    for candidate in candidates:
        key = (candidate.worker.accelerator.name, candidate.worker.accelerators)
        if key in best and tables.stage(role, candidate.worker).capacity <= best[key].knee:
            continue  # no knee lies above the capacity
        knee = _knee(role, candidate, tables, boundaries, targets)
        if knee > NEGLIGIBLE and (key not in best or knee > best[key].knee):
            best[key] = Column(role, candidate, knee)
    return list(best.values())


def _knee(
    role: Role, candidate: Candidate, tables: Tables, boundaries: Boundaries, targets: tuple[Candidate, ...]
) -> float:
    """What one worker carries alone; a prefill worker beside endless decode workers of the worst kind it may hand over to."""
    if role is Role.DECODE:
        stage = tables.decode_stage(candidate.worker)
        return 0.0 if stage.hopeless else most(lambda rate: stage_keeps(stage, rate, 1.0), stage.capacity)
    if role is Role.COLOCATED:
        pool = tables.colocated_stage(candidate.worker)
        if pool.least(NEGLIGIBLE) is None:
            return 0.0
        return most(lambda rate: bool(np.all(kept(pool.margins(rate, 1.0)))), pool.capacity)
    first = tables.prefill_stage(candidate.worker)
    if first.hopeless or not targets:
        return 0.0
    meetings = []
    for target in targets:
        if not (ways := _ways(candidate, target, boundaries)):
            if tables.ask.stock is not None:
                continue
            return 0.0
        meetings.append(Meeting(candidate, target, first, tables.decode_stage(target.worker), *ways[0]))

    def keeps(rate: float) -> bool:
        return all(bool(np.all(kept(meeting.margins(rate, 1.0, np.inf)))) for meeting in meetings)

    return most(keeps, first.capacity) if meetings and keeps(NEGLIGIBLE) else 0.0


def _solve(
    givers: list[Column], takers: list[Column], pools: list[Column], inventory: Mapping[str, int]
) -> tuple[dict[Column, int], float]:
    """max handed + Σ knee·n(colocated), handed ≤ Σ knee·n(prefill) and ≤ Σ knee·n(decode), accelerators as owned."""
    with silence():
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("log_to_console", False)
    every = [*givers, *takers, *pools]
    handed = solver.addVariable(lb=0.0)
    counts = [
        solver.addIntegral(lb=0, ub=inventory.get(column.accelerator, 0) // column.candidate.worker.accelerators)
        for column in every
    ]
    for group in (givers, takers):
        members = [(column.knee, count) for column, count in zip(every, counts, strict=True) if column in group]
        solver.addConstr(handed <= sum(knee * count for knee, count in members) if members else handed <= 0.0)
    for name, owned in inventory.items():
        used = [
            column.candidate.worker.accelerators * count
            for column, count in zip(every, counts, strict=True)
            if column.accelerator == name
        ]
        if used:
            solver.addConstr(sum(used[1:], used[0]) <= owned)
    alone = [column.knee * count for column, count in zip(every, counts, strict=True) if column.role is Role.COLOCATED]
    solver.maximize(sum(alone, handed * 1.0))
    values = {column: round(solver.val(count)) for column, count in zip(every, counts, strict=True)}
    return {column: value for column, value in values.items() if value}, float(solver.getObjectiveValue())


@contextmanager
def silence() -> Iterator[None]:
    """Nothing on stdout meanwhile: HiGHS greets from C when it is made, and stdout belongs to results."""
    sys.stdout.flush()
    kept_open, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept_open, 1)
        os.close(kept_open)
        os.close(nowhere)


def _mixture(counts: dict[Column, int], tables: Tables, boundaries: Boundaries) -> Mixture:
    """Counts with their shares; decode workers beyond what prefill feeds share the work all the same."""
    groups = {role: {c: n for c, n in counts.items() if c.role is role} for role in Role}
    carried = {role: sum(c.knee * n for c, n in group.items()) for role, group in groups.items()}
    handed = min(carried[Role.PREFILL], carried[Role.DECODE])

    def shares(role: Role) -> tuple[Share, ...]:
        return tuple(Share(c, n, c.knee * n / carried[role]) for c, n in groups[role].items())

    total = handed + carried[Role.COLOCATED]
    keep = handed > NEGLIGIBLE
    return Mixture(
        shares(Role.PREFILL) if keep else (), shares(Role.DECODE) if keep else (), shares(Role.COLOCATED),
        handed / total if total else 0.0, tables, boundaries,
    )  # fmt: skip


def _meeting(prefill: Candidate, decode: Candidate, tables: Tables, boundaries: Boundaries) -> Meeting:
    first, second = tables.prefill_stage(prefill.worker), tables.decode_stage(decode.worker)
    return Meeting(prefill, decode, first, second, *_ways(prefill, decode, boundaries)[0])


def _ways(prefill: Candidate, decode: Candidate, boundaries: Boundaries) -> list[Any]:
    """Handoffs between two workers over the network; raw ones where both keep KV alike."""
    alike = prefill.worker.precision.kv is decode.worker.precision.kv
    return [
        way
        for ways in boundaries.of(prefill, decode, Placement.DISAGGREGATED)
        for way in ways
        if way[0].representation.codec is Codec.RAW or not alike
    ]


def _formats(spaces: Mapping[Role, RoleSpace]) -> list[tuple[Dtype, Dtype]]:
    """KV formats of prefill and decode: those in common, or every two where there are none."""
    made, kept_as = ({c.worker.precision.kv for c in spaces[role].candidates} for role in (Role.PREFILL, Role.DECODE))
    return [(kv, kv) for kv in sorted(made & kept_as)] or list(product(sorted(made), sorted(kept_as)))


def _of(space: RoleSpace, kv: Dtype) -> tuple[Candidate, ...]:
    return tuple(candidate for candidate in space.candidates if candidate.worker.precision.kv is kv)
