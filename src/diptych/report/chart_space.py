"""What was asked and what was considered: prompt lengths, the design space, the points where the answer flips."""

from __future__ import annotations

from typing import Any

from diptych.planner.plan import Flip, Plan, RuleCount
from diptych.report import words
from diptych.report.charts import Chart, category, marked, palette, quantity, specification, values
from diptych.units import format_bandwidth, format_usd

_STAGES = ("broke a rule", "proved worse", "sized in full")
_STAGE_COLOURS = ("var(--colo)", "var(--homodis)", "var(--hetero)")


def space_charts(plan: Plan) -> tuple[Chart, ...]:
    """Design space, flip points and prompt lengths; each only where the plan has its numbers."""
    charts = (_rules(plan), _flips(plan), _lengths(plan))
    return tuple(chart for chart in charts if chart is not None)


def flip_value(flip: Flip, value: float) -> str:
    """A value on a flip's axis as people write it."""
    if flip.unit == "B/s":
        return format_bandwidth(value)
    if "share" in flip.unit or flip.axis == "prefix hit rate":
        return words.percent(value)
    number = format_usd(value) if flip.unit.startswith("USD") else words.count(value)
    return f"{number} {flip.unit}".strip()


def _rules(plan: Plan) -> Chart:
    space = plan.space
    stages = ((_STAGES[0], space.rules), (_STAGES[1], space.pruned))
    rows = [_rule_row(stage, rule) for stage, rules in stages for rule in _largest_first(rules)]
    rows.append({"rule": "sized in full", "stage": _STAGES[2], "n": space.sized, "text": f"{space.sized:,}", "why": ""})
    order = [row["rule"] for row in rows]
    used = [stage for stage in _STAGES if any(row["stage"] == stage for row in rows)]
    y = category("rule", order, axis={"labelLimit": 210})
    x = quantity(
        "n", "designs (logarithmic)", scale={"type": "log", "domainMin": 1}, axis={"format": "~s", "tickCount": 5}
    )
    tooltip = [
        {"field": "rule", "type": "nominal"},
        {"field": "why", "type": "nominal", "title": "reason"},
        {"field": "text", "type": "nominal", "title": "designs"},
    ]
    colour = category("stage", used, scale=palette(used, _STAGE_COLOURS))
    layers = [
        {
            "data": values(rows),
            "mark": {"type": "bar", "height": {"band": 0.62}},
            "encoding": {"x": x, "x2": {"datum": 1}, "y": y, "color": colour, "tooltip": tooltip},
        },
        {
            "data": values(rows),
            "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 11},
            "encoding": {"x": x, "y": y, "text": {"field": "text", "type": "nominal"}},
        },
    ]
    return Chart(
        "rules",
        f"{words.big(space.cartesian)} designs, {words.big(space.effective)} of them possible, {space.sized:,} sized",
        "A rule drops what cannot exist; a proof of dominance drops what cannot win.",
        specification("Bars: designs dropped by every rule", 26 * len(rows), layer=layers),
        ("stage", "rule", "designs", "reason"),
        tuple((row["stage"], row["rule"], row["text"], row["why"]) for row in rows),
        wide=True,
        keep_table=True,
    )


def _largest_first(rules: tuple[RuleCount, ...]) -> list[RuleCount]:
    return sorted((rule for rule in rules if rule.dropped), key=lambda rule: -rule.dropped)


def _rule_row(stage: str, rule: RuleCount) -> dict[str, Any]:
    return {
        "rule": rule.rule.replace("_", " ").replace("-", " "),
        "stage": stage,
        "n": rule.dropped,
        "text": f"{rule.dropped:,}",
        "why": rule.sentence,
    }


def _flips(plan: Plan) -> Chart | None:
    """How far each input may move, as multiples of its present value; an input at zero has no multiple and stays in the table."""
    movable = [flip for flip in plan.sensitivity if flip.now > 0]
    if not movable:
        return None
    rows = [_flip_row(flip) for flip in movable]
    points = [row for row in rows if row["at"] is not None]
    y = category("axis", [row["axis"] for row in rows], axis={"labelLimit": 190})
    x = quantity(
        "low",
        "multiple of the present value",
        scale={"type": "log"},
        axis={"format": "~g", "values": [0.01, 0.1, 0.25, 0.5, 1, 2, 4, 10, 100]},
    )
    tooltip = [
        {"field": "axis", "type": "nominal"},
        {"field": "nowText", "type": "nominal", "title": "now"},
        {"field": "atText", "type": "nominal", "title": "flips at"},
        {"field": "why", "type": "nominal", "title": "consequence"},
    ]
    layers: list[dict[str, Any]] = [
        {
            "data": values(rows),
            "mark": {"type": "rule", "strokeWidth": 9, "color": "var(--track)", "strokeCap": "round"},
            "encoding": {"x": x, "x2": {"field": "high"}, "y": y, "tooltip": tooltip},
        },
        {
            "data": values(rows),
            "mark": {"type": "rule", "strokeWidth": 9, "color": "var(--hetero)", "opacity": 0.55},
            "encoding": {"x": quantity("from", None), "x2": {"field": "to"}, "y": y, "tooltip": tooltip},
        },
        {
            "data": values(points),
            "mark": {"type": "point", "filled": True, "size": 110, "color": "var(--bad)", "shape": "diamond"},
            "encoding": {"x": quantity("at", None), "y": y, "tooltip": tooltip},
        },
        *marked("x", "low", 1.0, "now", "var(--soft)"),
    ]
    return Chart(
        "flips",
        "How far each input may move",
        "The answer stays along the coloured stretch and changes at the diamond.",
        specification("Ranges tried for each input, with the flip point", 36 * len(rows), layer=layers),
        ("input", "now", "flips at", "tried", "consequence"),
        tuple((flip.axis, flip_value(flip, flip.now), _flips_at(flip), _tried(flip), flip.sentence) for flip in plan.sensitivity),
        wide=True,
    )  # fmt: skip


def _flips_at(flip: Flip) -> str:
    return "never" if flip.at is None else flip_value(flip, flip.at)


def _tried(flip: Flip) -> str:
    return f"{flip_value(flip, flip.low)} to {flip_value(flip, flip.high)}"


def _flip_row(flip: Flip) -> dict[str, Any]:
    low, high = max(flip.low / flip.now, 0.01), flip.high / flip.now
    at = None if flip.at is None else max(flip.at / flip.now, 0.01)
    return {
        "axis": flip.axis.replace("price:", "price of "),
        "low": low,
        "high": high,
        "at": at,
        "from": at if at is not None and at < 1 else low,
        "to": at if at is not None and at >= 1 else high,
        "nowText": flip_value(flip, flip.now),
        "atText": _flips_at(flip),
        "why": flip.sentence,
    }


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
