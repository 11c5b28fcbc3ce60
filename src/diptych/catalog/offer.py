"""Prices: what an accelerator-hour costs, where, when, and with how much network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diptych.catalog.provenance import Provenance


@dataclass(frozen=True, slots=True)
class Offer:
    """One rentable unit: `gpus` accelerators for `usd_per_hour` (the whole instance), with their share of the NIC.

    `nic_bandwidth` is bytes/s per accelerator and direction, 0 when the source does not say.
    """

    accelerator: str
    provider: str
    instance: str
    gpus: int
    usd_per_hour: float
    region: str = ""
    date: str = ""
    price_type: str = "on-demand"
    nic_bandwidth: float = 0.0
    provenance: Provenance | None = None

    @property
    def usd_per_gpu_hour(self) -> float:
        return self.usd_per_hour / self.gpus


@dataclass(frozen=True, slots=True)
class PriceBook:
    """A named set of offers of one day: the answer to "what does it cost" always names its book."""

    name: str
    date: str
    offers: tuple[Offer, ...]

    def __iter__(self) -> Iterator[Offer]:
        return iter(self.offers)

    def offers_of(self, accelerator: str) -> tuple[Offer, ...]:
        """The offers of one accelerator, cheapest per accelerator-hour first."""
        mine = (offer for offer in self.offers if offer.accelerator == accelerator)
        return tuple(sorted(mine, key=lambda offer: (offer.usd_per_gpu_hour, offer.gpus, offer.instance)))
