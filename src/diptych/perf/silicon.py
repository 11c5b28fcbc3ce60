"""The `[silicon]` extra: 12.6 million measured ops of the PyPI wheel aiconfigurator-core 0.12 instead of fitted curves.

The wheel's parquet files are read by path with pandas (its code is never imported), filtered for plausibility as
`benchmarks/fit_curves.py` does, and reduced to tables of seconds: GEMM over rows and matrix size, decode attention over KV bytes.
Tables are made non-decreasing along every axis and are never below the data sheet; other ops keep the shipped curves.

    from diptych.perf.roofline import Roofline
    perf = Roofline(curves=silicon_curves())
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.errors import Unsupported
from diptych.perf.efficiency import Curve, Curves, Row, shipped_curves
from diptych.perf.estimate import Array
from diptych.perf.ops import OpKind, Work
from diptych.perf.roofline import memory_bandwidth, peak_flops

WHEEL = "aiconfigurator_core"
SYSTEMS: Mapping[str, str] = {
    "a100_sxm": "A100-SXM4-80GB",
    "h100_sxm": "H100-SXM-80GB",
    "h200_sxm": "H200-SXM-141GB",
    "b200_sxm": "B200-SXM",
    "b300_sxm": "B300-SXM",
    "gb200": "GB200",
    "gb300": "GB300",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX-PRO-6000-SE",
    "b60": "Arc-Pro-B60",
}
ENGINES = ("trtllm", "vllm", "sglang")
# their name: ours, bytes per weight and per activation, the multiply
MATRICES: Mapping[str, tuple[str, float, float, Dtype]] = {
    "bfloat16": ("bf16", 2.0, 2.0, Dtype.BF16),
    "fp8": ("fp8", 1.0, 1.0, Dtype.FP8),
    "fp8_block": ("fp8_block", 1.0, 1.0, Dtype.FP8),
    "nvfp4": ("fp4", 0.5625, 0.5625, Dtype.FP4),
}
L2_BYTES = 126e6  # the largest L2 among them: smaller caches and matrices may never have left it
FLAT = 0.12  # share of the bandwidth at one row below which a table was timed eagerly
POINTS = 33


@dataclass(frozen=True, slots=True)
class TableCurve(Curve):
    """Measured seconds over `first` (rows, or bytes) and, for matrices, `second` (inputs·outputs), interpolated in logarithms.

    Outside the table, and for what a calibration changes, the fitted curve `original` gives the ratio.
    """

    original: Curve = field(default_factory=lambda: Curve(0.0, 1.0, 1.0))
    first: tuple[float, ...] = ()
    second: tuple[float, ...] = (1.0,)
    table: tuple[tuple[float, ...], ...] = ()

    def seconds(self, work: Work, peak: float, bandwidth: float) -> Array:
        fitted = Curve(**{part.name: getattr(self, part.name) for part in fields(Curve)})
        plain = fitted.seconds(work, peak, bandwidth)
        base = self.original.seconds(work, peak, bandwidth)
        size, flop = np.asarray(work.bytes, dtype=float), np.asarray(work.flop, dtype=float)
        if len(self.second) > 1:
            first = np.maximum(np.asarray(work.rows, dtype=float), 1e-9)
            second = flop / (2.0 * first)
        else:
            first, second = np.maximum(size, 1e-9), np.ones_like(size)
        inside = (first >= self.first[0]) & (first <= self.first[-1])
        inside &= (second >= self.second[0]) & (second <= self.second[-1])
        measured = np.exp(
            _bilinear(np.log(first), np.log(np.maximum(second, 1e-9)), self.first, self.second, self.table)
        )
        floor = np.maximum(size / bandwidth, flop / peak)
        return np.asarray(np.maximum(np.where(inside, measured * plain / base, plain), floor), dtype=float)


def _bilinear(x: Array, y: Array, first: tuple[float, ...], second: tuple[float, ...], table: Any) -> Array:
    """Linear in both logarithms; `table` holds log seconds, first axis by `first`."""
    grid, along = np.log(np.asarray(first)), np.log(np.asarray(second))
    values = np.asarray(table)
    if len(along) == 1:
        return np.asarray(np.interp(x, grid, values[:, 0]))
    at = np.clip(np.interp(y, along, np.arange(len(along))), 0, len(along) - 1)
    low = np.minimum(at.astype(int), len(along) - 2)
    columns = np.stack([np.interp(x, grid, values[:, j]) for j in range(len(along))], axis=-1)
    left = np.take_along_axis(columns, low[..., None], -1)[..., 0]
    right = np.take_along_axis(columns, low[..., None] + 1, -1)[..., 0]
    return np.asarray(left + (right - left) * (at - low))


def tables_folder() -> Path:
    """The `systems` folder of the installed wheel.

    Raises:
        Unsupported: the wheel, or pandas to read it, is not installed.
    """
    found = importlib.util.find_spec(WHEEL)
    missing = [name for name in ("pandas", "pyarrow") if importlib.util.find_spec(name) is None]
    if found is None or not found.origin or missing:
        what = "aiconfigurator-core 0.12.0" if found is None else " and ".join(missing)
        raise Unsupported(f"measured op tables need {what}: pip install 'diptych[silicon]'")
    return Path(found.origin).parent / "systems"


def silicon_curves(folder: Path | None = None, catalog: Catalog | None = None) -> Curves:
    """The shipped curves with tables in place of the GEMM and decode-attention curves that the wheel measures believably."""
    folder, catalog, base = folder or tables_folder(), catalog or Catalog.load(), shipped_curves()
    rows = {(row.accelerator, row.engine, row.op, row.format): row for row in base.rows}
    for row in _rows(folder, catalog, base):
        rows[(row.accelerator, row.engine, row.op, row.format)] = row
    return Curves(rows.values())


def _rows(folder: Path, catalog: Catalog, base: Curves) -> Iterator[Row]:
    for system, name in SYSTEMS.items():
        accelerator = catalog.accelerator(name)
        for engine in ENGINES:
            yield from _matrices(folder, system, accelerator, engine, base)
            yield from _caches(folder, system, accelerator, engine, base)


def _newest(folder: Path, system: str, family: str, engine: str, table: str) -> Any:
    """The newest version's frame, or None."""
    import pandas as pd

    versions = [
        path for path in (folder / "data" / system / family / engine).glob("*") if (path / f"{table}.parquet").exists()
    ]
    if not versions:
        return None
    newest = max(versions, key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)])
    return pd.read_parquet(newest / f"{table}.parquet")


