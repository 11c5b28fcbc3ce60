"""Where requests' time went: means of the stages, and single requests from arrival to their last token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from diptych.metrics.measurements import Floats
from diptych.planner.judge import Judged
from diptych.report.chart_simulation import time_unit
from diptych.report.charts import Chart, category, palette, quantity, specification, values
from diptych.units import format_seconds

STAGE_COLOURS = {
    "queue": "var(--headroom-strong)",
    "prefill": "var(--prefill)",
    "convert": "var(--transient)",
    "transfer": "var(--hinge)",
    "wait": "var(--faint)",
    "decode": "var(--decode)",
}
_SAMPLED = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0)
_SLOWEST = (("all", 0.0), ("slowest 10 %", 0.9), ("slowest 1 %", 0.99))


def timeline_charts(judged: Judged) -> tuple[Chart, ...]:
    """Mean stages of all and of the slowest requests; a timeline of sampled ones."""
    done = judged.run.requests.finished
    if not done.any():
        return ()
    e2e = judged.run.requests.e2e[done]
    parts = {name: found for name, found in judged.stages.items() if found.any()}
    return _means(parts, e2e), _timeline(judged, parts, e2e)


def _means(parts: Mapping[str, Floats], e2e: Floats) -> Chart:
    groups = [(name, e2e >= np.quantile(e2e, q)) for name, q in _SLOWEST]
    unit, scale = time_unit(float(e2e[groups[-1][1]].mean()))
    rows: list[dict[str, Any]] = [
        {"who": name, "stage": stage, "t": float(f"{seconds[mine].mean() * scale:.5g}"), "order": order,
         "text": format_seconds(float(seconds[mine].mean()))}
        for name, mine in groups
        for order, (stage, seconds) in enumerate(parts.items())
    ]  # fmt: skip
    layer = _stacked(rows, [name for name, _ in groups], unit)
    return Chart(
        "stages",
        "Where the time goes",
        "Mean seconds of each stage: of all finished requests, and of those with the longest end-to-end latency.",
        specification("Stacked bars: mean time of each stage", 44 * len(groups), layer=[layer]),
        ("requests", "stage", "mean"),
        tuple((row["who"], row["stage"], row["text"]) for row in rows),
        wide=True,
    )  # fmt: skip


def _timeline(judged: Judged, parts: Mapping[str, Floats], e2e: Floats) -> Chart:
    """Requests at quantiles of end-to-end latency, time counted from their own arrival."""
    requests = judged.run.requests
    done = np.flatnonzero(requests.finished)
    order = np.argsort(e2e, kind="stable")
    picked = dict.fromkeys(int(order[round(q * (len(order) - 1))]) for q in _SAMPLED)
    unit, scale = time_unit(float(e2e[order[-1]]))
    rows: list[dict[str, Any]] = []
    names = []
    for at in picked:
        row = done[at]
        share = float(np.searchsorted(e2e[order], e2e[at], side="right")) / len(order)
        name = f"p{share * 100:.3g}: {requests.isl[row]:,} → {requests.osl[row]:,} tokens, request {requests.id[row]}"
        names.append(name)
        for place, (stage, seconds) in enumerate(parts.items()):
            if seconds[at] > 0:
                rows.append({"who": name, "stage": stage, "t": float(f"{seconds[at] * scale:.5g}"), "order": place,
                             "text": format_seconds(float(seconds[at]))})  # fmt: skip
    return Chart(
        "timeline",
        "Sampled requests, from arrival to last token",
        "One request for each percentile of end-to-end latency. The bars add up to it.",
        specification("Stacked bars: stages of single requests", 22 * len(names), layer=[_stacked(rows, names, unit)]),
        ("request", "stage", "seconds"),
        tuple((row["who"], row["stage"], row["text"]) for row in rows),
        wide=True,
    )


def _stacked(rows: list[dict[str, Any]], names: list[str], unit: str) -> dict[str, Any]:
    stages = [stage for stage in STAGE_COLOURS if any(row["stage"] == stage for row in rows)]
    return {
        "data": values(rows),
        "mark": {"type": "bar", "height": {"band": 0.66}},
        "encoding": {
            "y": category("who", names, axis={"labelLimit": 320}),
            "x": quantity("t", unit, stack="zero", axis={"tickCount": 6}),
            "color": category("stage", stages, scale=palette(stages, [STAGE_COLOURS[stage] for stage in stages])),
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": [{"field": "who", "type": "nominal", "title": "requests"}, {"field": "stage", "type": "nominal"},
                        {"field": "text", "type": "nominal", "title": "took"}],
        },
    }  # fmt: skip
