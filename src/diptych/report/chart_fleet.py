"""What the fleet costs, how busy it is, where its TTFT goes, what fills its memory."""

from __future__ import annotations

from typing import Any

from diptych.planner.plan import BoundaryPlan, Option, Plan, PoolPlan
from diptych.report import story, words
from diptych.report.charts import ROLE_COLOURS, Chart, category, marked, palette, quantity, specification, values
from diptych.units import GB, format_bandwidth, format_bytes, format_seconds, format_usd

_TTFT_COLOURS = {
    "wait": "var(--headroom-strong)",
    "prefill": "var(--prefill)",
    "conversion": "var(--transient)",
    "transfer": "var(--hinge)",
    "first step": "var(--decode)",
}
_MEMORY_COLOURS = {
    "weights": "var(--weights)",
    "KV in use": "var(--kv)",
    "transient peak": "var(--transient)",
    "activations and reserve": "var(--activations)",
    "free for KV": "var(--headroom)",
}
_LABELS = {"labelLimit": 190, "labelExpr": "split(datum.label, ' | ')", "labelLineHeight": 15}


def fleet_charts(plan: Plan) -> tuple[Chart, ...]:
    """Cost by role, busy shares, the parts of TTFT, memory by role."""
    charts = (_cost(plan), _utilisation(plan), _ttft(plan), _memory(plan))
    return tuple(chart for chart in charts if chart is not None)


def _stacked(rows: list[dict[str, Any]], part: str, colours: dict[str, str], x: dict[str, Any], y: dict[str, Any],
             tooltip: list[dict[str, Any]]) -> dict[str, Any]:  # fmt: skip
    names = [name for name in colours if any(row[part] == name for row in rows)]
    return {
        "data": values(rows),
        "mark": {"type": "bar", "height": {"band": 0.62}},
        "encoding": {
            "x": x,
            "y": y,
            "color": category(part, names, scale=palette(names, [colours[name] for name in names])),
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": tooltip,
        },
    }


def _name(name: str) -> str:
    """A row label on two lines where it is long."""
    first, _, rest = name.partition(", ")
    return f"{first} | {rest}" if rest else first.replace("best homogeneous ", "best homogeneous | ")


def _cost(plan: Plan) -> Chart | None:
    if not plan.best.usd_per_hour:
        return None
    named = [(_name(name), option) for name, option in story.named_options(plan)]
    order = [name for name, _ in named]
    rows: list[dict[str, Any]] = [
        {"fleet": name, "role": str(pool.role), "usd": pool.usd_per_hour, "what": words.pool_line(pool), "order": index}
        for name, option in named
        for index, pool in enumerate(option.pools)
    ]
    totals = [{"fleet": name, "usd": o.usd_per_hour, "text": format_usd(o.usd_per_hour)} for name, o in named]
    y = category("fleet", order, axis=_LABELS)
    tooltip = [
        {"field": "role", "type": "nominal"},
        {"field": "what", "type": "nominal", "title": "workers"},
        {"field": "usd", "type": "quantitative", "format": ",.2f", "title": "USD per hour"},
    ]
    roles = {role: colour for role, colour in ROLE_COLOURS.items() if role != "link"}
    layers = [
        _stacked(rows, "role", roles, quantity("usd", "USD per hour", stack="zero", axis={"tickCount": 5}), y, tooltip),
        {
            "data": values(totals),
            "mark": {"type": "text", "align": "left", "dx": 5},
            "encoding": {"x": quantity("usd", None), "y": y, "text": {"field": "text", "type": "nominal"}},
        },
    ]
    return Chart(
        "cost",
        "What an hour costs",
        "By role, at the same load and SLO. Whole instances are paid for, idle accelerators included.",
        specification("Stacked bars: USD per hour of each role, for each fleet", 44 * len(named), layer=layers),
        ("fleet", "role", "workers", "USD/h"),
        tuple((_plain(r["fleet"]), r["role"], r["what"], format_usd(r["usd"])) for r in rows),
    )


def _plain(name: str) -> str:
    return name.replace(" | ", " ") if name.startswith("best") else name.replace(" | ", ", ")


def _stages(option: Option) -> list[tuple[str, float, str]]:
    stages = [(str(pool.role), pool.utilisation, _pool_load(pool)) for pool in option.pools]
    if option.boundary is not None:
        stages.insert(1, ("link", option.boundary.utilisation, _link_load(option.boundary)))
    return stages


def _pool_load(pool: PoolPlan) -> str:
    return f"carries {words.count(pool.capacity)} requests/s at the SLO's knee"


def _link_load(link: BoundaryPlan) -> str:
    least, path = format_bandwidth(link.required_bandwidth), format_bandwidth(link.bandwidth)
    return f"{least} would do; the path gives {path}"


