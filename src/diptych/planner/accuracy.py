"""How far predictions are from what was measured, overall and by group."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.planner.benchmark_rows import Unread
from diptych.planner.validate import Prediction

METRICS = ("ttft", "tpot", "output")
BANDS = (1, 8, 32, 128, 512)


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of `count` rows: median and 90th percentile of |predicted/measured − 1|, the median of the ratio, and
    the share of rows whose truth lies within the band that the prediction stated."""

    count: int
    median: float
    p90: float
    ratio: float
    within_band: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """`overall` by metric, `groups` by grouping, group and metric; why the other rows have no answer."""

    answered: int
    assumed: int
    overall: Mapping[str, Errors]
    groups: Mapping[str, Mapping[str, Mapping[str, Errors]]]
    unanswered: Mapping[str, int]


def concurrency_band(concurrency: float | None) -> str:
    """'1', '2-8', … '>512', or 'none'."""
    if not concurrency:
        return "none"
    low = 1
    for high in BANDS:
        if concurrency <= high:
            return f"{low}-{high}" if low < high else f"{high}"
        low = high + 1
    return f">{BANDS[-1]}"


GROUPINGS: Mapping[str, Callable[[Prediction], str]] = {
    "accelerator": lambda p: p.accelerator,
    "model": lambda p: p.model,
    "mode": lambda p: p.row.kind.value,
    "concurrency": lambda p: concurrency_band(p.row.concurrency),
    "mode and concurrency": lambda p: f"{p.row.kind.value} {concurrency_band(p.row.concurrency)}",
    "basis": lambda p: p.basis.value,
    "answer": lambda p: "under assumptions" if p.assumptions else "from the row alone",
}


def accuracy(predictions: Sequence[Prediction], unanswered: Sequence[Unread]) -> Accuracy:
    """Sum up predictions against their rows."""
    groups = {name: _grouped(predictions, key) for name, key in GROUPINGS.items()}
    reasons = Counter(item.reason for item in unanswered)
    return Accuracy(
        len(predictions), sum(1 for p in predictions if p.assumptions), _errors(predictions), groups,
        dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
    )  # fmt: skip


def _grouped(predictions: Sequence[Prediction], key: Callable[[Prediction], str]) -> dict[str, dict[str, Errors]]:
    members: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        members.setdefault(key(prediction), []).append(prediction)
    return {name: _errors(members[name]) for name in sorted(members)}


def _errors(predictions: Sequence[Prediction]) -> dict[str, Errors]:
    found = {}
    for metric in METRICS:
        ratios, bands = ratio_of(predictions, metric)
        if len(ratios):
            away = np.abs(ratios - 1)
            found[metric] = Errors(
                len(ratios), float(np.median(away)), float(np.quantile(away, 0.9)), float(np.median(ratios)),
                float(np.mean(np.abs(1 / ratios - 1) <= bands)),
            )  # fmt: skip
    return found


def ratio_of(predictions: Sequence[Prediction], metric: str) -> tuple[Any, Any]:
    """(predicted/measured, band) of the rows that have both."""
    pairs = [
        (predicted / measured, p.bands[metric])
        for p in predictions
        if (predicted := getattr(p, metric)) and (measured := getattr(p.row.measured, metric))
    ]
    return np.array([ratio for ratio, _ in pairs]), np.array([band for _, band in pairs])


ROW_COLUMNS = (
    *("row", "source", "reference", "mode", "accelerator", "model", "isl", "osl", "concurrency"),
    *("ttft_measured_s", "ttft_predicted_s", "tpot_measured_s", "tpot_predicted_s"),
    *(
        "output_tok_s_measured",
        "output_tok_s_predicted",
        "basis",
        "ttft_band",
        "tpot_band",
        "output_band",
        "outside",
        "assumptions",
        "unanswered",
    ),
)


def rows_csv(predictions: Sequence[Prediction], unanswered: Sequence[Unread]) -> str:
    """Every row of the table with its prediction or the reason for none, in file order."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ROW_COLUMNS)
    lines = [(p.row.number, _line(p)) for p in predictions]
    lines += [(item.number, [item.number, *[""] * (len(ROW_COLUMNS) - 2), item.reason]) for item in unanswered]
    writer.writerows(line for _, line in sorted(lines, key=lambda pair: pair[0]))
    return text.getvalue()


def _line(p: Prediction) -> list[Any]:
    row, measured = p.row, p.row.measured
    return [
        row.number, row.source, row.reference, row.kind.value, p.accelerator, p.model, row.isl, row.osl, row.concurrency,
        measured.ttft, _round(p.ttft), measured.tpot, _round(p.tpot), measured.output, _round(p.output),
        p.basis.value, *(f"{p.bands[metric]:.2f}" for metric in METRICS), p.outside, "; ".join(p.assumptions), "",
    ]  # fmt: skip


def _round(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
