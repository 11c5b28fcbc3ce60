"""From an option of a plan to the design it stands for: the very workers, link and boundary that were sized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import isclose

from diptych.catalog.catalog import Catalog
from diptych.catalog.model import Model
from diptych.catalog.offer import PriceBook
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Boundary, Placement, Representation
from diptych.design.design import Design, Member, Pool
from diptych.errors import Finding, InvalidInput
from diptych.perf.transfer import path
from diptych.planner.plan import BoundaryPlan, MemberPlan, Option


@dataclass(frozen=True, slots=True)
class Fleet:
    """A design and what the way to it had to leave out."""

    design: Design
    notes: tuple[str, ...] = ()


def fleet_of_option(option: Option, catalog: Catalog, model: Model, book: PriceBook | None = None) -> Fleet:
    """The design of an option.

    A worker costs its share of its pool's bill, whole instances included. Its NIC is the one of the offer it was sized on, found
    by the bandwidth that the plan gives for the path; an accelerator's own where the book is not at hand.

    Raises:
        InvalidCatalog: an accelerator or link that this catalog does not have.
    """
    pools = tuple(
        Pool(pool.role, tuple(_member(member, catalog, model) for member in pool.members)) for pool in option.pools
    )
    planned = option.boundary
    if planned is None:
        return Fleet(Design(pools))
    boundary = _boundary(planned, catalog)
    design, found = _wired(Design(pools, boundary), option, planned.bandwidth, book)
    notes = []
    if not found:
        notes.append(
            f"the plan's path of {planned.bandwidth / 1e9:.3g} GB/s is not that of these accelerators' own NICs"
        )
    if planned.placement is Placement.SAME_NODE:
        notes.append("servers that each hold both roles are simulated as one, so requests may cross between them")
    return Fleet(design, tuple(notes))


def _member(member: MemberPlan, catalog: Catalog, model: Model) -> Member:
    worker = Worker(
        model,
        catalog.accelerator(member.accelerator),
        Precision(member.weights, member.activations, member.kv),
        Parallelism(member.tp, member.pp, member.ep, member.dp),
        member.engine,
        member.max_batch,
        member.max_batched_tokens,
        member.residency,
    )
    return Member(worker, member.workers, member.usd_per_hour / member.workers, member.offer)


def _boundary(planned: BoundaryPlan, catalog: Catalog) -> Boundary:
    form = Representation(planned.codec, planned.wire, planned.converts_at)
    link = catalog.link(planned.link)
    return Boundary(planned.placement, link, form, planned.ownership, planned.overlap, planned.local_below)


def _wired(design: Design, option: Option, bandwidth: float, book: PriceBook | None) -> tuple[Design, bool]:
    """The design with the NICs under which its path has the plan's bandwidth; as it is, and False, when none do."""
    assert design.boundary is not None
    sides = [option.pool(role) for role in (Role.PREFILL, Role.DECODE)]
    workers = [pool.members[0].worker for pool in design.pools]
    nics = [list(_nics(side.members[0], book)) if side else [0.0] for side in sides]
    for mine, theirs in product(*nics):
        found = path(workers[0], workers[1], design.boundary.link, mine, theirs).achievable
        if isclose(found, bandwidth, rel_tol=1e-9):
            pools = tuple(_with_nic(pool, nic) for pool, nic in zip(design.pools, (mine, theirs), strict=True))
            return replace(design, pools=pools), True
    return design, False


def _nics(member: MemberPlan, book: PriceBook | None) -> Iterator[float]:
    """Bandwidths per accelerator that a member's NIC may have: its own (0), or one of its offer."""
    yield 0.0
    offers = book.offers_of(member.accelerator) if book else ()
    yield from dict.fromkeys(
        offer.nic_bandwidth
        for offer in offers
        if offer.nic_bandwidth and (offer.instance, offer.provider) == (member.offer, member.provider)
    )


def _with_nic(pool: Pool, nic: float) -> Pool:
    if not nic:
        return pool
    members = tuple(
        replace(m, worker=replace(m.worker, accelerator=replace(m.worker.accelerator, nic_bandwidth=nic)))
        for m in pool.members
    )
    return replace(pool, members=members)


def priced(design: Design, book: PriceBook, where: str = "--prices") -> Design:
    """The design with every worker that has no price on the cheapest offer of `book` per accelerator, and on its NIC.

    Raises:
        InvalidInput: accelerators that the book does not offer.
    """
    missing = dict.fromkeys(
        m.worker.accelerator.name
        for pool in design.pools
        for m in pool.members
        if not book.offers_of(m.worker.accelerator.name)
    )
    if missing:
        known = ", ".join(sorted({offer.accelerator for offer in book}))
        raise InvalidInput(Finding(where, f"{book.name} has no offer of {', '.join(missing)}", f"one of {known}"))
    pools = tuple(
        replace(pool, members=tuple(_priced(member, book) for member in pool.members)) for pool in design.pools
    )
    return replace(design, pools=pools)


def _priced(member: Member, book: PriceBook) -> Member:
    if member.usd_per_hour:
        return member
    worker = member.worker
    offer = book.offers_of(worker.accelerator.name)[0]
    nic = offer.nic_bandwidth or worker.accelerator.nic_bandwidth
    worker = replace(worker, accelerator=replace(worker.accelerator, nic_bandwidth=nic))
    return replace(
        member, worker=worker, usd_per_hour=offer.usd_per_gpu_hour * worker.accelerators, offer=offer.instance
    )
