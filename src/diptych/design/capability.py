"""Precision as an executable capability: what an engine runs on an accelerator, not what the data sheet advertises.

The paper's second practice (arXiv:2606.29708): a format counts when kernels, runtime and tooling execute it. The table is
`data/capability.csv`, each row with its source; a user's own accelerator is assumed to execute what its row multiplies.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Precision

UNSERVED = "unserved"
CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Capability:
    """One precision that some engines execute on an accelerator."""

    precision: Precision
    engines: tuple[str, ...]
    source: str


def family(accelerator: Accelerator) -> str:
    """The accelerator's family by the longest matching prefix of its name; 'custom' for a user's own row."""
    matches = [prefix for prefix in _families() if accelerator.name.startswith(prefix)]
    return _families()[max(matches, key=len)] if matches else CUSTOM


def capabilities(accelerator: Accelerator) -> tuple[Capability, ...]:
    """Everything that engines execute on `accelerator`, widest formats first; empty when no engine serves it."""
    mine = family(accelerator)
    if mine == CUSTOM:
        return tuple(_assumed(accelerator))
    return tuple(row for name, row in _table() if name == mine and _multiplies(accelerator, row.precision))


def engines(accelerator: Accelerator, precision: Precision) -> tuple[str, ...]:
    """The engines that execute `precision` on `accelerator`."""
    found: dict[str, None] = {}
    for row in capabilities(accelerator):
        if row.precision == precision:
            found.update(dict.fromkeys(row.engines))
    return tuple(found)


def named_engine(name: str | None, able: tuple[str, ...]) -> str | None:
    """The engine of `able` that `name` means, by its own name before that of a plugin ('vllm-ascend' for 'vllm')."""
    if name in able:
        return name
    return next((engine for engine in able if engine.partition("-")[0] == name), None)


def engine_names() -> tuple[str, ...]:
    """Every engine of the table, in its order."""
    return tuple(dict.fromkeys(engine for _, row in _table() for engine in row.engines))


def executable(accelerator: Accelerator) -> tuple[Precision, ...]:
    """The distinct precisions some engine executes on `accelerator`."""
    return tuple(dict.fromkeys(row.precision for row in capabilities(accelerator)))


def _multiplies(accelerator: Accelerator, precision: Precision) -> bool:
    """Whether the silicon multiplies the activations' format; a 16-bit row stands for the 16-bit format it has."""
    return bool(accelerator.peak_flops.get(precision.activations))


def _assumed(accelerator: Accelerator) -> Iterator[Capability]:
    """A user's accelerator: each format its row multiplies, INT4 weights under 16 bit, KV in 16 bit or in its FP8."""
    source = "assumed from the formats its row multiplies"
    wide = next((dtype for dtype in (Dtype.BF16, Dtype.FP16) if accelerator.peak_flops.get(dtype)), None)
    if wide is None:
        return
    caches = (wide, Dtype.FP8) if accelerator.peak_flops.get(Dtype.FP8) else (wide,)
    narrow = [dtype for dtype in (Dtype.FP8, Dtype.INT8, Dtype.FP4) if accelerator.peak_flops.get(dtype)]
    for weights, activations in [(wide, wide), *((dtype, dtype) for dtype in narrow), (Dtype.INT4, wide)]:
        for kv in caches:
            yield Capability(Precision(weights, activations, kv), ("vllm",), source)


@cache
def _families() -> dict[str, str]:
    return {row["prefix"]: row["family"] for row in _rows("families.csv")}


@cache
def _table() -> tuple[tuple[str, Capability], ...]:
    return tuple(
        (row["family"], Capability(Precision(Dtype(weights), Dtype(activations), Dtype(kv)), engines_, row["source"]))
        for row in _rows("capability.csv")
        for engines_ in (tuple(row["engine"].split(";")),)
        for activations in row["activations"].split(";")
        for weights in row["weights"].split(";")
        for kv in row["kv"].split(";")
    )


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("diptych.design") / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