def _utilisation(plan: Plan) -> Chart:
    stages = _stages(plan.best)
    rows: list[dict[str, Any]] = [
        {"stage": f"{name} | {words.percent(busy)} busy", "busy": min(busy, 1.0), "why": why, "full": 1}
        for name, busy, why in stages
    ]
    order = [row["stage"] for row in rows]
    colours = [ROLE_COLOURS[name] for name, _, _ in stages]
    y = category("stage", order, axis=_LABELS)
    bar = {"type": "bar", "height": {"band": 0.62}}
    layers = [
        {
            "data": values(rows),
            "mark": {**bar, "color": "var(--track)"},
            "encoding": {"x": quantity("full", None), "y": y},
        },
        {
            "data": values(rows),
            "mark": bar,
            "encoding": {
                "x": quantity("busy", None, scale={"domain": [0, 1]}, axis={"format": ".0%", "tickCount": 5}),
                "y": y,
                "color": category("stage", order, legend=None, scale=palette(order, colours)),
                "tooltip": [{"field": "why", "type": "nominal", "title": "load"}],
            },
        },
    ]
    return Chart(
        "utilisation",
        "How busy each stage is",
        "Share of what the stage carries inside the SLO. The rest is idle: paid for, unused.",
        specification("Bars: busy share of every stage", 44 * len(rows), layer=layers),
        ("stage", "busy", "idle", "detail"),
        tuple((name, words.percent(busy), words.percent(1 - min(busy, 1)), why) for name, busy, why in stages),
    )


def _ttft(plan: Plan) -> Chart | None:
    named = [(_name(name), option) for name, option in story.named_options(plan) if len(option.ttft_parts) > 1]
    if not named:
        return None
    order = [name for name, _ in named]
    rows: list[dict[str, Any]] = [
        {"fleet": name, "part": part, "ms": seconds * 1e3, "text": format_seconds(seconds), "order": index}
        for name, option in named
        for index, (part, seconds) in enumerate(option.ttft_parts.items())
    ]
    colours = _TTFT_COLOURS | {row["part"]: "var(--faint)" for row in rows if row["part"] not in _TTFT_COLOURS}
    y = category("fleet", order, axis=_LABELS)
    tooltip = [
        {"field": "fleet", "type": "nominal"},
        {"field": "part", "type": "nominal"},
        {"field": "text", "type": "nominal", "title": "mean"},
    ]
    ends = [_p90(name, option) for name, option in named]
    layers = [
        _stacked(
            rows, "part", colours, quantity("ms", "milliseconds", stack="zero", axis={"tickCount": 5}), y, tooltip
        ),
        {
            "data": values(ends),
            "mark": {"type": "rule", "strokeWidth": 1.5, "color": "var(--ink)"},
            "encoding": {"x": quantity("low", None), "x2": {"field": "high"}, "y": y},
        },
        {
            "data": values(ends),
            "mark": {"type": "point", "shape": "diamond", "filled": True, "size": 70, "color": "var(--ink)"},
            "encoding": {
                "x": quantity("p90", None),
                "y": y,
                "tooltip": [{"field": "text", "type": "nominal", "title": "p90"}],
            },
        },
    ]
    limit = words.limit(plan, "ttft")
    if limit is not None:
        layers += marked("x", "p90", limit.limit * 1e3, words.objective(limit))
    return Chart(
        "ttft",
        "Where the time to first token goes",
        "Mean of each part; the diamond is the p90 of the first decoded token, with its error band.",
        specification("Stacked bars: parts of TTFT for each fleet", 44 * len(named), layer=layers),
        ("fleet", "part", "mean"),
        tuple((_plain(r["fleet"]), r["part"], r["text"]) for r in rows),
    )


def _p90(name: str, option: Option) -> dict[str, Any]:
    latency = option.ttft_decode
    now, band = latency.p90 * 1e3, latency.trust.band
    text = f"{format_seconds(latency.p90)} {words.trust(latency.trust)}"
    return {"fleet": name, "p90": now, "low": now * (1 - band), "high": now * (1 + band), "text": text}


def _memory_parts(pool: PoolPlan) -> dict[str, float]:
    """Bytes of one worker's HBM by use; the parts add up to all of it."""
    live = min(pool.kv_bytes, pool.kv_capacity)
    transient = max(0.0, min(pool.kv_peak, pool.kv_capacity) - live)
    return {
        "weights": pool.weight_bytes,
        "KV in use": live,
        "transient peak": transient,
        "activations and reserve": max(0.0, pool.memory_bytes - pool.weight_bytes - pool.kv_capacity),
        "free for KV": pool.kv_capacity - live - transient,
    }


def _memory(plan: Plan) -> Chart:
    rows: list[dict[str, Any]] = [
        {"role": str(pool.role), "part": part, "gb": size / GB, "text": format_bytes(size), "order": index}
        for pool in plan.best.pools
        for index, (part, size) in enumerate(_memory_parts(pool).items())
        if size > 0
    ]
    order = [str(pool.role) for pool in plan.best.pools]
    tooltip = [
        {"field": "role", "type": "nominal"},
        {"field": "part", "type": "nominal"},
        {"field": "text", "type": "nominal", "title": "bytes"},
    ]
    x = quantity("gb", "GB of one worker", stack="zero", axis={"tickCount": 6})
    layer = _stacked(rows, "part", _MEMORY_COLOURS, x, category("role", order), tooltip)
    return Chart(
        "memory",
        "What fills a worker's memory",
        "The transient peak is KV held twice around a handoff: the source until released, the destination once reserved.",
        specification("Stacked bars: memory of one worker of each role", 44 * len(order), layer=[layer]),
        ("role", "part", "bytes"),
        tuple((r["role"], r["part"], r["text"]) for r in rows),
    )