def _matrices(folder: Path, system: str, accelerator: Accelerator, engine: str, base: Curves) -> Iterator[Row]:
    frame = _newest(folder, system, "gemm", engine, "gemm_perf")
    for name, group in frame.groupby("gemm_dtype") if frame is not None else ():
        if name not in MATRICES:
            continue
        form, weight, activation, multiply = MATRICES[name]
        shipped = base.of(accelerator.name, OpKind.LINEAR, form).get(engine)
        m, n, k = (group[column].to_numpy(float) for column in "mnk")
        seconds, size = group.latency.to_numpy(float) * 1e-3, n * k * weight + m * k * activation + 2.0 * m * n
        bandwidth, peak = memory_bandwidth(accelerator), peak_flops(accelerator, multiply)
        large = (m <= 16) & (n * k * weight > L2_BYTES / 4)
        if shipped is None or not large.any() or np.median((size / bandwidth / seconds)[large]) < FLAT:
            continue  # refused by the fit, or flat in the rows: timed eagerly
        slow = seconds >= 0.98 * np.maximum(
            np.where(n * k * weight > 4 * L2_BYTES, size / bandwidth, 0.0), 2 * m * n * k / peak
        )
        table = _tabulate(m[slow], (n * k)[slow], seconds[slow], 8)
        if table is not None:
            yield _row(accelerator.name, engine, OpKind.LINEAR, form, shipped, table)


def _caches(folder: Path, system: str, accelerator: Accelerator, engine: str, base: Curves) -> Iterator[Row]:
    frame = _newest(folder, system, "attention", engine, "generation_attention_perf")
    if frame is None:
        return
    frame = frame[frame.window_size == 0] if "window_size" in frame else frame
    for name, group in frame.groupby("kv_cache_dtype"):
        form, each = {"bfloat16": ("bf16", 2.0), "fp8": ("fp8", 1.0)}.get(str(name), ("", 0.0))
        shipped = base.of(accelerator.name, OpKind.DECODE_ATTENTION, form).get(engine)
        if shipped is None:
            continue
        heads = np.where(group.num_key_value_heads == 0, group.num_heads, group.num_key_value_heads)
        size = (
            group.batch_size.to_numpy(float)
            * (group.step.to_numpy(float) + 1.0)
            * heads
            * group.head_dim.to_numpy(float)
            * 2
            * each
        )
        seconds = group.latency.to_numpy(float) * 1e-3
        kept = (seconds >= size / memory_bandwidth(accelerator)) & ((size < 2e6) | (size > 4 * L2_BYTES))
        table = _tabulate(size[kept], np.ones(int(kept.sum())), seconds[kept], 1)
        if table is not None:
            yield _row(accelerator.name, engine, OpKind.DECODE_ATTENTION, form, shipped, table)


Table = tuple[tuple[float, ...], tuple[float, ...], tuple[tuple[float, ...], ...]]


def _tabulate(first: Array, second: Array, seconds: Array, classes: int) -> Table | None:
    """Median log seconds on a grid of bins, holes interpolated along the first axis, then non-decreasing along both."""
    if len(seconds) < 10 * classes:
        return None
    edges = [
        np.geomspace(axis.min(), axis.max() * 1.0001, count + 1) for axis, count in ((first, POINTS), (second, classes))
    ]
    i, j = (
        np.clip(np.searchsorted(edge, axis, "right") - 1, 0, len(edge) - 2)
        for edge, axis in zip(edges, (first, second), strict=True)
    )
    table = np.full((POINTS, classes), np.nan)
    for column in range(classes):
        for row in np.unique(i[j == column]):
            table[row, column] = np.median(np.log(seconds[(i == row) & (j == column)]))
    known = ~np.isnan(table)
    kept = known.sum(axis=0) >= 3
    if not kept.any():
        return None
    centres = [np.sqrt(edge[:-1] * edge[1:]) for edge in edges]
    filled = np.stack(
        [
            np.interp(np.arange(POINTS), np.flatnonzero(known[:, c]), table[known[:, c], c])
            for c in np.flatnonzero(kept)
        ],
        axis=1,
    )
    steady = np.maximum.accumulate(np.maximum.accumulate(filled, axis=0), axis=1)
    return (
        tuple(float(value) for value in centres[0]),
        tuple(float(value) for value in centres[1][kept]),
        tuple(tuple(float(value) for value in line) for line in steady),
    )


def _row(accelerator: str, engine: str, op: OpKind, form: str, shipped: Curve, table: Table) -> Row:
    values = {part.name: getattr(shipped, part.name) for part in fields(Curve)}
    curve = TableCurve(**values, original=shipped, first=table[0], second=table[1], table=table[2])
    return Row(accelerator, engine, op, form, curve)
