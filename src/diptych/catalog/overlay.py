"""A user's catalog file, laid over the built-in one.

```yaml
extends: base.yaml            # or a list; laid down first
accelerators:
  C600:                       # a new name, or a known one of which the given numbers are replaced
    like: H100                # optional: start from another accelerator
    vendor: MetaX
    memory: 144GB
    memory_bandwidth: 4TB/s
    compute: {bf16: 500TFLOPS, int8: 1000TFLOPS}
    scaleup: {technology: MetaXLink, bandwidth: 200GB/s, world: 8}
links:
  wan: {kind: tcp, bandwidth: 100Gb/s, alpha: 2ms, efficiency: 0.8}
tiers:
  pool: {kind: remote, capacity: 2TB, read_bandwidth: 10GB/s, write_bandwidth: 10GB/s}
models:
  mine: {config: ./my-model}  # a config.json, its directory, or the fields themselves
offers:
  - {book: mine, accelerator: C600, provider: us, instance: rack, gpus: 8, usd_per_hour: 12}
```
Plain numbers are in the units of `quantities`. Any row may say `source`, `as_of`, `confidence`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from diptych.catalog.accelerator import Accelerator, ScaleUp, missing_numbers
from diptych.catalog.books import book_date
from diptych.catalog.catalog import Catalog
from diptych.catalog.hf_config import model_from_config, read_hf_config
from diptych.catalog.interconnect import Link
from diptych.catalog.memory import MemoryTier
from diptych.catalog.offer import Offer, PriceBook
from diptych.catalog.overlay_schema import ACCELERATOR, LINK, MODEL, OFFER, ORIGIN, TIER, Schema
from diptych.catalog.provenance import Confidence, Provenance
from diptych.catalog.yaml_lines import Node, read_yaml
from diptych.errors import Finding, InvalidCatalog, did_you_mean

MAX_FILES = 32

_SECTIONS = ("extends", "accelerators", "links", "tiers", "models", "offers")


def lay_over(catalog: Catalog, paths: tuple[Path, ...], findings: list[Finding]) -> Catalog:
    """`catalog` with every file laid over it in order, each after the files it extends."""
    documents: dict[Path, Node] = {}
    for path in paths:
        _collect(path, (), documents, findings)
    for path, document in documents.items():
        catalog = _Overlay(catalog, path, findings).apply(document)
    return catalog


def _collect(path: Path, chain: tuple[Path, ...], documents: dict[Path, Node], findings: list[Finding]) -> None:
    """Read `path` after everything it extends; a cycle is named, a file is read once."""
    resolved = path.resolve()
    if resolved in chain:
        cycle = " → ".join(part.name for part in (*chain[chain.index(resolved) :], resolved))
        findings.append(Finding(str(chain[-1]), f"extends itself: {cycle}", "a chain that ends"))
        return
    if resolved in documents:
        return
    if len(documents) + len(chain) >= MAX_FILES:
        findings.append(Finding(str(path), f"more than {MAX_FILES} files extend each other"))
        return
    document = read_yaml(path, findings)
    if document is None:
        return
    if not document.is_mapping:
        findings.append(Finding(document.where, "not a mapping", f"sections {', '.join(_SECTIONS)}"))
        return
    for node in _extended(document, findings):
        _collect(path.parent / node.value, (*chain, resolved), documents, findings)
    documents[resolved] = document


def _extended(document: Node, findings: list[Finding]) -> list[Node]:
    node = document.value.get("extends")
    if node is None:
        return []
    parts: list[Node] = node.value if isinstance(node.value, list) else [node]
    findings.extend(
        Finding(part.where, "extends is not a file name", "a path or a list of paths")
        for part in parts
        if not _is_file_name(part)
    )
    return [part for part in parts if _is_file_name(part)]


def _is_file_name(node: Node) -> bool:
    return isinstance(node.value, str) and bool(node.value) and "\0" not in node.value


class _Overlay:
    """One file on its way over a catalog."""

    def __init__(self, catalog: Catalog, path: Path, findings: list[Finding]) -> None:
        self.catalog, self.path, self.findings = catalog, path, findings

    def apply(self, document: Node) -> Catalog:
        for name, node in document.value.items():
            if name not in _SECTIONS:
                hint = did_you_mean(name, list(_SECTIONS))
                self.findings.append(Finding(node.where, f"unknown section {name!r}", hint=hint))
        self._each(document, "accelerators", ACCELERATOR, self._accelerator)
        self._each(document, "links", LINK, self._link)
        self._each(document, "tiers", TIER, self._tier)
        self._each(document, "models", MODEL, self._model)
        self._offers(document.value.get("offers"))
        return self.catalog

    def _each(
        self, document: Node, section: str, schema: Schema, put: Callable[[str, dict[str, Any], str], None]
    ) -> None:
        node = document.value.get(section)
        if node is None:
            return
        if not node.is_mapping:
            self.findings.append(Finding(node.where, f"{section} is not a mapping of names", "name: {...}"))
            return
        for name, row in node.value.items():
            values = self._read(f"{section}.{name}", row, schema)
            if values is not None:
                put(name, values, row.where)

    def _read(self, label: str, row: Node, schema: Schema) -> dict[str, Any] | None:
        """The row's values by key; None when any of them is wrong (each is a finding)."""
        if not row.is_mapping:
            self.findings.append(Finding(row.where, f"{label} is not a mapping", ", ".join(schema)))
            return None
        before, values = len(self.findings), {}
        for key, node in row.value.items():
            if key not in schema:
                hint = did_you_mean(key, list(schema))
                self.findings.append(Finding(node.where, f"{label}: unknown key {key!r}", hint=hint))
                continue
            try:
                values[key] = schema[key](node.plain)
            except ValueError as error:
                self.findings.append(Finding(node.where, f"{label}.{key}: {error}"))
        return values if len(self.findings) == before else None

    def _need(self, label: str, values: Mapping[str, Any], names: tuple[str, ...], where: str) -> bool:
        gone = [name for name in names if name not in values]
        if gone:
            self.findings.append(Finding(where, f"{label} is new and lacks {', '.join(gone)}", ", ".join(names)))
        return not gone

    def _origin(self, values: Mapping[str, Any], where: str) -> Provenance:
        confidence = values.get("confidence", Confidence.MEDIUM)
        return Provenance(values.get("source", where), values.get("as_of", ""), confidence)

    def _accelerator(self, name: str, values: dict[str, Any], where: str) -> None:
        like = values.get("like")
        base = self.catalog.find_accelerator(like or name)
        label = f"accelerators.{name}"
        if like and base is None:
            hint = did_you_mean(like, self.catalog.accelerator_names)
            self.findings.append(Finding(where, f"{label}.like: unknown accelerator {like!r}", hint=hint))
            return
        if base is None and not self._need(label, values, ("memory", "memory_bandwidth", "compute"), where):
            return
        start = base or Accelerator(name, "", 0.0, 0.0, {}, ScaleUp("", 0.0, 1), 0.0, 0.0, 0.0)
        if like:
            start = replace(start, name=name, aliases=())
        made = _with_numbers(start, values, self._origin(values, where))
        self.catalog = replace(self.catalog, accelerators={**self.catalog.accelerators, made.name: made})

    def _link(self, name: str, values: dict[str, Any], where: str) -> None:
        base = self.catalog.links.get(name)
        if base is None and not self._need(f"links.{name}", values, ("kind", "bandwidth", "alpha"), where):
            return
        given = {key: value for key, value in values.items() if key not in ORIGIN}
        start = base or Link(name, given["kind"], given["bandwidth"], given["alpha"])
        made = replace(start, **given, provenance=self._origin(values, where))
        self.catalog = replace(self.catalog, links={**self.catalog.links, name: made})

    def _tier(self, name: str, values: dict[str, Any], where: str) -> None:
        base = self.catalog.tiers.get(name)
        needed = ("kind", "capacity", "read_bandwidth", "write_bandwidth")
        if base is None and not self._need(f"tiers.{name}", values, needed, where):
            return
        given = {key: value for key, value in values.items() if key not in ORIGIN}
        start = base or MemoryTier(name, *(given[key] for key in needed))
        made = replace(start, **given, provenance=self._origin(values, where))
        self.catalog = replace(self.catalog, tiers={**self.catalog.tiers, name: made})

    def _model(self, name: str, values: dict[str, Any], where: str) -> None:
        if not self._need(f"models.{name}", values, ("config",), where):
            return
        config, origin = values["config"], self._origin(values, where)
        try:
            if isinstance(config, str):
                made = read_hf_config(self.path.parent / config, name)
            else:
                made = model_from_config(config, name, f"{where} models.{name}")
        except InvalidCatalog as error:
            self.findings.extend(error.findings)
            return
        published = values.get("published_parameters")
        made = replace(made, aliases=values.get("aliases", ()), provenance=origin, published_parameters=published)
        self.catalog = replace(self.catalog, models={**self.catalog.models, name: made})

    def _offers(self, node: Node | None) -> None:
        if node is None:
            return
        if not isinstance(node.value, list):
            self.findings.append(Finding(node.where, "offers is not a list", "- {accelerator: ..., usd_per_hour: ...}"))
            return
        for index, row in enumerate(node.value):
            label = f"offers[{index}]"
            values = self._read(label, row, OFFER)
            if values is not None and self._need(label, values, ("accelerator", "gpus", "usd_per_hour"), row.where):
                self._offer(label, values, row.where)

    def _offer(self, label: str, values: dict[str, Any], where: str) -> None:
        accelerator = self.catalog.find_accelerator(values["accelerator"])
        if accelerator is None:
            hint = did_you_mean(values["accelerator"], self.catalog.accelerator_names)
            self.findings.append(Finding(where, f"{label}: unknown accelerator {values['accelerator']!r}", hint=hint))
            return
        given = {key: value for key, value in values.items() if key not in (*ORIGIN, "book")}
        given = {"provider": "", "instance": accelerator.name, **given, "accelerator": accelerator.name}
        book = values.get("book", self.path.stem)
        self.catalog = add_offer(self.catalog, book, Offer(**given, provenance=self._origin(values, where)))


