"""The folder of a simulation: summary, requests, series and page, written beside and then renamed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diptych.errors import Finding
from diptych.metrics.measurements import Series
from diptych.planner.judge import Judged
from diptych.planner.simulated import Simulated
from diptych.report.folder import INPUTS, as_json
from diptych.report.simulation_html import render

_MARK = "diptych simulate"


def run_files(judged: Judged, seen: Simulated, inputs: Mapping[str, Any], command: str) -> dict[str, str]:
    """The text of every file of a simulation, by name."""
    return {
        "summary.json": as_json(seen.to_dict()),
        "requests.jsonl": "".join(f"{line}\n" for line in judged.run.jsonl()),
        "series.csv": series_csv(judged.run.series),
        "report.html": render(judged, seen, command),
        INPUTS: as_json({"written_by": _MARK, "command": command, **inputs}),
    }


def series_csv(series: Series) -> str:
    """Samples over time: seconds, then a column per series; empty where it did not exist."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time_s", *series.values])
    columns = [series.time.tolist(), *(values.tolist() for values in series.values.values())]
    writer.writerows(["" if cell != cell else f"{cell:.9g}" for cell in row] for row in zip(*columns, strict=True))
    return text.getvalue()


def refusal(folder: Path) -> Finding | None:
    """Why `folder` must not be written to: it is a file, or holds what no simulation wrote. None when it may."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        return Finding("--out", f"{folder} is a file", "a folder")
    if any(folder.iterdir()) and not _is_ours(folder):
        return Finding(
            "--out",
            f"{folder} holds what no simulation wrote",
            "a new or empty folder, or one of an earlier simulation",
        )
    return None


def _is_ours(folder: Path) -> bool:
    try:
        inputs = json.loads((folder / INPUTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(inputs, dict) and inputs.get("written_by") == _MARK
