"""The optional measured tables: a clear sentence without the wheel; with it, tables beside the shipped curves."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from timed_workers import CATALOG, FP8, worker

from diptych.catalog.dtype import Dtype
from diptych.errors import Unsupported
from diptych.perf.efficiency import Curve
from diptych.perf.ops import OpKind, Work
from diptych.perf.roofline import Roofline, default_perf, memory_bandwidth, peak_flops
from diptych.perf.silicon import TableCurve, _tabulate, silicon_curves, tables_folder


def test_without_the_wheel_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"diptych\[silicon\]"):
        tables_folder()


def test_a_table_never_falls_and_never_beats_the_data_sheet() -> None:
    random = np.random.default_rng(0)
    rows, sizes = np.repeat(2.0 ** np.arange(14), 40), np.tile(np.geomspace(1e6, 1e9, 40), 14)
    noisy = (4e-6 + 2 * sizes / 2e12 + 2 * rows * sizes / 5e14) * random.lognormal(0, 0.2, len(rows))
    table = _tabulate(rows, sizes, noisy, 8)
    assert table is not None
    original = Curve(4e-6, 0.9, 0.5)
    curve = TableCurve(4e-6, 0.9, 0.5, original=original, first=table[0], second=table[1], table=table[2])
    m = np.geomspace(1, 16384, 200)
    for size in (2e6, 6.7e7, 5e8):
        work = Work(2 * m * size, 2 * size + m, rows=m)
        seconds = curve.seconds(work, 1e15, 2e12)
        inside = (m > table[0][0]) & (m < table[0][-1])
        assert np.all(np.diff(seconds[inside]) >= -1e-12)
        assert np.all(seconds >= np.maximum(2 * m * size / 1e15, (2 * size + m) / 2e12))


@pytest.mark.silicon
def test_measured_tables_agree_with_the_shipped_curves() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("aiconfigurator_core", "pandas", "pyarrow")):
        pytest.skip("needs the [silicon] extra")
    folder: Path = tables_folder()
    curves = silicon_curves(folder)
    assert "vllm" not in curves.of("B200-SXM", OpKind.LINEAR, "fp8_block")  # timed eagerly: refused here too
    tabled = [row for row in curves.rows if isinstance(row.curve, TableCurve)]
    assert len(tabled) > 60
    ratios = []
    for row in tabled:
        if row.op is not OpKind.LINEAR or row.format != "bf16":
            continue
        accelerator = CATALOG.accelerator(row.accelerator)
        m = np.array([1.0, 64.0, 1024.0, 8192.0])
        work = Work(2 * m * 8192**2, 2 * 8192**2 + m * 8192 * 4, rows=m)
        peak, bandwidth = peak_flops(accelerator, Dtype.BF16), memory_bandwidth(accelerator)
        assert isinstance(row.curve, TableCurve)
        ratios.append(row.curve.seconds(work, peak, bandwidth) / row.curve.original.seconds(work, peak, bandwidth))
    assert 0.85 < np.median(np.concatenate(ratios)) < 1.2
    both = worker("Llama-3.1-70B", "H200", FP8, "trtllm", tp=4)
    measured = float(Roofline(curves=curves).decode(both, 64, 2048).seconds)
    assert measured == pytest.approx(float(default_perf().decode(both, 64, 2048).seconds), rel=0.35)
