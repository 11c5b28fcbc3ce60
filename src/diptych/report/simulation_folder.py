"""The folder of a simulation: summary, requests, series and page, written beside and then renamed."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from diptych.metrics.measurements import Series
from diptych.planner.judge import Judged
from diptych.planner.simulated import Simulated
from diptych.report.folder import INPUTS, as_json
from diptych.report.simulation_html import render

MARK = "diptych simulate"


def run_files(judged: Judged, seen: Simulated, inputs: Mapping[str, Any], command: str) -> dict[str, str]:
    """The text of every file of a simulation, by name."""
    return {
        "summary.json": as_json(seen.to_dict()),
        "requests.jsonl": "".join(f"{line}\n" for line in judged.run.jsonl()),
        "series.csv": series_csv(judged.run.series),
        "report.html": render(judged, seen, command),
        INPUTS: as_json({"written_by": MARK, "command": command, **inputs}),
    }


def series_csv(series: Series) -> str:
    """Samples over time: seconds, then a column per series; empty where it did not exist."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time_s", *series.values])
    columns = [series.time.tolist(), *(values.tolist() for values in series.values.values())]
    writer.writerows(["" if cell != cell else f"{cell:.9g}" for cell in row] for row in zip(*columns, strict=True))
    return text.getvalue()
