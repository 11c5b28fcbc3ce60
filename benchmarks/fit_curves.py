"""Fit the op curves shipped in `src/diptych/perf/data/curves.csv` to measured op tables.

    python benchmarks/fit_curves.py SITE_PACKAGES/aiconfigurator_core/systems

The tables are those of the PyPI wheel `aiconfigurator-core` 0.12.0 (NVIDIA, Apache-2.0), read by path; its code is not imported.
Needs pandas, pyarrow and scipy. A curve has the form of `diptych.perf.efficiency.Curve`; fits are robust (soft L1 of the log
ratio). What is not believed is counted and kept with its reason: rows faster than the data sheet, caches and matrices that fit in
L2, whole tables timed eagerly (a launch floor above 40 µs) or flat in the rows, one backend many times slower than the others.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.perf.silicon import ENGINES, SYSTEMS

GDDR = ("l40s", "rtx_pro_6000_server")
L2 = {"a100_sxm": 40e6, "h100_sxm": 50e6, "h200_sxm": 50e6, "l40s": 96e6, "rtx_pro_6000_server": 128e6, "b60": 18e6}
FORMATS = {  # their name: ours, bytes per weight and activation (scales included), the multiply
    "bfloat16": ("bf16", 2.0, 2.0, "bf16"),
    "fp8": ("fp8", 1.0, 1.0, "fp8"),
    "fp8_block": ("fp8_block", 1.0, 1.0, "fp8"),
    "nvfp4": ("fp4", 0.5625, 0.5625, "fp4"),
    "int4_wo": ("int4", 0.53, 2.0, "bf16"),
    "int8_wo": ("w8a16", 1.0, 2.0, "bf16"),
    "w4a16_mxfp4": ("mxfp4", 0.53, 2.0, "bf16"),
    "w4a8_mxfp4_mxfp8": ("mxfp4_mxfp8", 0.53, 1.0, "fp8"),
}
FIELDS = ("overhead_us", "mbu", "mfu", "sharpness", "inertia", "narrow")
BOUNDS = {
    "overhead_us": (1.0, 500.0),
    "mbu": (0.001, 1.0),
    "mfu": (0.01, 1.0),
    "sharpness": (1.0, 8.0),
    "inertia": (0.0, 8192.0),
    "narrow": (0.0, 4000.0),
}
COLUMNS = (
    "accelerator", "engine", "op", "format", *FIELDS,
    "points", "rejected", "median_error", "p90_error", "refused", "measured_with",
)  # fmt: skip
EAGER_US = 40.0
SAMPLE = 4000


@dataclass
class Sheet:
    """The data sheet's peaks and bandwidths: the denominators of every fraction."""

    bandwidth: float
    scaleup: float
    peak: dict[str, float]

    @classmethod
    def of(cls, name: str) -> Sheet:
        accelerator = Catalog.load().accelerator(name)
        bf16 = accelerator.peak_16bit
        fp8 = accelerator.peak_flops.get(Dtype.FP8) or bf16
        return cls(
            accelerator.memory_bandwidth,
            accelerator.scaleup.bandwidth,
            {"bf16": bf16, "fp8": fp8, "fp4": accelerator.peak_flops.get(Dtype.FP4) or fp8},
        )


@dataclass
class Work:
    """What was timed: seconds, and the FLOP, bytes, padding and columns of `diptych.perf.ops.Work`."""

    seconds: Any
    bytes: Any
    flop: Any
    padding: Any = 0.0
    columns: Any = 1e12

    def keep(self, mask: Any) -> Work:
        parts = (self.seconds, self.bytes, self.flop, self.padding, self.columns)
        return Work(*(part[mask] if np.ndim(part) else part for part in parts))


