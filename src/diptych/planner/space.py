"""The effective design space against the Cartesian product: exact counts by rule, without building either.

A rule about two workers looks at a few of their attributes only. So pairs are counted in classes: candidates of a role by
(offer's class, KV format, TP), pairs of classes by matrix products. Designs of the product differ in every axis value; worker
counts are sized, not chosen, and do not multiply it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from diptych.catalog.dtype import Dtype
from diptych.design.axes import Role, Worker
from diptych.design.boundary import Boundary, Codec, Placement, Representation
from diptych.design.constraints import ENGINE_RULES, HANDOFF_RULES, KV_RULES, PATH_RULES, pair_violations, sentence
from diptych.design.ruling import Pair, PairRule, Setting, Violation
from diptych.planner.ask import Ask
from diptych.planner.boundaries import Boundaries, pair_of
from diptych.planner.enumerate import BATCH_LIMITS, Candidate, Dropped, RoleSpace
from diptych.planner.found import Found
from diptych.planner.plan import RuleCount, Space
from diptych.planner.tables import Tables

Counts = NDArray[np.float64]


class _Classes:
    """Candidates of one role, counted by (class of offer, KV format, TP), with one example of each class of offer."""

    def __init__(self, candidates: tuple[Candidate, ...], by_shape: bool) -> None:
        self.offers: dict[tuple[object, ...], Candidate] = {}
        self.caches: dict[Dtype, Candidate] = {}
        self.tensors: dict[object, Candidate] = {}
        rows = []
        for candidate in candidates:
            shape = candidate.worker.parallelism
            keys = (_offer_class(candidate), candidate.worker.precision.kv, shape if by_shape else shape.tp)
            self.offers.setdefault(keys[0], candidate)
            self.caches.setdefault(keys[1], candidate)
            self.tensors.setdefault(keys[2], candidate)
            rows.append(keys)
        self.counts: Counts = np.zeros((len(self.offers), len(self.caches), len(self.tensors)))
        places = [{key: i for i, key in enumerate(axis)} for axis in (self.offers, self.caches, self.tensors)]
        for keys in rows:
            self.counts[tuple(place[key] for place, key in zip(places, keys, strict=True))] += 1


def _offer_class(candidate: Candidate) -> tuple[object, ...]:
    """What the path rules see of a candidate."""
    offer = candidate.offer
    return (candidate.worker.accelerator.name, *candidate.site, offer.nic_bandwidth * offer.gpus)


class PairCounts:
    """How many (prefill, decode, boundary) designs keep every rule, and how many each rule drops first."""

    def __init__(self, boundaries: Boundaries, setting: Setting) -> None:
        self._boundaries, self._setting = boundaries, setting
        self._seen: dict[tuple[object, ...], dict[str, int]] = {}
        self._examples: dict[str, Violation] = {}

    def count(
        self, prefill: tuple[Candidate, ...], decode: tuple[Candidate, ...], dropped: Dropped, each: int = 1
    ) -> int:
        """Designs that keep the rules; those that do not are added to `dropped`. `each` multiplies every design."""
        if not prefill or not decode:
            return 0
        axes, stock = self._boundaries.axes, self._boundaries.stock
        mine, theirs = (_Classes(side, by_shape=stock is not None) for side in (prefill, decode))
        forms, moves = len(axes.representations), len(axes.ownerships) * len(axes.overlaps)
        pairs = mine.counts.sum(axis=(1, 2))[:, None] * theirs.counts.sum(axis=(1, 2))[None, :]
        kept = self._weigh(list(self._paths(mine, theirs)), pairs, dropped, forms * moves * each)
        served = self._served(mine, theirs)
        each_pair = np.einsum("gk,gh,hl->gkhl", mine.counts.sum(axis=2), kept, theirs.counts.sum(axis=2))
        if stock is not None:
            self._drop(each_pair * ~served, forms * moves * each, dropped)
        by_cache = (each_pair * served).sum(axis=(0, 2))
        known = self._weigh(list(self._forms(mine, theirs)), by_cache, dropped, moves * each)
        cells = kept[:, None, :, None] * served * known[None, :, None, :]
        table = np.einsum("gkt,gkhl,hlu->tu", mine.counts, cells, theirs.counts, optimize=True)
        moved = self._weigh(list(self._moves(mine, theirs)), table, dropped, each)
        return round(float((table * moved).sum())) * each

    def _served(self, mine: _Classes, theirs: _Classes) -> NDArray[np.bool_]:
        """Which (accelerator, KV format) pairs the stock engine serves at all, shape (offers, formats, offers, formats)."""
        shape = len(mine.offers), len(mine.caches), len(theirs.offers), len(theirs.caches)
        served: NDArray[np.bool_] = np.ones(shape, dtype=np.bool_)
        stock, axes = self._boundaries.stock, self._boundaries.axes
        if stock is None:
            return served
        sides = [
            {(i, k): _storing(c.worker, kv) for i, c in enumerate(x.offers.values()) for k, kv in enumerate(x.caches)}
            for x in (mine, theirs)
        ]
        for (one, prefill), (other, decode) in product(sides[0].items(), sides[1].items()):
            form = Representation(Codec.RAW, prefill.precision.kv)
            boundary = Boundary(Placement.DISAGGREGATED, axes.links[0], form, axes.ownerships[0], axes.overlaps[0])
            detail = stock.accelerators(prefill, decode, boundary)
            if detail is not None:
                served[(*one, *other)] = False
                self._note_stock(detail)
        return served

    def _note_stock(self, detail: str) -> None:
        rule = ENGINE_RULES[0]
        self._examples.setdefault(rule.__name__, Violation(rule.__name__, sentence(rule), detail))

    def _drop(self, weights: Counts, times: int, dropped: Dropped) -> None:
        """Add what the stock engine does not serve."""
        if total := round(float(weights.sum())):
            dropped.add(self._examples[ENGINE_RULES[0].__name__], total * times)

    def _weigh(
        self, rows: list[tuple[int, int, dict[str, int]]], weights: Counts, dropped: Dropped, times: int
    ) -> Counts:
        """Survivors per cell, after adding what each rule drops there."""
        survivors = np.zeros_like(weights)
        totals: dict[str, float] = {}
        for row, column, outcome in rows:
            for rule, count in outcome.items():
                if rule == "":
                    survivors[row, column] = count
                else:
                    totals[rule] = totals.get(rule, 0.0) + count * float(weights[row, column])
        for rule, total in totals.items():
            dropped.add(self._examples[rule], round(total) * times)
        return survivors

    def _paths(self, mine: _Classes, theirs: _Classes) -> Iterator[tuple[int, int, dict[str, int]]]:
        axes = self._boundaries.axes
        for (i, one), (j, other) in product(enumerate(mine.offers.values()), enumerate(theirs.offers.values())):
            key = _path_class(one, other)
            if key not in self._seen:
                form = Representation(Codec.RAW, one.worker.precision.kv)
                choices = (Boundary(place, link, form) for link, place in product(axes.links, axes.placements))
                self._seen[key] = self._outcome(one, other, choices, PATH_RULES)
            yield i, j, self._seen[key]

    def _forms(self, mine: _Classes, theirs: _Classes) -> Iterator[tuple[int, int, dict[str, int]]]:
        axes = self._boundaries.axes
        for (i, one), (j, other) in product(enumerate(mine.caches.values()), enumerate(theirs.caches.values())):
            choices = (Boundary(Placement.DISAGGREGATED, axes.links[0], form) for form in axes.representations)
            yield i, j, self._outcome(one, other, choices, KV_RULES)

    def _moves(self, mine: _Classes, theirs: _Classes) -> Iterator[tuple[int, int, dict[str, int]]]:
        axes = self._boundaries.axes
        form = Representation(Codec.RAW, Dtype.BF16)
        for (i, one), (j, other) in product(enumerate(mine.tensors.values()), enumerate(theirs.tensors.values())):
            choices = (
                Boundary(Placement.DISAGGREGATED, axes.links[0], form, ownership, overlap)
                for ownership, overlap in product(axes.ownerships, axes.overlaps)
            )
            rules = HANDOFF_RULES if self._boundaries.stock is None else (*HANDOFF_RULES, self._shapes)
            yield i, j, self._outcome(one, other, choices, rules)

    def _shapes(self, pair: Pair, setting: Setting) -> str | None:
        """What the stock engine has against two parallelisms, for the same accelerator and format on both sides."""
        stock = self._boundaries.stock
        return stock.shapes(pair.prefill, pair.decode, pair.boundary) if stock else None

    def _outcome(
        self, one: Candidate, other: Candidate, choices: Iterator[Boundary], rules: tuple[PairRule, ...]
    ) -> dict[str, int]:
        """How many of `choices` each rule drops first; '' counts those that keep all."""
        outcome: dict[str, int] = {}
        for boundary in choices:
            broken = next(pair_violations(pair_of(one, other, boundary), self._setting, rules), None)
            if broken and broken.rule == self._shapes.__name__:
                broken = Violation(ENGINE_RULES[0].__name__, sentence(ENGINE_RULES[0]), broken.detail)
            rule = broken.rule if broken else ""
            if broken:
                self._examples.setdefault(rule, broken)
            outcome[rule] = outcome.get(rule, 0) + 1
        return outcome


def _storing(worker: Worker, kv: Dtype) -> Worker:
    """The worker with its KV in another format."""
    return replace(worker, precision=replace(worker.precision, kv=kv))


def _path_class(one: Candidate, other: Candidate) -> tuple[object, ...]:
    """What decides the path rules for two candidates."""
    mine, theirs = one.worker.accelerator, other.worker.accelerator
    return (
        mine.name,
        mine.name == theirs.name,
        mine.vendor == theirs.vendor or theirs.name,
        one.site == other.site,
        one.site[0],
        one.offer.nic_bandwidth * one.offer.gpus,
        other.offer.nic_bandwidth * other.offer.gpus,
    )


def space_of(
    ask: Ask,
    spaces: dict[Role, RoleSpace],
    boundaries: Boundaries,
    setting: Setting,
    tables: Tables,
    found: Found,
    rate: float,
) -> Space:
    """Every count of the search, adding up exactly."""
    dropped, pruned = Dropped(), Dropped()
    prefill, decode, together = (spaces[role] for role in (Role.PREFILL, Role.DECODE, Role.COLOCATED))
    apart = ask.placement is not Placement.COLOCATED
    beside = ask.placement in (None, Placement.COLOCATED)
    axes = boundaries.axes
    cartesian = effective = 0
    if apart:
        cartesian += prefill.raw * decode.raw * axes.size
        dropped.merge(prefill.dropped, decode.raw * axes.size)
        dropped.merge(decode.dropped, prefill.valid * axes.size)
        effective += _apart(prefill, decode, boundaries, setting, tables, rate, dropped, pruned)
    if beside:
        cartesian += together.raw
        dropped.merge(together.dropped, 1)
        effective += together.valid
        pruned.add(_BATCH, together.valid - len(together.candidates))
        hopeless = sum(_hopeless(tables, Role.COLOCATED, candidate, rate) for candidate in together.candidates)
        pruned.add(_SLOW, hopeless)
    rest = effective - sum(pruned.counts.values()) - found.sized
    pruned.add(_BOUND, max(rest, 0))
    return Space(
        axes={
            "prefill designs": prefill.raw if apart else 0,
            "decode designs": decode.raw if apart else 0,
            "boundaries": axes.size if apart else 0,
            "colocated designs": together.raw if beside else 0,
        },
        cartesian=cartesian,
        effective=effective,
        sized=effective - sum(pruned.counts.values()),
        rules=tuple(_rows(dropped)),
        pruned=tuple(_rows(pruned)),
    )


def _apart(
    prefill: RoleSpace,
    decode: RoleSpace,
    boundaries: Boundaries,
    setting: Setting,
    tables: Tables,
    rate: float,
    dropped: Dropped,
    pruned: Dropped,
) -> int:
    """Valid disaggregated designs; those that a dominance argument dismisses go to `pruned`."""
    counts = PairCounts(boundaries, setting)
    each = prefill.each * decode.each
    effective = counts.count(prefill.candidates, decode.candidates, dropped, each)
    one = effective // each
    tiers = prefill.tiers
    pruned.add(_BATCH, effective - one * tiers)
    pruned.add(_RESIDENT, one * tiers - one)
    able = [
        tuple(c for c in space.candidates if not _hopeless(tables, space.role, c, rate)) for space in (prefill, decode)
    ]
    pruned.add(_SLOW, one - counts.count(able[0], able[1], Dropped()))
    return effective


def _hopeless(tables: Tables, role: Role, candidate: Candidate, rate: float) -> bool:
    return tables.floor(role, candidate.worker, rate) is None


def _rows(dropped: Dropped) -> Iterator[RuleCount]:
    for rule, count in dropped.counts.most_common():
        yield RuleCount(rule, dropped.sentences[rule], count, dropped.examples[rule])


_BATCH = Violation(
    "batch_limit_follows_load",
    "The batch settles where Little's law puts it; a limit above changes nothing and one below only queues, so the plan sets the "
    "limit just above the batch it predicts",
    f"{len(BATCH_LIMITS) - 1} other limits",
)
_RESIDENT = Violation(
    "hbm_is_the_nearest_tier",
    "Prefixes kept in HBM are never read more slowly than from another tier, and the plan charges the memory they take",
    "dram",
)
_SLOW = Violation(
    "slower_than_the_slo_at_rest",
    "The data sheet's floor alone misses the SLO: weights over bandwidth above TPOT, or FLOP over peak above TTFT",
    "",
)
_BOUND = Violation(
    "dearer_by_bound",
    "Its bound, the cheapest sizes its two pools need alone with a free handoff, already costs as much as the best found, or "
    "another boundary of the same pair is never slower",
    "",
)
