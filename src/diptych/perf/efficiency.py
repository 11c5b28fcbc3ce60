"""How much of the data sheet an op achieves: a curve per accelerator, engine, op and number format.

A curve is kept in the time domain, where it cannot fall as work grows:

    seconds = overhead + ((bytes / (bandwidth·mbu))^p + (waste·(flop + inertia·padding) / (peak·mfu))^p)^(1/p)
    waste = 1 + narrow / columns

`overhead` is the floor of a launch, `mbu` and `mfu` the fractions of bandwidth and peak reached by large ops, `p` how sharply one
gives way to the other, and `inertia` what small ops waste: tokens of ramp-up in prefill attention, rows of padding per expert;
`narrow` is the width at which a sharded expert's columns halve its FLOP/s.
With mbu, mfu ≤ 1 and p < ∞ no time lies below the roofline. The efficiency over rows in a GEMM, over KV bytes in decode attention
and over message size in a collective is this curve's roofline divided by its seconds.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.dtype import Dtype
from diptych.perf.estimate import Array, Basis
from diptych.perf.ops import OpKind, Work


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of one op from its work; see the module's formula. `error` is the fit's median absolute relative error."""

    overhead: float
    mbu: float
    mfu: float
    sharpness: float = 2.0
    inertia: float = 0.0
    narrow: float = 0.0
    error: float = 0.3

    def seconds(self, work: Work, peak: float, bandwidth: float) -> Array:
        """Seconds of one launch on an accelerator of `peak` FLOP/s and `bandwidth` bytes/s (the data sheet's)."""
        memory = np.asarray(work.bytes, dtype=float) / (bandwidth * self.mbu)
        flop = np.asarray(work.flop, dtype=float) + self.inertia * np.asarray(work.padding, dtype=float)
        compute = flop * (1.0 + self.narrow / work.columns) / (peak * self.mfu)
        return np.asarray(self.overhead + blend(memory, compute, self.sharpness), dtype=float)


def blend(a: Any, b: Any, sharpness: float) -> Any:
    """(a^p + b^p)^(1/p): the sum for p = 1, the larger for p → ∞; never below either."""
    larger = np.maximum(a, b)
    safe = np.where(larger > 0, larger, 1.0)
    ratio = np.minimum(a, b) / safe
    return larger * (1.0 + ratio**sharpness) ** (1.0 / sharpness)


