"""A sweep in a terminal: designs at each rate, seeds together."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from diptych.report import words
from diptych.report.simulation_tables import seconds, share
from diptych.report.tables import table
from diptych.units import format_usd

Row = dict[str, Any]
MOST_ROWS = 40


def sweep_json(rows: Sequence[Row]) -> dict[str, Any]:
    """The points and their summaries as one document."""
    failed = sum("error" in row for row in rows)
    return {"points": len(rows), "failed": failed, "rows": list(rows)}


def sweep_text(rows: Sequence[Row]) -> Group:
    """A row for each design and pace with the means over seeds, best goodput first at each pace; what failed, and why."""
    shown = table("design", "load", "goodput", "inside", "TTFT p90", "TPOT p90", "USD/h", "SLO")
    groups = _groups(rows)
    for group in groups[:MOST_ROWS]:
        shown.add_row(*_cells(group))
    parts: list[RenderableType] = [shown]
    if len(groups) > MOST_ROWS:
        parts.append(Text(f"{len(groups) - MOST_ROWS:,} more in the file"))
    done = sum("summary" in row for row in rows)
    parts.append(Text(f"{words.plural(done, 'point')} simulated"))
    failed = [row for row in rows if "error" in row]
    for reason in list(dict.fromkeys("; ".join(row["error"]) for row in failed))[:5]:
        count = sum("; ".join(row["error"]) == reason for row in failed)
        parts.append(Text(f"! {words.plural(count, 'point')} failed: {reason}", style="yellow"))
    return Group(*parts)


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows alike but for their seed, by pace, then goodput."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if "summary" in row:
            point = row["point"]
            found.setdefault((point["rate"], point["concurrency"], point["design"]), []).append(row)
    pace = {key: fmean(row["summary"]["offered"] for row in group) for key, group in found.items()}
    return [
        found[key]
        for key in sorted(found, key=lambda key: (key[1], round(pace[key], 1), -_mean(found[key], "goodput")))
    ]


def _mean(group: Sequence[Row], name: str) -> float:
    return fmean(row["summary"][name] for row in group)


def _p90(group: Sequence[Row], metric: str) -> str:
    known = [value for row in group if (value := row["summary"]["latencies"][metric]["p90"]) is not None]
    return seconds(fmean(known) if known else None)


def _cells(group: Sequence[Row]) -> tuple[str, ...]:
    point = group[0]["point"]
    pace = (
        f"{point['concurrency']} at once"
        if point["concurrency"]
        else f"{words.count(round(_mean(group, 'offered'), 2))}/s"
    )
    bill = _mean(group, "usd_per_hour")
    held = sum(row["summary"]["holds"] for row in group)
    verdict = (
        "–" if not group[0]["summary"]["promises"] else "holds" if held == len(group) else f"{held} of {len(group)}"
    )
    goodput = words.count(round(_mean(group, "goodput"), 3))
    return (
        point["design"], pace, goodput, share(_mean(group, "attainment")), _p90(group, "ttft"), _p90(group, "tpot"),
        format_usd(bill) if bill else "–", verdict,
    )  # fmt: skip
