"""At what price, bandwidth, prompt length, prefix-hit rate or load the answer flips, and to what.

Each input moves alone while the search is asked again, over the finalists: the candidates of every fleet the first search kept.
A flip is bracketed on a grid and then halved down; the stage tables that the input does not touch are used again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from diptych.catalog.interconnect import Link
from diptych.catalog.offer import Offer
from diptych.design.axes import Role
from diptych.planner.ask import Ask
from diptych.planner.boundaries import Boundaries
from diptych.planner.enumerate import Candidate, RoleSpace
from diptych.planner.found import Found
from diptych.planner.plan import Flip
from diptych.planner.search import search
from diptych.planner.tables import Tables
from diptych.workload.lengths import Lengths

HALVINGS = 5
NOTHING = "no fleet"
GRID = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 10.0)


@dataclass(frozen=True, eq=False)
class Finalists:
    """The few candidates among which an answer can move, and the tables already built for them."""

    ask: Ask
    rate: float
    spaces: dict[Role, RoleSpace]
    boundaries: Boundaries
    tables: Tables

    @classmethod
    def of(
        cls, ask: Ask, rate: float, spaces: dict[Role, RoleSpace], boundaries: Boundaries, tables: Tables, found: Found
    ) -> Finalists:
        """The candidates of the fleets that a search kept."""
        pairs = [sized.meeting for sized in sorted(found.apart.values(), key=lambda s: s.usd_per_hour)[:6]]
        pools = sorted(found.together.values(), key=lambda p: p.usd_per_hour)[:3]
        kept = {
            Role.PREFILL: tuple(dict.fromkeys(m.prefill for m in pairs)),
            Role.DECODE: tuple(dict.fromkeys(m.decode for m in pairs)),
            Role.COLOCATED: tuple(dict.fromkeys(p.candidate for p in pools)),
        }
        few = {role: replace(space, candidates=kept[role]) for role, space in spaces.items()}
        return cls(ask, rate, few, boundaries, tables)

    def answer(self, rate: float | None = None, tables: Tables | None = None, **changed: object) -> str:
        """The winning fleet's shape: accelerator names, with → between prefill and decode."""
        spaces = changed.get("spaces", self.spaces)
        boundaries = changed.get("boundaries", self.boundaries)
        assert isinstance(spaces, dict)
        assert isinstance(boundaries, Boundaries)
        found = search(self.ask, tables or self.tables, boundaries, spaces, rate or self.rate, runners_up=0)
        return winner(found)


def winner(found: Found) -> str:
    """What won a search, in the words a person would use; `NOTHING` when no fleet keeps the SLO."""
    apart, together = found.best_apart(), found.best_together
    if apart is None and together is None:
        return NOTHING
    if apart is None or (together is not None and together.usd_per_hour <= apart.usd_per_hour):
        assert together is not None
        return f"{together.candidate.worker.accelerator.name} colocated"
    names = apart.meeting.prefill.worker.accelerator.name, apart.meeting.decode.worker.accelerator.name
    return f"{names[0]} → {names[1]}" if names[0] != names[1] else f"{names[0]} disaggregated"


def sensitivity(finalists: Finalists) -> tuple[Flip, ...]:
    """Every axis on which the answer may flip."""
    return tuple(_flips(finalists))


def _flips(finalists: Finalists) -> Iterator[Flip]:
    here = finalists.answer()
    for name in _accelerators(finalists):
        price = _price(finalists, name)
        if price > 0:
            yield from _both_ways(f"price:{name}", "USD/h", price, partial(_at_price, finalists, name), here)
    if finalists.spaces[Role.PREFILL].candidates:
        yield from _both_ways("bandwidth", "× today", 1.0, partial(_at_bandwidth, finalists), here)
    yield from _both_ways("prompt length", "× today", 1.0, partial(_at_prompts, finalists), here)
    yield from _hit_rates(finalists, here)
    yield from _both_ways("rate", "requests/s", finalists.rate, partial(_at_rate, finalists), here)


def _both_ways(axis: str, unit: str, now: float, at: Callable[[float], str], here: str) -> Iterator[Flip]:
    """The nearest flip below and above the present value."""
    below, above = [f for f in GRID if f < 1][::-1], [f for f in GRID if f > 1]
    flips = [flip for side in (below, above) if (flip := _walk(axis, unit, now, at, here, side)) is not None]
    yield from flips
    if not flips:
        low, high = now * GRID[0], now * GRID[-1]
        sentence = f"{here} stays the answer for a {_word(axis)} from {low:.3g} to {high:.3g} {unit}"
        yield Flip(axis, unit, now, None, low, high, here, here, sentence)


def _walk(axis: str, unit: str, now: float, at: Callable[[float], str], here: str, grid: list[float]) -> Flip | None:
    inside = 1.0
    for factor in grid:
        there = at(factor)
        if there != here:
            edge, there = _halve(at, here, there, inside, factor)
            value = now * edge
            way = "below" if factor < 1 else "above"
            sentence = f"{way} a {_word(axis)} of {value:.3g} {unit} {_follows(there, here)}"
            return Flip(
                axis, unit, now, value, now * min(factor, inside), now * max(factor, inside), here, there, sentence
            )
        inside = factor
    return None


