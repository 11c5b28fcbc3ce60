"""What was asked and how firm the answer is: prompt lengths, and the points where the answer flips."""

from __future__ import annotations

from typing import Any

from diptych.planner.plan import Flip, Plan
from diptych.planner.sensitivity import GRID
from diptych.report import words
from diptych.report.charts import Chart, category, marked, quantity, specification, values
from diptych.units import format_bandwidth, format_usd


def question_charts(plan: Plan) -> tuple[Chart, ...]:
    """Flip points and prompt lengths; each only where the plan has its numbers."""
    charts = (_flips(plan), _lengths(plan))
    return tuple(chart for chart in charts if chart is not None)


def flip_value(flip: Flip, value: float) -> str:
    """A value on a flip's axis as people write it."""
    if flip.unit == "B/s":
        return format_bandwidth(value)
    if "share" in flip.unit or flip.axis == "prefix hit rate":
        return words.percent(value)
    number = format_usd(value) if flip.unit.startswith("USD") else f"{value:.3g}"
    return f"{number} {flip.unit}".strip()


def _flips(plan: Plan) -> Chart | None:
    """How far each input may move, as multiples of its present value; an input at zero has no multiple and stays in the table."""
    if not plan.sensitivity:
        return None
    rows = _stretches(plan.sensitivity)
    points = [_flip_point(flip) for flip in plan.sensitivity if flip.at is not None and flip.now > 0]
    y = category("axis", [row["axis"] for row in rows], axis={"labelLimit": 190})
    scale = {"type": "log", "domain": list(_TRIED), "clamp": True, "nice": False}
    ticks = {"format": "~g", "values": [0.1, 0.25, 0.5, 1, 2, 4, 10]}
    x = quantity("from", "multiple of the present value", scale=scale, axis=ticks)
    layers: list[dict[str, Any]] = [
        {
            "data": values(rows),
            "mark": {"type": "rule", "strokeWidth": 9, "color": "var(--hetero)", "opacity": 0.45},
            "encoding": {"x": x, "x2": {"field": "to"}, "y": y},
        },
        {
            "data": values(points),
            "mark": {
                "type": "point",
                "filled": True,
                "size": 120,
                "color": "var(--bad)",
                "shape": "diamond",
                "opacity": 1,
            },
            "encoding": {"x": quantity("at", None), "y": y, "tooltip": _FLIP_TOOLTIP},
        },
        *marked("x", "from", 1.0, "now", "var(--soft)", y=-6),
    ]
    return Chart(
        "flips",
        "How far each input may move alone",
        "The answer stays along the coloured stretch and changes at a diamond.",
        specification("Ranges: how far each input may move before the answer changes", 28 * len(rows), layer=layers),
        ("input", "now", "changes at", "then the answer is"),
        tuple((_axis(flip), flip_value(flip, flip.now), flips_at(flip), _after(flip)) for flip in plan.sensitivity),
        wide=True,
        keep_table=True,
    )


_TRIED = (GRID[0], GRID[-1])
_FLIP_TOOLTIP = [
    {"field": "axis", "type": "nominal", "title": "input"},
    {"field": "nowText", "type": "nominal", "title": "now"},
    {"field": "atText", "type": "nominal", "title": "changes at"},
    {"field": "after", "type": "nominal", "title": "to"},
]


def _stretches(flips: tuple[Flip, ...]) -> list[dict[str, Any]]:
    """One row an input: the multiples of its present value between the nearest flips on either side."""
    rows: dict[str, dict[str, Any]] = {}
    for flip in flips:
        if flip.now > 0:
            row = rows.setdefault(flip.axis, {"axis": _axis(flip), "from": _TRIED[0], "to": _TRIED[1]})
            if flip.at is not None:
                side, nearer = ("from", max) if flip.at < flip.now else ("to", min)
                row[side] = nearer(row[side], flip.at / flip.now)
    return list(rows.values())


def _flip_point(flip: Flip) -> dict[str, Any]:
    assert flip.at is not None
    texts = {"nowText": flip_value(flip, flip.now), "atText": flips_at(flip), "after": flip.after}
    return {"axis": _axis(flip), "at": flip.at / flip.now, **texts}


def _axis(flip: Flip) -> str:
    return flip.axis.replace("price:", "price of ")


def _after(flip: Flip) -> str:
    return flip.after if flip.at is not None else f"{flip.before}, as now"


def flips_at(flip: Flip) -> str:
    """Where a flip lies: `above 3.34 USD/h`, or that it lies nowhere in the range tried."""
    if flip.at is None:
        return f"nowhere from {flip_value(flip, flip.low)} to {flip_value(flip, flip.high)}"
    return f"{'below' if flip.at < flip.now else 'above'} {flip_value(flip, flip.at)}"


def _lengths(plan: Plan) -> Chart | None:
    workload = plan.question.workload
    if not workload.isl_histogram:
        return None
    rows: list[dict[str, Any]] = [
        {"from": max(low, 1.0), "to": max(high, 1.0), "share": share, "text": words.percent(share, 1)}
        for low, high, share in workload.isl_histogram
    ]
    axis = {"format": "~s", "tickCount": 6, "grid": False}
    x = quantity("from", "prompt tokens (logarithmic)", scale={"type": "log", "nice": False}, axis=axis)
    layers: list[dict[str, Any]] = [
        {
            "data": values(rows),
            "mark": {"type": "rect", "color": "var(--prefill)", "opacity": 0.75, "stroke": "var(--card)"},
            "encoding": {
                "x": x,
                "x2": {"field": "to"},
                "y": quantity(
                    "share", "share of requests", axis={"format": ".0%", "tickCount": 4}, scale={"zero": True}
                ),
                "y2": {"datum": 0},
                "tooltip": [
                    {"field": "from", "type": "quantitative", "format": ",.0f"},
                    {"field": "to", "type": "quantitative", "format": ",.0f"},
                    {"field": "text", "type": "nominal", "title": "share"},
                ],
            },
        }
    ]
    for name, at in (("p50", workload.isl_p50), ("p99", workload.isl_p99)):
        layers += marked("x", "from", max(at, 1.0), name, "var(--soft)")
    return Chart(
        "lengths",
        "How long the prompts are",
        f"p50 {words.count(workload.isl_p50)}, p90 {words.count(workload.isl_p90)}, p99 {words.count(workload.isl_p99)} tokens. "
        "Pools are sized for this distribution, not for its mean.",
        specification("Histogram of prompt lengths", 180, layer=layers),
        ("from", "to", "share"),
        tuple((words.count(r["from"]), words.count(r["to"]), r["text"]) for r in rows),
        wide=True,
    )