@dataclass
class Fitter:
    """Collects the rows of curves.csv."""

    systems: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    random: Any = field(default_factory=lambda: np.random.default_rng(0))

    def tables(self, system: str, family: str, engine: str, table: str) -> list[tuple[str, pd.DataFrame]]:
        """(version, frame), newest first."""
        folders = [path for path in (self.systems / "data" / system / family / engine).glob("*") if path.is_dir()]
        folders.sort(key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)], reverse=True)
        paths = [folder / f"{table}.parquet" for folder in folders]
        return [(path.parent.name, pd.read_parquet(path)) for path in paths if path.exists()]

    def newest(self, system: str, family: str, engine: str, table: str, least: int = 1) -> tuple[str, pd.DataFrame]:
        found = [
            (version, frame) for version, frame in self.tables(system, family, engine, table) if len(frame) >= least
        ]
        return found[0] if found else ("", pd.DataFrame())

    def sample(self, work: Work) -> Work:
        size = len(work.seconds)
        return work if size <= SAMPLE else work.keep(self.random.choice(size, SAMPLE, replace=False))

    def add(
        self, key: tuple[str, str, str, str], version: str, refused: str = "", rejected: int = 0, **values: Any
    ) -> None:
        row = dict(zip(("accelerator", "engine", "op", "format"), key, strict=True))
        rounded = {name: float(f"{value:.4g}") for name, value in values.items()}
        self.rows.append({**row, **rounded, "rejected": rejected, "refused": refused, "measured_with": version})

    def fit(
        self, key: tuple[str, str, str, str], version: str, work: Work, bandwidth: float, peak: float,
        start: dict[str, float], rejected: int, least_overhead: float = 1.0,
    ) -> None:  # fmt: skip
        """Fit the parameters named in `start` and add a row; refuse a table timed eagerly."""
        if len(work.seconds) < 15:
            self.add(key, version, "nothing believable", rejected)
            return
        work = self.sample(work)
        names = list(start)

        def seconds(x: Any) -> Any:
            value = {"sharpness": 2.0, "inertia": 0.0, "narrow": 0.0, "mbu": 1.0, "mfu": 1.0} | dict(
                zip(names, x, strict=True)
            )
            memory = work.bytes / (bandwidth * value["mbu"])
            flop = (work.flop + value["inertia"] * work.padding) * (1.0 + value["narrow"] / work.columns)
            compute = flop / (peak * value["mfu"])
            power = value["sharpness"]
            return value["overhead_us"] * 1e-6 + (memory**power + compute**power) ** (1.0 / power)

        low = [max(BOUNDS[name][0], least_overhead if name == "overhead_us" else 0.0) for name in names]
        high = [BOUNDS[name][1] for name in names]
        solution = least_squares(
            lambda x: np.log(seconds(x) / work.seconds),
            list(start.values()),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=0.15,
        )
        error = np.abs(np.expm1(solution.fun))
        if key[2] == "linear" and solution.x[0] > EAGER_US:
            self.add(
                key, version, f"launch floor of {solution.x[0]:.0f} us: timed eagerly, without a CUDA graph", len(error)
            )
            return
        self.add(
            key, version, rejected=rejected, points=len(error), median_error=np.median(error),
            p90_error=np.quantile(error, 0.9), **dict(zip(names, solution.x, strict=True)),
        )  # fmt: skip


def believable(work: Work, bandwidth: float, peak: float, cached: Any = False) -> Any:
    """Not faster than the data sheet; where `cached` the bytes may come from L2 and only the FLOP count."""
    memory = np.where(cached, 0.0, work.bytes / bandwidth)
    return work.seconds >= 0.98 * np.maximum(memory, work.flop / peak)


def linear(fit: Fitter, system: str, engine: str, sheet: Sheet) -> None:
    version, frame = fit.newest(system, "gemm", engine, "gemm_perf", 50)
    for name, group in frame.groupby("gemm_dtype") if len(frame) else ():
        if name not in FORMATS:
            continue
        form, weight, activation, multiply = FORMATS[name]
        m, n, k = (group[column].to_numpy(float) for column in "mnk")
        work = Work(group.latency.to_numpy() * 1e-3, n * k * weight + m * k * activation + m * n * 2.0, 2.0 * m * n * k)
        cached = n * k * weight < 4 * L2.get(system, 126e6)
        keep = (m <= 16384) & (n * k >= 2**20) & believable(work, sheet.bandwidth, sheet.peak[multiply], cached)
        if system in GDDR:
            keep &= n * k * weight > L2[system]
        large = keep & (m <= 16) & (n * k >= 2**25)
        key = (SYSTEMS[system], engine, "linear", form)
        reached = np.median((work.bytes / sheet.bandwidth / work.seconds)[large]) if large.any() else 1.0
        if reached < 0.12:
            fit.add(
                key, version, f"flat in m: {100 * reached:.0f} % of bandwidth at one row, timed eagerly", len(group)
            )
            continue
        start = {"overhead_us": 4.0, "mbu": 0.7, "mfu": 0.5, "sharpness": 2.0}
        fit.fit(key, version, work.keep(keep), sheet.bandwidth, sheet.peak[multiply], start, int((~keep).sum()), 2.0)