def _follows(there: str, here: str) -> str:
    """What a flip leads to."""
    if there == NOTHING:
        return f"no fleet that was looked at keeps the SLO; until there the answer is {here}"
    return f"the answer is {there}, not {here}"


def _halve(at: Callable[[float], str], here: str, there: str, inside: float, outside: float) -> tuple[float, str]:
    """The factor at which `here` ends, and what follows it."""
    for _ in range(HALVINGS):
        middle = math.sqrt(inside * outside)
        found = at(middle)
        if found == here:
            inside = middle
        else:
            outside, there = middle, found
    return outside, there


def _word(axis: str) -> str:
    kind, _, name = axis.partition(":")
    return f"price of {name}" if kind == "price" else kind


def _accelerators(finalists: Finalists) -> list[str]:
    found = (c.worker.accelerator.name for space in finalists.spaces.values() for c in space.candidates)
    return list(dict.fromkeys(found))[:6]


def _price(finalists: Finalists, name: str) -> float:
    prices = [
        candidate.offer.usd_per_gpu_hour
        for space in finalists.spaces.values()
        for candidate in space.candidates
        if candidate.worker.accelerator.name == name
    ]
    return min(prices, default=0.0)


def _at_price(finalists: Finalists, name: str, factor: float) -> str:
    def priced(offer: Offer) -> Offer:
        return replace(offer, usd_per_hour=offer.usd_per_hour * factor) if offer.accelerator == name else offer

    spaces = {
        role: replace(space, candidates=tuple(Candidate(c.worker, priced(c.offer)) for c in space.candidates))
        for role, space in finalists.spaces.items()
    }
    return finalists.answer(spaces=spaces)


def _at_bandwidth(finalists: Finalists, factor: float) -> str:
    """Every network path as many times as wide: links and NICs."""

    def wider(link: Link) -> Link:
        return link if link.same_server else replace(link, bandwidth=link.bandwidth * factor)

    def offered(candidate: Candidate) -> Candidate:
        return Candidate(candidate.worker, replace(candidate.offer, nic_bandwidth=candidate.nic * factor))

    catalog = finalists.ask.catalog
    links = {name: wider(link) for name, link in catalog.links.items()}
    ask = replace(finalists.ask, catalog=replace(catalog, links=links))
    spaces = {
        role: replace(space, candidates=tuple(map(offered, space.candidates)))
        for role, space in finalists.spaces.items()
    }
    return finalists.answer(spaces=spaces, boundaries=Boundaries(ask, finalists.boundaries.setting))


def _at_rate(finalists: Finalists, factor: float) -> str:
    return finalists.answer(rate=finalists.rate * factor)


def _at_prompts(finalists: Finalists, factor: float) -> str:
    return _at_lengths(finalists, _longer(finalists.ask.lengths, factor))


def _longer(lengths: Lengths, factor: float) -> Lengths:
    return Lengths(np.maximum(lengths.isl * factor, 1.0), lengths.osl, lengths.cached * factor, lengths.weight)


def _at_lengths(finalists: Finalists, lengths: Lengths) -> str:
    """Stage tables of the finalists for other lengths; longer than the model takes is no answer."""
    if lengths.max_context > finalists.ask.model.max_context:
        lengths = replace_isl(lengths, finalists.ask.model.max_context)
    ask = replace(finalists.ask, lengths=lengths)
    return replace(finalists, ask=ask).answer(tables=Tables.of(ask, finalists.spaces))


def replace_isl(lengths: Lengths, most: float) -> Lengths:
    """Prompts cut so that no request exceeds `most` tokens."""
    isl = np.minimum(lengths.isl, np.maximum(most - lengths.osl, 1.0))
    return Lengths(isl, lengths.osl, np.minimum(lengths.cached, isl), lengths.weight)


def _hit_rates(finalists: Finalists, here: str) -> Iterator[Flip]:
    """The share of prompt tokens found in a prefix cache at which the answer changes."""
    now = finalists.ask.lengths.hit_rate
    for low, high in zip((now, 0.2, 0.4, 0.6, 0.8), (0.2, 0.4, 0.6, 0.8, 0.95), strict=True):
        if high <= now:
            continue
        there = _at_hits(finalists, high)
        if there != here:
            inside, outside = max(low, now), high
            for _ in range(HALVINGS):
                middle = (inside + outside) / 2
                found = _at_hits(finalists, middle)
                inside, outside, there = (middle, outside, there) if found == here else (inside, middle, found)
            sentence = f"above a prefix-hit rate of {outside:.0%} {_follows(there, here)}"
            yield Flip("prefix hit rate", "", now, outside, low, high, here, there, sentence)
            return
    yield Flip(
        "prefix hit rate",
        "",
        now,
        None,
        now,
        0.95,
        here,
        here,
        f"{here} stays the answer up to a prefix-hit rate of 95%",
    )


def _at_hits(finalists: Finalists, share: float) -> str:
    lengths = finalists.ask.lengths
    cached = np.minimum(lengths.isl * share, lengths.isl - 1.0)
    return _at_lengths(finalists, Lengths(lengths.isl, lengths.osl, np.maximum(cached, 0.0), lengths.weight))
