"""Derive src/diptych/workload/data/preset_points.csv from the whole traces in tests/data/traces.

Run: python benchmarks/derive_presets.py > src/diptych/workload/data/preset_points.csv
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from diptych.workload.compress import compress
from diptych.workload.lengths import Lengths
from diptych.workload.trace import Trace

TRACES = Path(__file__).parent.parent / "tests" / "data" / "traces"
SOURCES = {"summarisation": "vidur_arxiv_summarization_lengths.csv.gz", "rag": "mooncake_synthetic.jsonl.gz"}


def derive(name: str) -> Lengths:
    """The preset's 256 points, cached tokens by a cache that never forgets."""
    with Trace(TRACES / SOURCES[name]) as trace:
        return compress(trace.lengths(trace.reuse()), 256)


def main() -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("preset", "isl", "osl", "cached", "weight"))
    for name in SOURCES:
        points = derive(name)
        for row in zip(points.isl, points.osl, points.cached, points.weight, strict=True):
            writer.writerow((name, *(f"{value:.9g}" for value in row)))


if __name__ == "__main__":
    main()
