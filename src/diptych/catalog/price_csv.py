"""A user's price list: CSV with accelerator, provider, instance, gpus, usd_per_hour and, if known, region, date, nic_gbs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diptych.catalog import quantities
from diptych.catalog.accelerator import Accelerator
from diptych.catalog.books import book_date
from diptych.catalog.offer import Offer, PriceBook
from diptych.catalog.provenance import Provenance
from diptych.errors import Finding, InvalidCatalog, did_you_mean

MAX_BYTES = 8 * 2**20
REQUIRED = ("accelerator", "provider", "instance", "gpus", "usd_per_hour")
OPTIONAL = ("region", "date", "nic_gbs", "price_type")

Find = Callable[[str], Accelerator | None]


def read_price_csv(path: Path, find: Find, known: list[str], findings: list[Finding]) -> PriceBook | None:
    """The book named after the file. `find` resolves an accelerator's spelling; `known` are the names to hint at.

    Findings go to `findings`, one or more per bad row; a file without any offer is one too.
    """
    text = _read_text(path, findings)
    if text is None:
        return None
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    before = len(findings)
    _check_header(path, list(reader.fieldnames or ()), findings)
    if len(findings) > before:
        return None
    offers = []
    try:
        for row in reader:
            offer = _offer(f"{path}:{reader.line_num}", row, find, known, findings)
            if offer:
                offers.append(offer)
    except csv.Error as error:
        findings.append(Finding(f"{path}:{reader.line_num}", f"not CSV: {error}"))
    if not offers and len(findings) == before:
        findings.append(Finding(str(path), "no offers", "at least one row"))
    return PriceBook(path.stem, book_date(offers) or "undated", tuple(offers))


def load_price_csv(path: Path, find: Find, known: list[str]) -> PriceBook:
    """As `read_price_csv`, raising `InvalidCatalog` with every finding."""
    findings: list[Finding] = []
    book = read_price_csv(path, find, known, findings)
    if findings or book is None:
        raise InvalidCatalog(findings)
    return book


def _read_text(path: Path, findings: list[Finding]) -> str | None:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            findings.append(Finding(str(path), f"{size:,} bytes", f"at most {MAX_BYTES:,}"))
            return None
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        findings.append(Finding(str(path), error.strerror or str(error), "a CSV of prices"))
    except ValueError:  # UnicodeDecodeError, or a NUL in the path
        findings.append(Finding(str(path), "not UTF-8 text", "a CSV of prices"))
    return None


def _check_header(path: Path, columns: list[str], findings: list[Finding]) -> None:
    findings.extend(
        Finding(f"{path}:1", f"column {name} is missing", ", ".join(REQUIRED))
        for name in REQUIRED
        if name not in columns
    )
    known = [*REQUIRED, *OPTIONAL]
    findings.extend(
        Finding(f"{path}:1", f"unknown column {name!r}", hint=did_you_mean(name, known))
        for name in columns
        if name not in known
    )


def _offer(
    where: str, row: Mapping[str | Any, str | Any], find: Find, known: list[str], findings: list[Finding]
) -> Offer | None:
    before = len(findings)
    if None in row or None in row.values():
        findings.append(Finding(where, "as many values as there are columns are needed"))
        return None
    accelerator = find(row["accelerator"])
    if accelerator is None:
        hint = did_you_mean(row["accelerator"], known)
        findings.append(Finding(where, f"unknown accelerator {row['accelerator']!r}", hint=hint))
    gpus = checked(where, "gpus", quantities.count, row["gpus"], "a whole number from 1", findings)
    price = checked(
        where, "usd_per_hour", quantities.price, row["usd_per_hour"], "USD per hour of the instance", findings
    )
    nic = row.get("nic_gbs") or 0
    nic = checked(where, "nic_gbs", quantities.amount, nic, "GB/s per accelerator and direction", findings)
    if len(findings) > before or accelerator is None:
        return None
    return Offer(
        accelerator=accelerator.name,
        provider=row["provider"],
        instance=row["instance"],
        gpus=gpus,
        usd_per_hour=price,
        region=row.get("region") or "",
        date=row.get("date") or "",
        price_type=row.get("price_type") or "on-demand",
        nic_bandwidth=nic * 1e9,
        provenance=Provenance(where, row.get("date") or ""),
    )


def checked(
    where: str, name: str, read: Callable[[Any], Any], value: Any, expected: str, findings: list[Finding]
) -> Any:
    """`read(value)`, or None and a finding."""
    try:
        return read(value)
    except ValueError as error:
        findings.append(Finding(where, f"{name}: {error}", expected))
        return None
