"""Pins that contradict each other, the goal, the workload or the price book."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.offer import Offer, PriceBook
from diptych.design.boundary import Codec, Overlap, Ownership, Placement, Side
from diptych.errors import Finding
from diptych.planner.pins import Pins, RolePins
from diptych.workload.workload import Workload


def contradictions(
    pins: Pins,
    prefill: RolePins,
    decode: RolePins,
    placement: Placement | None,
    ownership: Ownership | None,
    overlap: Overlap | None,
    inventory: Mapping[str, int] | None,
) -> Iterator[Finding]:
    """Pins that no design can keep together."""
    names = [{accelerator.name for accelerator in role.accelerators} for role in (prefill, decode)]
    apart = bool(names[0] and names[1]) and not names[0] & names[1]
    if placement in (Placement.COLOCATED, Placement.SAME_NODE) and apart:
        yield Finding(
            "--placement", f"{placement} with different accelerators per role", "one accelerator for both roles"
        )
    handoff = (pins.interconnect, ownership, overlap, pins.wire, pins.codec, pins.converts_at)
    if placement is Placement.COLOCATED and any(handoff):
        yield Finding("--placement", "colocated has no handoff to pin", "a disaggregated placement, or no boundary pin")
    if ownership is Ownership.PULL and overlap is Overlap.LAYERWISE:
        yield Finding("--overlap", "a pull starts after prefill, so it cannot overlap layer by layer", "push")
    for role, where in ((prefill, "--prefill"), (decode, "--decode")):
        for accelerator in role.accelerators:
            if inventory is not None and accelerator.name not in inventory and not _owned(accelerator, inventory):
                yield Finding(where, f"{accelerator.name} is not in the inventory", ", ".join(inventory))


def unplanned(
    pins: Pins, placement: Placement | None, budget: float | None, inventory: Mapping[str, int] | None
) -> Iterator[Finding]:
    """Placements that are planned for some goals only."""
    where = "--placement" if pins.placement else "--local-below"
    if placement is Placement.CONDITIONAL and (budget is not None or inventory is not None):
        yield Finding(where, "conditional placement is planned for a rate", "--rate, or another placement")
    if placement is Placement.SAME_NODE and inventory is not None:
        yield Finding(where, "what is owned is not known server by server", "disaggregated, colocated, or --prices")


def senseless(
    pins: Pins, placement: Placement | None, codec: Codec | None, converts_at: Side | None, workload: Workload
) -> Iterator[Finding]:
    """Pins that say nothing where they stand."""
    if codec is Codec.RAW and converts_at is not None:
        yield Finding("--converts-at", "raw KV is converted nowhere", "another --codec, or none")
    if not isinstance(pins.local_below, int) or not len(workload.lengths.isl):
        return
    if placement is not Placement.CONDITIONAL:
        yield Finding("--local-below", f"{placement} placement has no threshold", "--placement conditional")
    shortest, longest = float(np.min(workload.lengths.isl)), float(np.max(workload.lengths.isl))
    if not shortest < pins.local_below <= longest:
        problem = f"{pins.local_below} tokens part no prompts of {workload.name}"
        apart = f"above {shortest:.0f}, up to {longest:.0f}" if shortest < longest else "prompts of several lengths"
        yield Finding("--local-below", problem, apart)


def _owned(accelerator: Accelerator, inventory: Mapping[str, int]) -> bool:
    known = {accelerator.name.casefold(), *(alias.casefold() for alias in accelerator.aliases)}
    return any(name.casefold() in known for name in inventory)


def unpriced(
    book: PriceBook | None,
    offers: tuple[Offer, ...],
    prefill: RolePins,
    decode: RolePins,
    inventory: Mapping[str, int] | None,
    pins: Pins,
) -> Iterator[Finding]:
    if book is None or inventory is not None:
        return
    priced = sorted({offer.accelerator for offer in offers})
    if not priced:
        yield Finding("--prices", f"{book.name} offers nothing under these pins", "another provider, region or book")
    for role, where in ((prefill, "--prefill"), (decode, "--decode")):
        for accelerator in role.accelerators:
            if priced and accelerator.name not in priced:
                expected = f"one of {', '.join(priced)}" if len(priced) <= 16 else "an accelerator with an offer"
                yield Finding(where, f"the book {book.name} has no offer of {accelerator.name}", expected)