@dataclass(frozen=True, slots=True)
class Found:
    """A curve and how it was found: fitted for this accelerator, or transferred from a similar one."""

    curve: Curve
    basis: Basis
    donor: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of curves.csv."""

    accelerator: str
    engine: str
    op: OpKind
    format: str
    curve: Curve | None
    reason: str = ""


class Curves:
    """All curves, and the rule that finds one for any accelerator, engine, op and format."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[tuple[str, str, OpKind, str], Row] = {
            (row.accelerator, row.engine, row.op, row.format): row for row in rows
        }
        self._accelerators = frozenset(row.accelerator for row in self._rows.values())

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every line, refused ones included."""
        return tuple(self._rows.values())

    def find(self, accelerator: Accelerator, engine: str, op: OpKind, fmt: str) -> Found:
        """The best curve there is: same engine and format, then another engine, a similar format, a similar accelerator."""
        measured = accelerator.name in self._accelerators
        donor = accelerator.name if measured else similar(accelerator)
        basis = Basis.FITTED if donor == accelerator.name else Basis.ROOFLINE
        refused, engine = "", engine.split("-")[0]  # an engine's era shares its kernels' curves
        for name in (donor, *second_donors(accelerator)):
            for like in (fmt, *LIKE_FORMATS.get(fmt, ())):
                for source in (engine, *OTHER_ENGINES):
                    row = self._rows.get((name, source, op, like))
                    if row is not None and row.curve is not None:
                        exact = name == accelerator.name and like == fmt
                        return Found(row.curve, basis if exact else Basis.ROOFLINE, name, refused)
                    if row is not None and source == engine and like == fmt:
                        refused = row.reason
        return Found(DEFAULTS[op], Basis.ROOFLINE, "", refused)

    def of(self, accelerator: str, op: OpKind, fmt: str) -> Mapping[str, Curve]:
        """The accepted curves of every engine for one accelerator, op and format."""
        return {
            key[1]: row.curve
            for key, row in self._rows.items()
            if (key[0], key[2], key[3]) == (accelerator, op, fmt) and row.curve is not None
        }


OTHER_ENGINES = ("trtllm", "vllm", "sglang", "nccl", "oneccl")

LIKE_FORMATS: Mapping[str, tuple[str, ...]] = {
    "fp8": ("fp8_block", "bf16"),
    "fp8_block": ("fp8", "bf16"),
    "fp4": ("mxfp4_mxfp8", "fp8", "bf16"),
    "mxfp4_mxfp8": ("mxfp4", "fp4", "fp8", "bf16"),
    "mxfp4": ("int4", "bf16"),
    "int4": ("mxfp4", "bf16"),
    "w8a16": ("bf16",),
    "int8": ("fp8", "bf16"),
}

# What a launch costs and what large ops reach where nothing at all was measured: medians over the measured accelerators.
DEFAULTS: Mapping[OpKind, Curve] = {
    OpKind.LINEAR: Curve(5e-6, 0.80, 0.65, 2.0),
    OpKind.EXPERTS: Curve(35e-6, 0.90, 0.40, 1.3, 8.0, 400.0),
    OpKind.PREFILL_ATTENTION: Curve(12e-6, 0.70, 0.55, 2.0, 800.0),
    OpKind.DECODE_ATTENTION: Curve(10e-6, 0.78, 0.30, 2.0),
    OpKind.PREFILL_MLA: Curve(16e-6, 0.70, 0.50, 2.0, 600.0),
    OpKind.DECODE_MLA: Curve(14e-6, 0.75, 0.45, 2.0),
    OpKind.STATE: Curve(12e-6, 0.60, 0.30, 2.0),
    OpKind.ELEMENTWISE: Curve(2e-6, 0.70, 1.0, 2.0),
    OpKind.ALL_REDUCE: Curve(8e-6, 0.65, 1.0, 2.0),
    OpKind.ALL_TO_ALL: Curve(15e-6, 0.55, 1.0, 2.0),
    OpKind.POINT_TO_POINT: Curve(10e-6, 0.75, 1.0, 2.0),
}

GDDR_LIMIT = 1.4e12  # bytes/s: below it no part has HBM2e or later


def second_donors(accelerator: Accelerator) -> tuple[str, ...]:
    """Where to look when the first donor lacks an op: chips of the same kind of memory and link, then H100."""
    if accelerator.memory_bandwidth < GDDR_LIMIT:
        return ("RTX-PRO-6000-SE", "L40S", "H100-SXM-80GB")
    return ("H100-SXM-80GB", "A100-SXM4-80GB")


def similar(accelerator: Accelerator) -> str:
    """The measured accelerator whose curves transfer: same vendor line, formats and memory type.

    FP4 in tensor cores means Blackwell, FP8 without it Hopper or Ada; below 2 TB/s the memory is GDDR, whose chips have the
    small launch costs and large L2 of L40S (or RTX PRO 6000). Other vendors' HBM parts take A100's 16-bit and H100's FP8 curves;
    Intel's GDDR parts take B60's.
    """
    gddr = accelerator.memory_bandwidth < GDDR_LIMIT
    if accelerator.vendor == "Intel" and gddr:
        return "Arc-Pro-B60"
    if Dtype.FP4 in accelerator.peak_flops:
        return "RTX-PRO-6000-SE" if accelerator.memory_bandwidth < 2.5e12 else "B200-SXM"
    if Dtype.FP8 in accelerator.peak_flops or Dtype.FP8_FNUZ in accelerator.peak_flops:
        return "L40S" if gddr else "H100-SXM-80GB"
    return "L40S" if gddr else "A100-SXM4-80GB"


@lru_cache(maxsize=1)
def shipped_curves() -> Curves:
    """The curves inside the package (`perf/data/curves.csv`; its README gives source, date and licence)."""
    text = files("diptych.perf").joinpath("data/curves.csv").read_text(encoding="utf-8")
    return Curves(_row(record) for record in csv.DictReader(text.splitlines()))


def _row(record: Mapping[str, str]) -> Row:
    op = OpKind(record["op"])
    if not record["overhead_us"]:
        return Row(record["accelerator"], record["engine"], op, record["format"], None, record["refused"])
    curve = Curve(
        overhead=float(record["overhead_us"]) * 1e-6,
        mbu=float(record["mbu"] or 1.0),
        mfu=float(record["mfu"] or 1.0),
        sharpness=float(record["sharpness"] or 2.0),
        inertia=float(record["inertia"] or 0.0),
        narrow=float(record["narrow"] or 0.0),
        error=float(record["median_error"] or 0.3),
    )
    return Row(record["accelerator"], record["engine"], op, record["format"], curve)
