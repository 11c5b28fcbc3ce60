"""Validation as tables for a terminal, and as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.table import Table

from diptych.planner.accuracy import METRICS, Accuracy, Errors

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "output": "output tok/s"}
SHOWN = ("mode", "accelerator", "model", "concurrency", "answer")


def validation_tables(found: Accuracy) -> Iterator[Table]:
    """Overall, by group, and the unanswered rows."""
    yield _table("all rows", {"all": found.overall})
    for grouping in SHOWN:
        ordered = sorted(found.groups[grouping].items(), key=lambda item: -_rows(item[1]))
        yield _table(f"by {grouping}", dict(ordered))
    if found.unanswered:
        table = Table("rows", "not answered because", title="without an answer", title_justify="left")
        for reason, count in found.unanswered.items():
            table.add_row(str(count), reason)
        yield table


def _rows(errors: Mapping[str, Errors]) -> int:
    return max((error.count for error in errors.values()), default=0)


def _table(title: str, groups: Mapping[str, Mapping[str, Errors]]) -> Table:
    """One line per group and quantity, so that it fits 80 columns."""
    table = Table("", "", title=title, title_justify="left")
    for name in ("rows", "median error", "p90", "pred/meas", "in band"):
        table.add_column(name, justify="right")
    for group, errors in groups.items():
        shown = [metric for metric in METRICS if metric in errors]
        for number, metric in enumerate(shown):
            table.add_row("" if number else group, TITLES[metric], *_cells(errors[metric]))
    return table


def _cells(error: Errors) -> tuple[str, ...]:
    return (
        str(error.count), f"{error.median:.1%}", f"{error.p90:.0%}", f"{error.ratio:.2f}", f"{error.within_band:.0%}",
    )  # fmt: skip


def validation_json(path: str, layout: str, found: Accuracy) -> dict[str, Any]:
    """The document that `--json` prints.

    ```
    {"file", "layout", "rows", "answered", "answered_under_assumptions",
     "overall": {METRIC: ERRORS}, "by": {GROUPING: {GROUP: {METRIC: ERRORS}}}, "unanswered": {REASON: count}}
    METRIC   ttft | tpot | output
    ERRORS   {"count", "median", "p90", "ratio", "within_band"}: median and p90 of |predicted/measured - 1|,
             median predicted/measured, share of rows whose measured value lies within the stated band
    GROUPING accelerator | model | mode | concurrency | mode and concurrency | basis | answer
    ```
    """
    return {
        "file": path,
        "layout": layout,
        "rows": found.answered + sum(found.unanswered.values()),
        "answered": found.answered,
        "answered_under_assumptions": found.assumed,
        "overall": _plain(found.overall),
        "by": {
            name: {group: _plain(errors) for group, errors in groups.items()} for name, groups in found.groups.items()
        },
        "unanswered": dict(found.unanswered),
    }


def _plain(errors: Mapping[str, Errors]) -> dict[str, Any]:
    return {metric: asdict(error) for metric, error in errors.items()}
