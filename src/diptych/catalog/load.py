"""The built-in catalog, read from package data; user files are laid over it.

CSV for what is a table of sourced numbers, YAML for what is written by hand, one JSON per model (its config.json and origin).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from diptych.catalog.accelerator import Accelerator, ScaleUp, missing_numbers
from diptych.catalog.books import books_from
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.hf_config import model_from_config
from diptych.catalog.interconnect import Link, LinkKind
from diptych.catalog.memory import MemoryTier, TierKind
from diptych.catalog.model import Model
from diptych.catalog.offer import Offer, PriceBook
from diptych.catalog.overlay import lay_over
from diptych.catalog.price_csv import read_price_csv
from diptych.catalog.provenance import Confidence, Provenance
from diptych.errors import Finding, InvalidCatalog
from diptych.units import GB, TFLOPS

DATA = files("diptych.catalog") / "data"

_PEAKS = {
    "fp32_tflops": Dtype.FP32,
    "tf32_tflops": Dtype.TF32,
    "bf16_tflops": Dtype.BF16,
    "fp16_tflops": Dtype.FP16,
    "fp8_tflops": Dtype.FP8,
    "int8_tops": Dtype.INT8,
    "fp4_tflops": Dtype.FP4,
}
_FNUZ = ("MI300X", "MI325X")  # CDNA 3 multiplies e4m3fnuz, not e4m3fn


def load_catalog(overlays: tuple[Path, ...] = (), prices: Path | None = None) -> Catalog:
    """The built-in catalog with overlays and a user's prices.

    Raises:
        InvalidCatalog: every finding of every file at once.
    """
    findings: list[Finding] = []
    catalog = lay_over(builtin_catalog(), overlays, findings)
    if prices is not None:
        book = read_price_csv(prices, catalog.find_accelerator, catalog.accelerator_names, findings)
        if book is not None:
            catalog = replace(catalog, books={**catalog.books, book.name: book})
    if findings:
        raise InvalidCatalog(findings)
    return catalog


@lru_cache(maxsize=1)
def builtin_catalog() -> Catalog:
    """What the package ships."""
    accelerators = _accelerators()
    return Catalog(accelerators, _links(), _tiers(), _models(), _books(accelerators))


def _rows(name: str) -> list[dict[str, str]]:
    raw = (DATA / name).read_bytes()
    text = (gzip.decompress(raw) if name.endswith(".gz") else raw).decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def _yaml(name: str) -> Mapping[str, Mapping[str, Any]]:
    loaded: Mapping[str, Mapping[str, Any]] = yaml.load((DATA / name).read_bytes(), Loader=yaml.CSafeLoader)
    return loaded


@dataclass(frozen=True, slots=True)
class _Fact:
    value: str
    provenance: Provenance

    @property
    def number(self) -> float:
        return float(self.value)


def _accelerators() -> dict[str, Accelerator]:
    facts: dict[str, dict[str, _Fact]] = defaultdict(dict)
    for row in _rows("accelerator_facts.csv"):
        origin = Provenance(row["source"], row["as_of"], Confidence(row["confidence"]))
        facts[row["accelerator"]][row["field"]] = _Fact(row["value"], origin)
    return {row["accelerator"]: _accelerator(row, facts[row["accelerator"]]) for row in _rows("accelerators.csv")}


def _accelerator(row: Mapping[str, str], facts: Mapping[str, _Fact]) -> Accelerator:
    def number(field: str, scale: float = 1.0) -> float:
        return facts[field].number * scale if field in facts else 0.0

    peaks = {dtype: number(field, TFLOPS) for field, dtype in _PEAKS.items() if field in facts}
    if row["accelerator"] in _FNUZ and Dtype.FP8 in peaks:
        peaks[Dtype.FP8_FNUZ] = peaks[Dtype.FP8]
    memory, bandwidth = number("memory_gb", GB), number("memory_bandwidth_gbs", GB)
    technology = facts["scaleup_technology"].value if "scaleup_technology" in facts else ""
    world = max(1, int(number("scaleup_world_size")))
    return Accelerator(
        name=row["accelerator"],
        vendor=row["vendor"],
        memory_bytes=memory,
        memory_bandwidth=bandwidth,
        peak_flops=peaks,
        scaleup=ScaleUp(technology, number("scaleup_gbs_per_dir", GB), world),
        pcie_bandwidth=number("pcie_gbs_per_dir", GB),
        nic_bandwidth=number("nic_gbs_per_dir_typical", GB),
        tdp_w=number("tdp_w"),
        form_factor=row["form_factor"],
        provenance={field: fact.provenance for field, fact in facts.items()},
        notes=row["notes"],
        aliases=tuple(alias for alias in row["aliases"].split("|") if alias),
        missing=missing_numbers(memory, bandwidth, peaks),
    )


def _provenance(row: Mapping[str, Any]) -> Provenance:
    return Provenance(row["source"], str(row.get("as_of", "")), Confidence(row.get("confidence", "medium")))


def _links() -> dict[str, Link]:
    return {
        name: Link(
            name=name,
            kind=LinkKind(row["kind"]),
            bandwidth=row["gb_per_s"] * GB,
            alpha=row["alpha_us"] * 1e-6,
            efficiency=row["efficiency"],
            half_size=row.get("half_size", 0.0),
            per_piece=row.get("per_piece_us", 0.0) * 1e-6,
            same_server=row.get("same_server", False),
            provenance=_provenance(row),
            notes=row.get("notes", ""),
        )
        for name, row in _yaml("links.yaml").items()
    }


def _tiers() -> dict[str, MemoryTier]:
    return {
        name: MemoryTier(
            name=name,
            kind=TierKind(row["kind"]),
            capacity=row["capacity_gb"] * GB,
            read_bandwidth=row["read_gb_per_s"] * GB,
            write_bandwidth=row["write_gb_per_s"] * GB,
            latency=row["latency_us"] * 1e-6,
            usd_per_gb_hour=row.get("usd_per_gb_hour", 0.0),
            provenance=_provenance(row),
        )
        for name, row in _yaml("tiers.yaml").items()
    }


def _models() -> dict[str, Model]:
    aliases = _yaml("model_aliases.yaml")
    found = {}
    for entry in sorted((DATA / "models").iterdir(), key=lambda item: item.name):
        row = json.loads(entry.read_text(encoding="utf-8"))
        found[row["name"]] = model_from_config(
            row["config"],
            row["name"],
            entry.name,
            published_parameters=row["published_parameters"],
            aliases=tuple(aliases.get(row["name"], ())),
            provenance=_provenance(row),
        )
    return found


def _books(accelerators: Mapping[str, Accelerator]) -> dict[str, PriceBook]:
    network = {
        row["instance"]: float(row["network_mbit_s"]) * 1e6 / 8 / int(row["gpus"]) for row in _rows("aws_network.csv")
    }
    offers = []
    for row in _rows("prices.csv.gz"):
        assert row["accelerator"] in accelerators, row
        offers.extend(_offers(row, network if row["cloud"] == "AWS" else {}))
    return books_from(offers)


def _offers(row: Mapping[str, str], network: Mapping[str, float]) -> list[Offer]:
    """The on-demand offer of a row and, where it has one, its spot offer."""
    kinds = [(row["price_type"], row["price_per_hour"]), ("spot", row["spot_price_per_hour"])]
    return [
        Offer(
            accelerator=row["accelerator"],
            provider=row["cloud"],
            instance=row["instance"],
            gpus=int(float(row["gpus"])),
            usd_per_hour=float(price),
            region=row["region"],
            date=row["date"],
            price_type=kind,
            nic_bandwidth=network.get(row["instance"], 0.0),
            provenance=Provenance(row["source"], row["date"], Confidence(row["confidence"])),
        )
        for kind, price in kinds
        if price
    ]
