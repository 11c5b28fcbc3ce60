"""The folder of a run: plan, page and tables, written beside and then renamed, so that nobody reads half of it."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diptych.errors import Finding
from diptych.planner.plan import Option, Plan
from diptych.report import story, words
from diptych.report.html import render

INPUTS = "inputs.json"
_MARK = "diptych plan"


def run_files(plan: Plan, inputs: Mapping[str, Any], command: str) -> dict[str, str]:
    """The text of every file of a run, by name."""
    return {
        "plan.json": as_json(plan.to_dict()),
        "report.html": render(plan, command),
        "pareto.csv": pareto_csv(plan),
        "designs.csv": designs_csv(plan),
        INPUTS: as_json({"written_by": _MARK, "command": command, **inputs}),
    }


def as_json(value: Any) -> str:
    """Indented JSON that ends its last line."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def refusal(folder: Path, mark: str = _MARK) -> Finding | None:
    """Why `folder` must not be written to: it is a file, in one, or holds what `mark` did not write. None when it may."""
    if not folder.exists():
        above = next(parent for parent in folder.absolute().parents if parent.exists())
        if not above.is_dir():
            return Finding("--out", f"{above} is a file", "a folder to write to")
        if not os.access(above, os.W_OK | os.X_OK):
            return Finding("--out", f"{above} may not be written to", "a folder to write to")
        return None
    if not folder.is_dir():
        return Finding("--out", f"{folder} is a file", "a folder")
    if any(folder.iterdir()) and not _is_ours(folder, mark):
        return Finding(
            "--out",
            f"{folder} holds files that {mark} did not write",
            "a new or empty folder, or one of an earlier run",
        )
    return None


def _is_ours(folder: Path, mark: str) -> bool:
    try:
        inputs = json.loads((folder / INPUTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(inputs, dict) and inputs.get("written_by") == mark


def write_folder(folder: Path, files: Mapping[str, str]) -> tuple[Path, ...]:
    """Write all files or none: into a folder beside, renamed at the end; files of an earlier run are replaced one by one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        for name, text in files.items():
            (beside / name).parent.mkdir(parents=True, exist_ok=True)
            (beside / name).write_text(text, encoding="utf-8")
            (beside / name).chmod(0o755 if text.startswith("#!") else 0o644)
        beside.chmod(0o755)
        if folder.exists():
            for name in files:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (beside / name).replace(folder / name)
        else:
            beside.replace(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return tuple(folder / name for name in files)


def pareto_csv(plan: Plan) -> str:
    """The Pareto front: seconds, USD, requests/s."""
    names = ("design", "family", "placement", "usd_per_hour", "usd_per_mtok_total", "ttft_p90_s", "tpot_p90_s",
             "goodput_rps", "meets_slo")  # fmt: skip
    rows = [
        (p.label, words.series(p.placement, p.heterogeneous), p.placement, p.usd_per_hour, p.usd_per_mtok_total, p.ttft,
         p.tpot, p.goodput, p.meets_slo)
        for p in plan.pareto
    ]  # fmt: skip
    return _csv(names, rows)


def designs_csv(plan: Plan) -> str:
    """The plan, the baselines and the runners-up, one a row: seconds, bytes/s, USD, watts."""
    named = [(name, option) for name, option in story.named_options(plan)]
    named += [("runner-up", other.option) for other in story.runners_up(plan)]
    reasons = [story.reason_against(plan, option) for _, option in named]
    rows = [(name, *_design_row(option), why) for (name, option), why in zip(named, reasons, strict=True)]
    return _csv(_DESIGN_COLUMNS, rows)


_DESIGN_COLUMNS = (
    "name", "design", "family", "placement", "accelerators", "usd_per_hour", "usd_per_mtok_input", "usd_per_mtok_output",
    "usd_per_mtok_total", "goodput_rps", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p50_s", "tpot_p90_s", "tpot_p99_s",
    "ttft_band", "tpot_band", "power_w", "binding", "link", "link_utilisation", "link_required_bytes_per_s", "why_not",
)  # fmt: skip


def _design_row(o: Option) -> tuple[Any, ...]:
    link = (o.boundary.link, o.boundary.utilisation, o.boundary.required_bandwidth) if o.boundary else ("", "", "")
    return (
        o.label, words.series(o.placement, o.heterogeneous), o.placement, o.accelerators, o.usd_per_hour,
        o.usd_per_mtok_input, o.usd_per_mtok_output, o.usd_per_mtok_total, o.goodput, o.ttft.p50, o.ttft.p90, o.ttft.p99,
        o.tpot.p50, o.tpot.p90, o.tpot.p99, o.ttft.trust.band, o.tpot.trust.band, o.power_w, o.binding, *link,
    )  # fmt: skip


def _csv(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A value as a spreadsheet should see it: a text that would be run as a formula is quoted."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text
