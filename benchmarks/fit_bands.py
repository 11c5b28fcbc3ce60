"""Write planner/data/bands.json: by kind of row, the error that nine of ten published rows stay within.

The band is about the prediction, so the error is |measured/predicted − 1|. Groups of fewer than 20 rows take no band of
their own.

Run: .venv/bin/python benchmarks/fit_bands.py TABLE.csv.gz
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from diptych.catalog.catalog import Catalog
from diptych.perf.roofline import default_perf
from diptych.planner.accuracy import METRICS
from diptych.planner.bands import key
from diptych.planner.benchmark_rows import read_table
from diptych.planner.validate import predict

TARGET = Path(__file__).parents[1] / "src/diptych/planner/data/bands.json"
FEWEST = 20


def main(path: Path) -> None:
    """Measure and write."""
    away: dict[str, dict[str, list[float]]] = {}
    for made in predict(read_table(path).rows, Catalog.load(), default_perf()).predictions:
        group = away.setdefault(key(made.row.kind, bool(made.assumptions)), {})
        for metric in METRICS:
            predicted, measured = getattr(made, metric), getattr(made.row.measured, metric)
            if predicted and measured:
                group.setdefault(metric, []).append(abs(measured / predicted - 1))
    found = {
        name: {
            metric: round(float(np.quantile(errors, 0.9)), 2)
            for metric, errors in group.items()
            if len(errors) >= FEWEST
        }
        for name, group in sorted(away.items())
    }
    TARGET.write_text(json.dumps({name: row for name, row in found.items() if row}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