def add_offer(catalog: Catalog, book: str, offer: Offer) -> Catalog:
    """The offer in the named book, in place of one of the same instance, provider, region and kind."""
    old = catalog.books[book].offers if book in catalog.books else ()
    kept = tuple(other for other in old if _place(other) != _place(offer))
    offers = (*kept, offer)
    made = PriceBook(book, book_date(offers) or "undated", offers)
    return replace(catalog, books={**catalog.books, book: made})


def _place(offer: Offer) -> tuple[str, ...]:
    return (offer.accelerator, offer.provider, offer.instance, offer.region, offer.price_type)


_FACTS = {
    "memory": "memory_gb",
    "memory_bandwidth": "memory_bandwidth_gbs",
    "pcie_bandwidth": "pcie_gbs_per_dir",
    "nic_bandwidth": "nic_gbs_per_dir_typical",
    "tdp": "tdp_w",
}


def _with_numbers(start: Accelerator, values: Mapping[str, Any], origin: Provenance) -> Accelerator:
    """`start` with the given numbers, each marked with its origin."""
    peaks = {**start.peak_flops, **values.get("compute", {})}
    memory = values.get("memory", start.memory_bytes)
    rate = values.get("memory_bandwidth", start.memory_bandwidth)
    provenance = dict(start.provenance)
    provenance.update({fact: origin for key, fact in _FACTS.items() if key in values})
    provenance.update({f"{dtype}_tflops": origin for dtype in values.get("compute", {})})
    provenance.update({f"scaleup_{key}": origin for key in values.get("scaleup", {})})
    return replace(
        start,
        vendor=values.get("vendor", start.vendor),
        memory_bytes=memory,
        memory_bandwidth=rate,
        peak_flops=peaks,
        scaleup=replace(start.scaleup, **values.get("scaleup", {})),
        pcie_bandwidth=values.get("pcie_bandwidth", start.pcie_bandwidth),
        nic_bandwidth=values.get("nic_bandwidth", start.nic_bandwidth),
        tdp_w=values.get("tdp", start.tdp_w),
        form_factor=values.get("form_factor", start.form_factor),
        provenance=provenance,
        notes=values.get("notes", start.notes),
        aliases=(*start.aliases, *values.get("aliases", ())),
        missing=missing_numbers(memory, rate, peaks),
    )
