"""What may be rented, or what is owned, under the pins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from diptych.catalog.offer import Offer, PriceBook
from diptych.planner.asking import Asking
from diptych.planner.pins import Pins

OWNED = "owned"


def offers_of(
    asking: Asking, book: PriceBook | None, inventory: Mapping[str, int] | None, pins: Pins
) -> tuple[Offer, ...]:
    """What may be rented from `book` under the pins, or one offer per owned accelerator priced by the book if it can."""
    if inventory is None:
        return useful_sites(
            offer
            for offer in book or ()
            if offer.accelerator in asking.catalog.accelerators
            and (pins.provider is None or pins.provider.casefold() == offer.provider.casefold())
            and (pins.region is None or pins.region.casefold() == offer.region.casefold())
        )
    owned, spelled = [], dict[str, str]()
    for name in inventory:
        accelerator = asking.attempt("--inventory", asking.catalog.accelerator, name)
        if accelerator is not None and (other := spelled.setdefault(accelerator.name, name)) != name:
            asking.say(
                "--inventory", f"{other} and {name} are both {accelerator.name}", "one count for each accelerator"
            )
        elif accelerator is not None:
            size = max(min(8, accelerator.scaleup.world, inventory[name]), 1)
            priced = book.offers_of(accelerator.name) if book else ()
            hourly = priced[0].usd_per_gpu_hour if priced else 0.0
            owned.append(
                Offer(accelerator.name, OWNED, OWNED, size, hourly * size, nic_bandwidth=accelerator.nic_bandwidth)
            )
    return tuple(owned)


def useful_sites(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The offers of every place (provider and region) that no other place of the provider beats.

    Dominance: where for each offer of one place another place has one of the same accelerator and size that is no dearer and has
    no slower a network, every fleet of the first can be rented in the second, pool by pool, for no more.
    """
    sites: dict[tuple[str, str], dict[tuple[str, int], list[Offer]]] = {}
    for offer in offers:
        site = sites.setdefault((offer.provider, offer.region), {})
        site.setdefault((offer.accelerator, offer.gpus), []).append(offer)
    kept: list[tuple[str, str]] = []
    for name in sorted(sites, key=lambda key: (-len(sites[key]), key)):
        rivals = [other for other in kept if other[0] == name[0]]
        if not any(_covers(sites[other], sites[name]) for other in rivals):
            kept = [o for o in kept if o[0] != name[0] or not _covers(sites[name], sites[o])] + [name]
    return tuple(offer for name in kept for group in sites[name].values() for offer in group)


def _covers(one: dict[tuple[str, int], list[Offer]], other: dict[tuple[str, int], list[Offer]]) -> bool:
    """Whether `one` has, for every offer of `other`, one no worse."""
    return all(
        any(
            mine.usd_per_hour <= theirs.usd_per_hour and mine.nic_bandwidth >= theirs.nic_bandwidth
            for mine in one.get(key, ())
        )
        for key, group in other.items()
        for theirs in group
    )
