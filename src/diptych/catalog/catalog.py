"""The catalog: everything that exists, looked up by any of its names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.hf_config import read_hf_config
from diptych.catalog.interconnect import Link
from diptych.catalog.memory import MemoryTier
from diptych.catalog.model import Model
from diptych.catalog.names import accelerator_key, fold, index_names, model_keys, stored_dtype
from diptych.catalog.offer import Offer, PriceBook
from diptych.catalog.price_csv import load_price_csv
from diptych.errors import Finding, InvalidCatalog, did_you_mean

T = TypeVar("T")


@dataclass(frozen=True)
class Catalog:
    """Accelerators, links, memory tiers, models and price books by name. Never changed after it is made.

    A lookup resolves aliases and spellings and raises `InvalidCatalog` with the nearest names when it finds nothing.
    """

    accelerators: Mapping[str, Accelerator]
    links: Mapping[str, Link]
    tiers: Mapping[str, MemoryTier]
    models: Mapping[str, Model]
    books: Mapping[str, PriceBook]

    @classmethod
    def load(cls, *overlays: Path | str, prices: Path | str | None = None) -> Catalog:
        """The built-in catalog with user files laid over it, later ones winning, and a user's price book.

        Raises:
            InvalidCatalog: every finding of every file at once.
        """
        from diptych.catalog.load import load_catalog

        return load_catalog(tuple(Path(overlay) for overlay in overlays), Path(prices) if prices else None)

    @cached_property
    def _accelerator_index(self) -> Mapping[str, str]:
        return index_names(((a.name, a.aliases) for a in self.accelerators.values()), "accelerator")

    @cached_property
    def _model_index(self) -> Mapping[str, str]:
        return index_names(((m.name, m.aliases) for m in self.models.values()), "model")

    def find_accelerator(self, name: str) -> Accelerator | None:
        """The accelerator of this spelling, or None: benchmark tables name what no catalog has."""
        found = self._accelerator_index.get(accelerator_key(name)) or self._accelerator_index.get(fold(name))
        return self.accelerators[found] if found else None

    def accelerator(self, name: str) -> Accelerator:
        """The accelerator of this name, alias or spelling.

        Raises:
            InvalidCatalog: unknown; names the nearest.
        """
        found = self.find_accelerator(name)
        if found is None:
            raise _unknown("accelerator", name, self.accelerator_names)
        return found

    @property
    def accelerator_names(self) -> list[str]:
        """Names and aliases, for hints."""
        return [*self.accelerators, *_aliases(self.accelerators)]

    def find_model(self, name: str) -> Model | None:
        """The model of this spelling, or None. A suffix such as -FP8 names the format its weights are stored in."""
        for key in (fold(name), *model_keys(name)):
            found = self._model_index.get(key)
            if found:
                model, stored = self.models[found], stored_dtype(name)
                return replace(model, native=stored) if stored and fold(name) != fold(found) else model
        return None

    def model(self, name: str | Path) -> Model:
        """The model of this name, or of a local config.json or the directory that holds one.

        As in the Hugging Face libraries, a directory of that name that holds a config.json comes first.

        Raises:
            InvalidCatalog: unknown name (the nearest are given), or a config that does not describe a model.
        """
        text = str(name)
        is_path = isinstance(name, Path) or text.endswith(".json") or text.startswith((".", "/", "~"))
        if is_path or _holds_config(text):
            return read_hf_config(_expanded(text))
        found = self.find_model(text)
        if found is None:
            raise _unknown("model", text, [*self.models, *_aliases(self.models)])
        return found

    def link(self, name: str) -> Link:
        """The link of this name."""
        return _lookup("link", name, self.links)

    def tier(self, name: str) -> MemoryTier:
        """The memory tier of this name."""
        return _lookup("memory tier", name, self.tiers)

    def book(self, name: str | Path) -> PriceBook:
        """The price book of this name, or of a CSV of prices (see `price_csv`)."""
        text = str(name)
        if isinstance(name, Path) or text.casefold().endswith(".csv"):
            return load_price_csv(_expanded(text), self.find_accelerator, self.accelerator_names)
        return _lookup("price book", text, self.books)

    def nic_bandwidth(self, offer: Offer) -> float:
        """Bytes/s per accelerator and direction: the offer's own, or the accelerator's usual one where it says nothing."""
        return offer.nic_bandwidth or self.accelerators[offer.accelerator].nic_bandwidth

    @property
    def planable(self) -> tuple[Accelerator, ...]:
        """The accelerators whose core numbers are known."""
        return tuple(accelerator for accelerator in self.accelerators.values() if accelerator.is_complete)


def _expanded(text: str) -> Path:
    """The path with ~ replaced, or as it stands when there is no such user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def _holds_config(text: str) -> bool:
    try:
        return (Path(text) / "config.json").is_file()
    except OSError:  # too long for a file name
        return False


def _aliases(entries: Mapping[str, Accelerator] | Mapping[str, Model]) -> list[str]:
    return [alias for entry in entries.values() for alias in entry.aliases]


def _lookup(what: str, name: str, entries: Mapping[str, T]) -> T:
    folded = {fold(known): entry for known, entry in entries.items()}
    if fold(name) not in folded:
        raise _unknown(what, name, list(entries))
    return folded[fold(name)]


def _unknown(what: str, name: str, known: list[str]) -> InvalidCatalog:
    return InvalidCatalog(Finding("", f"unknown {what} {name!r}", hint=did_you_mean(name, known)))
