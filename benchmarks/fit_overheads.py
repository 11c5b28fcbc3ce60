"""Fit what disaggregated requests pay outside engine steps: medians of what is left, by engine, into perf/data/overheads.json.

`handoff` is the median of measured − predicted TTFT where nothing else can be at work: few clients, a warm server. `cold`
follows from the servers whose first run it was: one wave of ten waits for it, so it is ten times what is left of the mean.
Only rows whose workers are known, by the row or by the run's recipe, are used.

Run: .venv/bin/python benchmarks/fit_overheads.py TABLE.csv.gz [TABLE.csv.gz ...]
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

from diptych.catalog.catalog import Catalog
from diptych.perf import overheads
from diptych.perf.model import PerfModel
from diptych.perf.overheads import Overheads
from diptych.perf.roofline import default_perf
from diptych.planner.benchmark_rows import Kind, read_table
from diptych.planner.validate import Prediction, predict

TARGET = Path(__file__).parents[1] / "src/diptych/perf/data/overheads.json"
FEW_CLIENTS, ROUNDS = 64, 10


def leftovers(paths: list[Path], perf: PerfModel) -> dict[tuple[str, bool], list[float]]:
    """Measured − predicted TTFT without overheads, by engine and whether the server was cold."""
    free = {engine: replace(row, handoff=0.0, cold=1e-9) for engine, row in overheads.table().items()}
    overheads.table.cache_clear()
    original, overheads.table = overheads.table, lambda: free  # type: ignore[assignment]
    try:
        found: dict[tuple[str, bool], list[float]] = {}
        seen: set[tuple[float | None, float | None]] = set()
        for path in paths:
            rows = [row for row in read_table(path).rows if row.kind is Kind.DISAGGREGATED]
            for made in predict(rows, Catalog.load(), perf).predictions:
                key = (made.row.measured.ttft, made.row.measured.tpot)
                if key not in seen and _usable(made):
                    seen.add(key)
                    left = made.row.measured.ttft - made.ttft  # type: ignore[operator]
                    found.setdefault((made.row.engine, made.cold), []).append(left)
        return found
    finally:
        overheads.table = original


def _usable(made: Prediction) -> bool:
    told = not any("not recorded" in note or "nearest" in note or "one of" in note for note in made.assumptions)
    few = made.cold or (made.row.concurrency or 1e9) <= FEW_CLIENTS
    return told and few and made.ttft is not None and made.row.measured.ttft is not None


def main() -> None:
    """Fit and write."""
    left = leftovers([Path(name) for name in sys.argv[1:]], default_perf())
    document = {}
    for engine, known in overheads.table().items():
        warm, cold = left.get((engine, False), []), left.get((engine, True), [])
        handoff = max(median(warm), 0.0) if len(warm) >= 5 else known.handoff
        wait = max(ROUNDS * (median(cold) - handoff), 0.0) if len(cold) >= 5 else known.cold
        document[engine] = vars_of(Overheads(round(handoff, 3), round(wait, 1)))
        print(f"{engine}: handoff {handoff:.3f} s from {len(warm)} rows, cold {wait:.1f} s from {len(cold)} rows")
    TARGET.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def vars_of(row: Overheads) -> dict[str, float]:
    """A row as plain values."""
    return {"handoff": row.handoff, "cold": row.cold}


if __name__ == "__main__":
    main()