def experts(fit: Fitter, system: str, engine: str, sheet: Sheet) -> None:
    """Tables without expert parallelism only: with it, a rank's share of the tokens depends on the drawn imbalance."""
    done: set[str] = set()
    for version, frame in fit.tables(system, "moe", engine, "moe_perf"):
        frame = frame[
            frame.distribution.str.startswith("power") & (frame.moe_ep_size == 1) & (frame.num_tokens <= 16384)
        ]
        frame = frame[(frame.inter_size / frame.moe_tp_size >= 64) & ~frame.kernel_source.str.contains("nongated")]
        for name, group in frame.groupby("moe_dtype"):
            if name not in FORMATS or name in done or len(group) < 60:
                continue
            done.add(name)
            form, weight, activation, multiply = FORMATS[name]
            shape = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size"]
            best = group.groupby(shape).latency.min().reset_index()  # an engine picks its fastest kernel
            m, h, i, top, count = (best[column].to_numpy(float) for column in shape[:5])
            i = i / best.moe_tp_size.to_numpy(float)
            touched, rows, each = count * (1 - (1 - top / count) ** m), m * top, 3.0 * h * i
            size = touched * each * weight + rows * (2 * h * activation + 6.0 * i)
            work = Work(best.latency.to_numpy() * 1e-3, size, 2 * rows * each, 2 * touched * each, i)
            start = {"overhead_us": 20.0, "mbu": 0.6, "mfu": 0.4, "sharpness": 2.0, "inertia": 16.0, "narrow": 200.0}
            key = (SYSTEMS[system], engine, "experts", form)
            fit.fit(key, version, work, sheet.bandwidth, sheet.peak[multiply], start, len(group) - len(best))


def prefill_attention(fit: Fitter, system: str, engine: str, sheet: Sheet) -> None:
    start = {"overhead_us": 8.0, "mfu": 0.6, "inertia": 512.0}
    version, frame = fit.newest(system, "attention", engine, "context_attention_perf", 50)
    if len(frame):
        frame = _no_window(frame)
        frame = frame[frame.head_dim.isin([64, 128]) & (frame.batch_size * frame.isl <= 65536) & (frame.isl >= 128)]
        wide = frame.attn_dtype == "bfloat16" if "attn_dtype" in frame else True
        frame = frame[(frame.kv_cache_dtype == "bfloat16") & wide]
        batch, length, heads, width = _floats(frame, "batch_size", "isl", "num_heads", "head_dim")
        flop = 2.0 * batch * heads * width * length**2
        work = Work(frame.latency.to_numpy() * 1e-3, 0.0 * flop, flop, flop / length)
        keep = believable(work, sheet.bandwidth, sheet.peak["bf16"])
        key = (SYSTEMS[system], engine, "prefill_attention", "bf16")
        fit.fit(key, version, work.keep(keep), sheet.bandwidth, sheet.peak["bf16"], start, int((~keep).sum()))
    version, frame = fit.newest(system, "mla", engine, "context_mla_perf", 50)
    if len(frame):
        frame = frame[
            (frame.kv_cache_dtype == "bfloat16") & (frame.isl >= 128) & (frame.batch_size * frame.isl <= 65536)
        ]
        batch, length, heads = _floats(frame, "batch_size", "isl", "num_heads")
        flop = batch * heads * 320.0 * length**2
        work = Work(frame.latency.to_numpy() * 1e-3, 0.0 * flop, flop, flop / length)
        keep = believable(work, sheet.bandwidth, sheet.peak["bf16"])
        key = (SYSTEMS[system], engine, "prefill_mla", "bf16")
        fit.fit(key, version, work.keep(keep), sheet.bandwidth, sheet.peak["bf16"], start, int((~keep).sum()))


def decode_attention(fit: Fitter, system: str, engine: str, sheet: Sheet) -> None:
    start = {"overhead_us": 8.0, "mbu": 0.8, "mfu": 0.3, "sharpness": 2.0}
    for table, op in (("generation_attention_perf", "decode_attention"), ("generation_mla_perf", "decode_mla")):
        mla = op == "decode_mla"
        version, frame = fit.newest(system, "mla" if mla else "attention", engine, table, 50)
        for name, group in _no_window(frame).groupby("kv_cache_dtype") if len(frame) else ():
            if name not in ("bfloat16", "fp8"):
                continue
            size = 2.0 if name == "bfloat16" else 1.0
            group = group[group.step >= 127]
            group = group if mla else group[group.head_dim.isin([64, 128])]
            work = _latent(group, size) if mla else _cache(group, size)
            peak = sheet.peak["fp8" if mla and size == 1.0 else "bf16"]
            in_l2 = work.bytes < 4 * L2.get(system, 126e6)
            keep = believable(work, sheet.bandwidth, peak, mla & in_l2)
            keep &= ~((work.bytes > 2e6) & in_l2) if system in GDDR else True
            key = (SYSTEMS[system], engine, op, "bf16" if size == 2.0 else "fp8")
            fit.fit(key, version, work.keep(keep), sheet.bandwidth, peak, start, int((~keep).sum()))


