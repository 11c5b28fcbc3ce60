"""Price books made from offers: one per provider and kind of price, and `neo`, the cheapest of the neo-clouds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from diptych.catalog.offer import Offer, PriceBook

NEO_CLOUDS = ("Crusoe", "Hyperstack", "Lambda", "Nebius", "RunPod")
"""Providers whose on-demand offers make up the book `neo`; serverless prices are left out."""

_OWNED = "SemiAnalysis TCO model"
_TCO_BOOKS = {"TCO-neocloud-owned": "tco", "TCO-hyperscaler-owned": "tco-hyperscaler", "3yr-rental": "rental-3yr"}


def book_name(offer: Offer) -> str:
    """The book an offer belongs to.

    AWS GovCloud has a book of its own: its prices are for a few customers only.
    """
    if offer.provider == _OWNED:
        return _TCO_BOOKS[offer.price_type]
    name = offer.provider.lower()
    if "gov" in offer.region.lower():
        name += "-gov"
    return name if offer.price_type == "on-demand" else f"{name}-{offer.price_type.removesuffix('-flex')}"


def books_from(offers: Iterable[Offer]) -> dict[str, PriceBook]:
    """One book per provider and price kind, plus `neo`."""
    grouped: dict[str, list[Offer]] = defaultdict(list)
    for offer in offers:
        grouped[book_name(offer)].append(offer)
    books = {name: PriceBook(name, book_date(group), tuple(group)) for name, group in sorted(grouped.items())}
    neo = [offer for name in NEO_CLOUDS if name.lower() in books for offer in books[name.lower()]]
    books["neo"] = PriceBook("neo", book_date(neo), cheapest(neo))
    return dict(sorted(books.items()))


def cheapest(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The cheapest offer of every accelerator and instance size."""
    best: dict[tuple[str, int], Offer] = {}
    for offer in offers:
        key = (offer.accelerator, offer.gpus)
        if key not in best or offer.usd_per_hour < best[key].usd_per_hour:
            best[key] = offer
    return tuple(best[key] for key in sorted(best))


def book_date(offers: Sequence[Offer]) -> str:
    """The day of the offers, or the span when they are of several days ('?' marks a day that the source does not state)."""
    dates = sorted({offer.date for offer in offers if offer.date}, key=lambda date: date.rstrip("?"))
    if not dates:
        return ""
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
