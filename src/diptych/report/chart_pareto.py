"""Cost against speed: the Pareto front three ways."""

from __future__ import annotations

from typing import Any

from diptych.planner.plan import Option, ParetoPoint, Plan
from diptych.report import story, words
from diptych.report.charts import (
    SERIES_COLOURS,
    Chart,
    category,
    marked,
    palette,
    quantity,
    specification,
    values,
)

_COST = "USD per million tokens"
_SHAPES = ("diamond", "square", "circle")
_LEGEND = {"labelExpr": "replace(datum.label, 'homogeneous, ', '')"}


def pareto_charts(plan: Plan) -> tuple[Chart, ...]:
    """Cost against TPOT, TTFT and goodput; empty when the plan has no front or nothing in it has a price."""
    if not any(point.usd_per_hour for point in plan.pareto):
        return ()
    return (
        _chart(plan, "tpot", "TPOT p90 (ms)", 1e3, "Cost against time per output token", 340, wide=True),
        _chart(plan, "ttft", "TTFT p90 (s)", 1.0, "Cost against time to first token", 280),
        _chart(plan, "goodput", "goodput (requests/s)", 1.0, "Cost against goodput", 280),
    )


def _point(point: ParetoPoint) -> dict[str, Any]:
    return {
        "design": point.label,
        "series": words.series(point.placement, point.heterogeneous),
        "usd": point.usd_per_mtok_total,
        "hour": point.usd_per_hour,
        "ttft": point.ttft,
        "tpot": point.tpot * 1e3,
        "goodput": point.goodput,
        "slo": "kept" if point.meets_slo else "missed",
    }


def _named(name: str, option: Option, metric: str, scale: float) -> dict[str, Any]:
    latency = {"tpot": option.tpot, "ttft": option.ttft}.get(metric)
    now = latency.p90 * scale if latency else option.goodput
    band = latency.trust.band if latency else option.tpot.trust.band
    return {
        "name": name.partition(",")[0],
        "design": option.label,
        "series": words.series(option.placement, option.heterogeneous),
        "usd": option.usd_per_mtok_total,
        "hour": option.usd_per_hour,
        metric: now,
        "low": now * (1 - band),
        "high": now * (1 + band),
        "trust": words.trust(latency.trust if latency else option.tpot.trust),
    }


def _tooltip(metric: str, title: str, last: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"field": "design", "type": "nominal", "title": "design"},
        {"field": "series", "type": "nominal", "title": "family"},
        {"field": "usd", "type": "quantitative", "format": ".3~g", "title": _COST},
        {"field": "hour", "type": "quantitative", "format": ",.2f", "title": "USD per hour"},
        {"field": metric, "type": "quantitative", "format": ".3~g", "title": title},
        last,
    ]


def _axis(low: float, high: float) -> dict[str, Any]:
    """A logarithmic scale when the values span a decade, else one that need not start at zero."""
    return {"type": "log", "nice": True} if low > 0 and high / low > 12 else {"zero": False, "nice": True}


def _front_layer(plan: Plan, metric: str, title: str, x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    colour = category("series", words.SERIES, scale=palette(words.SERIES, SERIES_COLOURS), legend=_LEGEND)
    shape = category("series", words.SERIES, scale=palette(words.SERIES, _SHAPES), legend=_LEGEND)
    return {
        "data": values([_point(point) for point in plan.pareto]),
        "params": [{"name": f"pick_{metric}", "select": {"type": "point", "fields": ["series"]}, "bind": "legend"}],
        "mark": {"type": "point", "filled": True, "size": 55},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "shape": shape,
            "opacity": {
                "condition": [
                    {"test": {"and": [{"param": f"pick_{metric}"}, "datum.slo === 'kept'"]}, "value": 0.9},
                    {"test": {"param": f"pick_{metric}"}, "value": 0.28},
                ],
                "value": 0.05,
            },
            "tooltip": _tooltip(metric, title, {"field": "slo", "type": "nominal", "title": "SLO"}),
        },
    }


def _named_layers(
    rows: list[dict[str, Any]], metric: str, title: str, x: dict[str, Any], y: dict[str, Any]
) -> list[Any]:
    colour = category("series", words.SERIES, scale=palette(words.SERIES, SERIES_COLOURS), legend=_LEGEND)
    tooltip = _tooltip(metric, title, {"field": "trust", "type": "nominal", "title": "trust"})
    data = values(rows)
    return [
        {
            "data": data,
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {"x": quantity("low", title), "x2": {"field": "high"}, "y": y, "color": colour},
        },
        {
            "data": data,
            "mark": {"type": "point", "size": 190, "strokeWidth": 2.2, "fill": "var(--card)"},
            "encoding": {"x": x, "y": y, "color": colour, "tooltip": tooltip},
        },
        {
            "data": values(rows[:1]),
            "mark": {"type": "text", "dx": 13, "dy": -10, "align": "left", "fontWeight": 600},
            "encoding": {"x": x, "y": y, "text": {"field": "name", "type": "nominal"}},
        },
    ]


def _chart(plan: Plan, metric: str, axis: str, scale: float, title: str, height: int, wide: bool = False) -> Chart:
    points = [_point(point) for point in plan.pareto]
    rows = [_named(name, option, metric, scale) for name, option in story.named_options(plan)]
    seen = [point[metric] for point in points] + [row[metric] for row in rows]
    costs = [point["usd"] for point in points] + [row["usd"] for row in rows]
    x = quantity(metric, axis, scale=_axis(min(seen), max(seen)), axis={"tickCount": 6, "grid": False})
    y = quantity("usd", _COST, scale=_axis(min(costs), max(costs)), axis={"tickCount": 5})
    layers = [_front_layer(plan, metric, axis, x, y), *_named_layers(rows, metric, axis, x, y)]
    limit = words.limit(plan, metric)
    if limit is not None:
        layers = [*marked("x", metric, limit.limit * scale, words.objective(limit)), *layers]
    if metric == "goodput":
        layers = [*marked("x", metric, plan.best.rate, "asked for", "var(--soft)"), *layers]
    better = "right" if metric == "goodput" else "left"
    return Chart(
        key=f"pareto-{metric}",
        title=title,
        caption=f"Lower and further {better} is better; pale points miss the SLO. "
        "Rings: the plan and the best of each family, with their error bands.",
        spec=specification(f"Scatter plot: {axis} across, {_COST} upward", height, layer=layers),
        columns=("design", "family", "USD/h", _COST, axis, "SLO"),
        rows=tuple(
            (p["design"], p["series"], f"{p['hour']:.2f}", f"{p['usd']:.3g}", f"{p[metric]:.3g}", p["slo"])
            for p in points
        ),
        wide=wide,
    )
