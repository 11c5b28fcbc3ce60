"""What may be chosen where the roles meet, simplest first, and which of it two workers may use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link
from diptych.design.boundary import Boundary, Codec, Overlap, Ownership, Placement, Representation, Side
from diptych.design.constraints import HANDOFF_RULES, KV_RULES, PATH_RULES, pair_violations
from diptych.design.ruling import Pair, Setting
from diptych.perf.transfer import path
from diptych.planner.ask import Ask
from diptych.planner.enumerate import Candidate

WIRES = (Dtype.BF16, Dtype.FP16, Dtype.FP8, Dtype.FP8_FNUZ, Dtype.INT8, Dtype.INT4)
SIDES = (None, Side.PREFILL, Side.DECODE, Side.TRANSFER)
APART = (Placement.DISAGGREGATED, Placement.SAME_NODE)


@dataclass(frozen=True, slots=True)
class BoundaryAxes:
    """The values of each boundary axis that a question leaves open. Orders are by departure from what stock engines do."""

    links: tuple[Link, ...]
    placements: tuple[Placement, ...]
    representations: tuple[Representation, ...]
    ownerships: tuple[Ownership, ...]
    overlaps: tuple[Overlap, ...]

    @property
    def size(self) -> int:
        """Boundaries of one pair of workers, before any rule."""
        return (
            len(self.links)
            * len(self.placements)
            * len(self.representations)
            * len(self.ownerships)
            * len(self.overlaps)
        )


def boundary_axes(ask: Ask) -> BoundaryAxes:
    """All values, those that a stock engine can be told, or the pinned ones."""
    pinned = ask.pins.interconnect
    links = (ask.catalog.link(pinned),) if pinned else tuple(ask.catalog.links.values())
    wires = (ask.wire,) if ask.wire else WIRES
    stock = ask.stock.handling if ask.stock else None
    codecs = (ask.codec,) if ask.codec else (Codec.RAW,) if stock else tuple(Codec)
    sides = (ask.converts_at,) if ask.converts_at else (None,) if stock else SIDES
    forms = tuple(Representation(codec, wire, side) for codec, side, wire in product(codecs, sides, wires))
    place = Placement.DISAGGREGATED if ask.placement is Placement.CONDITIONAL else ask.placement
    placements = tuple(p for p in APART if place in (None, p))
    return BoundaryAxes(
        links,
        placements,
        forms,
        (ask.ownership,) if ask.ownership else stock.ownerships if stock else (Ownership.PULL, Ownership.PUSH),
        (ask.overlap,) if ask.overlap else stock.overlaps if stock else (Overlap.SERIAL, Overlap.LAYERWISE),
    )


class Boundaries:
    """The boundaries that keep the rules, answered from memory: the same question is asked for thousands of pairs."""

    def __init__(self, ask: Ask, setting: Setting) -> None:
        self.axes, self.stock = boundary_axes(ask), ask.stock
        self.setting = setting
        self._paths: dict[tuple[object, ...], tuple[tuple[Placement, Link], ...]] = {}
        self._forms: dict[tuple[Dtype, Dtype], tuple[Representation, ...]] = {}
        self._moves: dict[tuple[object, ...], tuple[tuple[Ownership, Overlap], ...]] = {}

    def of(self, prefill: Candidate, decode: Candidate, placement: Placement) -> Iterator[list[tuple[Boundary, Link]]]:
        """(boundary, path) of every design of this pair and placement that keeps the rules, simplest first. Each list holds the
        ways to move the same bytes over the same path."""
        if placement not in self.axes.placements:
            return
        moves = self.moves(prefill, decode)
        for link in self.links(prefill, decode, placement):
            route = path(prefill.worker, decode.worker, link, prefill.nic, decode.nic)
            for form in self.forms(prefill.worker.precision.kv, decode.worker.precision.kv, prefill, decode):
                every = (Boundary(placement, link, form, ownership, overlap) for ownership, overlap in moves)
                ways = [(boundary, route) for boundary in every if self.serves(prefill, decode, boundary)]
                if ways:
                    yield ways

    def serves(self, prefill: Candidate, decode: Candidate, boundary: Boundary) -> bool:
        """Whether the stock engine that was asked for serves the pair; accelerators alone may already decide."""
        mine, theirs = prefill.worker, decode.worker
        if self.stock is None:
            return True
        if self.stock.accelerators(mine, theirs, boundary) is not None:
            return False
        return self.stock.pair(Pair(mine, theirs, boundary)) is None

    def links(self, prefill: Candidate, decode: Candidate, placement: Placement) -> tuple[Link, ...]:
        """Links of one placement that keep the path rules, without those that another of them beats for every size.

        Dominance: over the same NICs, a link with no more latency and no less bandwidth moves any number of bytes in no more
        time, so every delay it enters is no longer. Wider classes of one kind than the NIC are the same path and go too.
        """
        key = (
            placement, prefill.site, decode.site, prefill.offer.instance, decode.offer.instance, prefill.worker.accelerator.name,
            decode.worker.accelerator.name, prefill.worker.parallelism, decode.worker.parallelism,
        )  # fmt: skip
        if key not in self._paths:
            self._paths[key] = tuple(self._links(prefill, decode, placement))
        return tuple(link for _, link in self._paths[key])

    def _links(self, prefill: Candidate, decode: Candidate, placement: Placement) -> Iterator[tuple[Placement, Link]]:
        routes = []
        for link in self.axes.links:
            boundary = Boundary(placement, link, Representation(Codec.RAW, prefill.worker.precision.kv))
            if not any(pair_violations(pair_of(prefill, decode, boundary), self.setting, PATH_RULES)):
                routes.append((link, path(prefill.worker, decode.worker, link, prefill.nic, decode.nic)))
        nic = min((side.nic for side in (prefill, decode) if side.nic > 0), default=0.0)
        routes = [entry for entry in routes if not _only_wider(entry[0], routes, nic)]
        for link, route in routes:
            if not any(_faster(other, route) for _, other in routes if other is not route):
                yield placement, link

    def forms(
        self, produced: Dtype, consumed: Dtype, prefill: Candidate, decode: Candidate
    ) -> tuple[Representation, ...]:
        """Representations that keep the KV rules."""
        if (produced, consumed) not in self._forms:
            link = self.axes.links[0]
            self._forms[produced, consumed] = tuple(
                form
                for form in self.axes.representations
                if not any(
                    pair_violations(
                        pair_of(prefill, decode, Boundary(Placement.DISAGGREGATED, link, form)), self.setting, KV_RULES
                    )
                )
            )
        return self._forms[produced, consumed]

    def moves(self, prefill: Candidate, decode: Candidate) -> tuple[tuple[Ownership, Overlap], ...]:
        """Ownership and overlap that keep the handoff rules."""
        shapes = prefill.worker.parallelism, decode.worker.parallelism
        key = shapes if self.stock else (shapes[0].tp, shapes[1].tp)
        if key not in self._moves:
            base = Boundary(
                Placement.DISAGGREGATED, self.axes.links[0], Representation(Codec.RAW, prefill.worker.precision.kv)
            )
            every = (
                replace(base, ownership=ownership, overlap=overlap)
                for overlap, ownership in product(self.axes.overlaps, self.axes.ownerships)
            )
            self._moves[key] = tuple(
                (boundary.ownership, boundary.overlap)
                for boundary in every
                if not any(pair_violations(pair_of(prefill, decode, boundary), self.setting, HANDOFF_RULES))
                and (self.stock is None or self.stock.shapes(prefill.worker, decode.worker, boundary) is None)
            )
        return self._moves[key]


def pair_of(prefill: Candidate, decode: Candidate, boundary: Boundary) -> Pair:
    """The pair the rules look at; what is owned has no offer."""
    return Pair(prefill.worker, decode.worker, boundary, prefill.offer, decode.offer)


def _faster(one: Link, other: Link) -> bool:
    """Never slower for any size, and sooner for some (or first by name when equal)."""
    constants = [link.alpha + link.half_size / link.achievable for link in (one, other)]
    slopes = [1 / link.achievable for link in (one, other)]
    if constants[0] > constants[1] or slopes[0] > slopes[1]:
        return False
    return (constants[0], slopes[0], one.name) < (constants[1], slopes[1], other.name)


def _only_wider(link: Link, routes: list[tuple[Link, Link]], nic: float) -> bool:
    """Whether a narrower link of the same kind is already as wide as the NIC."""
    if nic <= 0 or link.same_server:
        return False
    return any(other.kind is link.kind and nic * 0.999 <= other.bandwidth < link.bandwidth for other, _ in routes)