def _cache(frame: pd.DataFrame, size: float) -> Work:
    batch, step, heads, kv, width = _floats(frame, "batch_size", "step", "num_heads", "num_key_value_heads", "head_dim")
    read = batch * (step + 1.0)
    return Work(
        frame.latency.to_numpy() * 1e-3,
        read * np.where(kv == 0, heads, kv) * width * 2.0 * size,
        4.0 * read * heads * width,
    )


def _latent(frame: pd.DataFrame, size: float) -> Work:
    batch, step, heads = _floats(frame, "batch_size", "step", "num_heads")
    read = batch * (step + 1.0)
    return Work(frame.latency.to_numpy() * 1e-3, read * 576.0 * size, 2.0 * read * heads * 1088.0)


def _floats(frame: pd.DataFrame, *columns: str) -> list[Any]:
    return [frame[column].to_numpy(float) for column in columns]


def _no_window(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame.window_size == 0] if "window_size" in frame else frame


def collectives(fit: Fitter, system: str, sheet: Sheet) -> None:
    start = {"overhead_us": 5.0, "mbu": 0.5}
    for engine in ENGINES:
        version, frame = fit.newest(system, "comm", engine, "custom_allreduce_perf")
        for world, group in frame.groupby("num_gpus") if len(frame) else ():
            _collective(fit, (system, engine, "all_reduce"), int(world), group, version, sheet, start)
    version, frame = fit.newest(system, "comm", "nccl", "nccl_perf")
    frame = frame[frame.nccl_dtype == "half"] if len(frame) else frame
    for (name, world), group in frame.groupby(["op_name", "num_gpus"]) if len(frame) else ():
        op = {"all_reduce": "all_reduce", "alltoall": "all_to_all"}.get(name)
        if op:
            _collective(fit, (system, "nccl", op), int(world), group, version, sheet, start)


def _collective(
    fit: Fitter,
    where: tuple[str, str, str],
    world: int,
    group: pd.DataFrame,
    version: str,
    sheet: Sheet,
    start: dict[str, float],
) -> None:
    system, engine, op = where
    best = group.groupby("message_size").latency.min().reset_index()
    share = (world - 1.0) / world * (2.0 if op == "all_reduce" else 1.0)
    work = Work(best.latency.to_numpy() * 1e-3, share * best.message_size.to_numpy(float) * 2.0, 0.0)
    key = (SYSTEMS[system], engine, op, str(world))
    if system == "l40s" and world > 2:
        reason = "one chassis without peer access: bus bandwidth falls from 20 to 1.5 GB/s between 2 and 8 accelerators"
        fit.add(key, version, reason, len(best))
        return
    fit.fit(key, version, work, sheet.scaleup, 1.0, start, len(group) - len(best))


def reconcile(rows: Sequence[dict[str, Any]]) -> None:
    """Judge each table by the others of its accelerator.

    A latent cache in FP8 read 8 times slower than in 16 bit is refused. TensorRT-LLM's fp8 table launches the quantisation of the
    activations apart, which its engine fuses into other kernels: the launch cost of the other engines stands in for its own.
    """
    for row in rows:
        if row["op"] == "decode_mla" and row["format"] == "fp8" and row.get("mbu", 1.0) < 0.2:
            row.update(
                dict.fromkeys(FIELDS, ""), refused="8 times slower than the other engine and than its own 16-bit cache"
            )
        if row["op"] == "experts" and row.get("mbu", 1.0) < 0.25:
            row.update(
                dict.fromkeys(FIELDS, ""), refused="a quarter of the bandwidth of the other engines: an untuned kernel"
            )
        if (row["engine"], row["op"], row["format"]) == ("trtllm", "linear", "fp8") and "overhead_us" in row:
            alike = [
                other["overhead_us"] for other in rows
                if (other["accelerator"], other["op"], other["format"]) == (row["accelerator"], "linear", "fp8")
                and other["engine"] != "trtllm" and "overhead_us" in other
            ]  # fmt: skip
            row["overhead_us"] = min([row["overhead_us"], *alike])


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", type=Path)
    parser.add_argument("--out", type=Path, default=Path("src/diptych/perf/data/curves.csv"))
    options = parser.parse_args(argv)
    fit = Fitter(options.systems)
    for system, name in SYSTEMS.items():
        sheet = Sheet.of(name)
        steps: tuple[Callable[[Fitter, str, str, Sheet], None], ...] = (
            linear,
            experts,
            prefill_attention,
            decode_attention,
        )
        for engine in ENGINES:
            for step in steps:
                step(fit, system, engine, sheet)
        collectives(fit, system, sheet)
        print(f"{name}: {sum(row['accelerator'] == name for row in fit.rows)} curves")
    reconcile(fit.rows)
    with options.out.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(fit.rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
