"""What a run looked like: latency distributions, load and queues over time, memory, link, workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diptych.metrics.measurements import Floats
from diptych.metrics.slo import SLO
from diptych.metrics.summary import good_requests
from diptych.planner.judge import Judged
from diptych.report import words
from diptych.report.charts import ROLE_COLOURS, Chart, category, marked, palette, quantity, specification, values
from diptych.simulator.faults import FOREVER, LinkSlow, WorkerDown
from diptych.units import format_seconds

_CURVE = np.concatenate([np.linspace(0, 0.95, 96), np.linspace(0.955, 0.999, 45)])
_ROWS = 40
_FAR = 3.0  # limits further out than so many times the longest latency would only squeeze the curve
_TIERS = {
    "kv_hbm": "device, live",
    "kv_cached": "device, cached",
    "kv_dram": "DRAM",
    "kv_nvme": "NVMe",
    "kv_remote": "remote",
}
_DASHES = {"device, live": [1, 0], "device, cached": [6, 3], "DRAM": [2, 2], "NVMe": [8, 3, 2, 3], "remote": [1, 3]}


def latency_charts(judged: Judged) -> tuple[Chart, ...]:
    """Cumulative distributions: TTFT by both definitions, TPOT, end to end."""
    done = judged.run.requests.finished
    taken = {name: getattr(judged.run.requests, name)[done] for name in ("ttft_prefill", "ttft", "tpot", "e2e")}
    delivered = {"delivered by decode": taken["ttft"]}
    both = (
        {"computed by prefill": taken["ttft_prefill"], **delivered}
        if judged.design.boundary
        else {"TTFT": taken["ttft"]}
    )
    charts = (
        _distribution("cdf-ttft", "Time to first token", both, judged.slo, "ttft"),
        _distribution("cdf-tpot", "Time per output token", {"TPOT": taken["tpot"]}, judged.slo, "tpot"),
        _distribution("cdf-e2e", "End to end", {"end to end": taken["e2e"]}, judged.slo, "e2e"),
    )
    return tuple(chart for chart in charts if chart is not None)


_COLOURS = {
    "computed by prefill": "var(--prefill)",
    "delivered by decode": "var(--decode)",
    "TTFT": "var(--colo)",
    "TPOT": "var(--decode)",
    "end to end": "var(--hetero)",
}


def _distribution(key: str, title: str, curves: Mapping[str, Floats], slo: SLO, metric: str) -> Chart | None:
    curves = {name: found[~np.isnan(found)] for name, found in curves.items()}
    if not all(len(found) for found in curves.values()):
        return None
    quantiles = {name: np.quantile(found, _CURVE) for name, found in curves.items()}
    unit, scale = time_unit(max(float(q[-1]) for q in quantiles.values()))
    rows = [
        {"t": _short(value * scale), "q": round(float(q), 4), "what": name, "text": format_seconds(float(value))}
        for name, found in quantiles.items()
        for q, value in zip(_CURVE, found, strict=True)
    ]
    layers: list[dict[str, Any]] = []
    longest = max(float(q[-1]) for q in quantiles.values())
    near = [term for term in slo.of(metric) if term.limit <= _FAR * longest]
    beyond = [words.objective(term) for term in slo.of(metric) if term not in near]
    caption = "Share of finished requests below a latency."
    caption += f" {words.listed(beyond)} lies beyond the drawing." if beyond else ""
    for at, term in enumerate(near):
        layers += marked("x", "t", term.limit * scale, words.objective(term), y=8 + 16 * at)
    layers.append({
        "data": values(rows),
        "mark": {"type": "line", "strokeWidth": 2, "clip": True},
        "encoding": {
            "x": quantity("t", unit, scale={"zero": True, "nice": True}),
            "y": quantity("q", "share of requests", scale={"domain": [0, 1]}, axis={"format": ".0%", "tickCount": 5}),
            "color": category("what", list(curves), legend=None if len(curves) == 1 else {},
                              scale=palette(list(curves), [_COLOURS[name] for name in curves])),
            "tooltip": [{"field": "what", "type": "nominal", "title": "latency"},
                        {"field": "q", "type": "quantitative", "format": ".1%", "title": "share below"},
                        {"field": "text", "type": "nominal", "title": "seconds"}],
        },
    })  # fmt: skip
    if layers[-1]["encoding"]["color"]["legend"] == {}:
        del layers[-1]["encoding"]["color"]["legend"]
    asked = (0.1, 0.5, 0.9, 0.95, 0.99)
    table = [
        (name, *(format_seconds(float(v)) for v in np.quantile(found, asked)), format_seconds(float(found.max())))
        for name, found in curves.items()
    ]
    return Chart(
        key, title, caption,
        specification(f"Cumulative distribution of {title.lower()}", 230, layer=layers),
        ("latency", *(f"p{q * 100:g}" for q in asked), "max"), tuple(table), wide=metric == "e2e",
    )  # fmt: skip


def time_unit(largest: float) -> tuple[str, float]:
    """The unit of an axis that ends at `largest` seconds, and what seconds are multiplied by."""
    if largest < 2.0:
        return "milliseconds", 1e3
    return ("seconds", 1.0) if largest < 600 else ("minutes", 1 / 60)


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def load_charts(judged: Judged) -> tuple[Chart, ...]:
    """Over time: requests per second, queues, running, busy."""
    return (_throughput(judged), *_roles(judged))


def _throughput(judged: Judged, bins: int = 60) -> Chart:
    requests = judged.run.requests
    begin = float(requests.arrival.min())
    end = max(float(np.nanmax(requests.finish)), begin + 1e-9)
    edges = np.linspace(begin, end, bins + 1)
    width = float(edges[1] - edges[0])
    good = good_requests(requests, judged.slo)
    counted = {
        "arrived": np.histogram(requests.arrival, edges)[0] / width,
        "finished": np.histogram(requests.finish[requests.finished], edges)[0] / width,
        "inside the SLO": np.histogram(requests.finish[good], edges)[0] / width,
    }
    if not judged.slo.objectives:
        del counted["inside the SLO"]
    colours = {"arrived": "var(--headroom-strong)", "finished": "var(--hetero)", "inside the SLO": "var(--good)"}
    unit, scale = time_unit(end)
    middles = (edges[:-1] + edges[1:]) / 2
    rows = [
        {"t": _short(t * scale), "n": _short(n), "what": name}
        for name, rates in counted.items()
        for t, n in zip(middles, rates, strict=True)
    ]
    layer = _line(rows, quantity("n", "requests/s"), unit, {name: colours[name] for name in counted}, ".3~g")
    events = _events(judged, scale)
    return Chart(
        "throughput",
        "Requests per second",
        f"Arrivals and ends, counted over {format_seconds(width)} at a time.",
        specification("Lines: requests per second over time", 230, layer=[*events, layer]),
        (f"time ({unit})", *counted),
        tuple((f"{t * scale:.4g}", *(f"{rates[at]:.3g}" for rates in counted.values())) for at, t in enumerate(middles)
              if at % max(bins // _ROWS, 1) == 0),
    )  # fmt: skip


def _roles(judged: Judged) -> tuple[Chart, ...]:
    series = judged.run.series
    roles = [str(pool.role) for pool in judged.design.pools]
    queues = {role: series.values[f"{role}_queue"] for role in roles if f"{role}_queue" in series.values}
    running = {role: series.values[f"{role}_running"] for role in roles if f"{role}_running" in series.values}
    busy = {role: _busy(judged, role) for role in queues}
    colours = {role: ROLE_COLOURS[role] for role in roles}
    told = (
        (
            "queues",
            "Waiting by role",
            "Requests queued before the pool, and handoffs that wait for room in it.",
            queues,
        ),
        ("running", "Running by role", "Requests in the batches of the pool.", running),
    )
    caption = "Share of the pool's time spent in engine steps."
    events = _events(judged, time_unit(float(series.time[-1]) if len(series.time) else 0.0)[1])
    drawn = [
        _over_time(key, title, text, series.time, lines, "requests", colours, ".3~g", events)
        for key, title, text, lines in told
    ]
    return (*drawn, _over_time("busy", "Busy by role", caption, series.time, busy, "busy", colours, ".2~p", events))


def _busy(judged: Judged, role: str) -> Floats:
    """Share of time in steps between two samples, of the workers there were."""
    series = judged.run.series
    spent = np.diff(series.values[f"{role}_busy_s"], prepend=0.0)
    step = np.diff(series.time, prepend=series.time[:1] - 1.0)
    workers = sum(1 for worker in judged.run.workers if worker.role == role)
    return np.clip(spent / np.maximum(step, 1e-9) / max(workers, 1), 0.0, 1.0)


def _over_time(
    key: str,
    title: str,
    caption: str,
    time: Floats,
    lines: Mapping[str, Floats],
    unit: str,
    colours: Mapping[str, str],
    form: str,
    events: Sequence[dict[str, Any]] = (),
) -> Chart:
    clock, scale = time_unit(float(time[-1]) if len(time) else 0.0)
    rows = [
        {"t": _short(t * scale), "n": _short(n), "what": name}
        for name, found in lines.items()
        for t, n in zip(time, found, strict=True)
        if n == n
    ]
    y = quantity("n", unit, axis={"format": form, "tickCount": 5})
    layer = _line(rows, y, clock, colours, form)
    return Chart(
        key, title, caption, specification(f"Lines: {title.lower()} over time", 200, layer=[*events, layer]),
        (f"time ({clock})", *lines), tuple(_sampled(time * scale, lines)),
    )  # fmt: skip


def _events(judged: Judged, scale: float) -> list[dict[str, Any]]:
    """A dashed line where a fault or a change begins, and where a fault ends."""
    times = {fault.at for fault in judged.faults}
    passing = (fault for fault in judged.faults if isinstance(fault, WorkerDown | LinkSlow))
    times |= {fault.at + fault.seconds for fault in passing if fault.seconds != FOREVER}
    end = float(np.nanmax(judged.run.requests.finish))
    rows = [{"t": _short(at * scale)} for at in sorted(times) if at <= end]
    if not rows:
        return []
    mark = {"type": "rule", "strokeDash": [3, 3], "strokeWidth": 1, "color": "var(--bad)"}
    return [{"data": values(rows), "mark": mark, "encoding": {"x": {"field": "t", "type": "quantitative"}}}]


def _line(
    rows: list[dict[str, Any]], y: dict[str, Any], clock: str, colours: Mapping[str, str], form: str
) -> dict[str, Any]:
    names = list(colours)
    return {
        "data": values(rows),
        "mark": {"type": "line", "interpolate": "monotone", "strokeWidth": 1.6},
        "encoding": {
            "x": quantity("t", clock, axis={"tickCount": 6}),
            "y": y,
            "color": category("what", names, scale=palette(names, list(colours.values()))),
            "tooltip": [
                {"field": "what", "type": "nominal", "title": "series"},
                {"field": "t", "type": "quantitative", "title": clock, "format": ".4~g"},
                {"field": "n", "type": "quantitative", "title": y["title"], "format": form},
            ],
        },
    }


def _sampled(time: Floats, lines: Mapping[str, Floats]) -> list[tuple[str, ...]]:
    every = max(len(time) // _ROWS, 1)
    return [
        (f"{time[at]:.4g}", *(f"{found[at]:.4g}" if found[at] == found[at] else "–" for found in lines.values()))
        for at in range(0, len(time), every)
    ]


def memory_charts(judged: Judged) -> tuple[Chart, ...]:
    """KV blocks in use by role and tier, and the link's use."""
    series = judged.run.series
    lines: dict[str, tuple[str, str, Floats]] = {}
    for pool in judged.design.pools:
        for name, tier in _TIERS.items():
            found = series.values.get(f"{pool.role}_{name}")
            if found is not None and (name == "kv_hbm" or np.nanmax(found, initial=0.0) > 0):
                lines[f"{pool.role}: {tier}"] = (str(pool.role), tier, found)
    charts = [_occupancy(judged, lines)]
    if "kv_bytes_moved" in series.values:
        charts.append(_link(judged))
    return tuple(charts)


def _occupancy(judged: Judged, lines: Mapping[str, tuple[str, str, Floats]]) -> Chart:
    time = judged.run.series.time
    clock, scale = time_unit(float(time[-1]) if len(time) else 0.0)
    rows = [
        {"t": _short(t * scale), "n": _short(n), "role": role, "tier": tier}
        for role, tier, found in lines.values()
        for t, n in zip(time, found, strict=True)
        if n == n
    ]
    roles = [str(pool.role) for pool in judged.design.pools]
    tiers = list(dict.fromkeys(tier for _, tier, _ in lines.values()))
    dash = category("tier", tiers, scale={"domain": tiers, "range": [_DASHES[tier] for tier in tiers]})
    if len(tiers) == 1:
        dash["legend"] = None
    layer = {
        "data": values(rows),
        "mark": {"type": "line", "interpolate": "monotone", "strokeWidth": 1.6},
        "encoding": {
            "x": quantity("t", clock, axis={"tickCount": 6}),
            "y": quantity("n", "share of the tier", axis={"format": ".2~p", "tickCount": 5}),
            "color": category("role", roles, scale=palette(roles, [ROLE_COLOURS[role] for role in roles])),
            "strokeDash": dash,
            "tooltip": [{"field": "role", "type": "nominal"}, {"field": "tier", "type": "nominal"},
                        {"field": "n", "type": "quantitative", "format": ".1%", "title": "in use"}],
        },
    }  # fmt: skip
    return Chart(
        "kv", "KV in each tier", "Share of the blocks that live sequences hold; cached blocks are free for whoever needs them.",
        specification("Lines: KV occupancy by role and tier over time", 200, layer=[layer]),
        (f"time ({clock})", *lines), tuple(_sampled(time * scale, {name: found for name, (_, _, found) in lines.items()})),
    )  # fmt: skip


def _link(judged: Judged) -> Chart:
    """Bytes per second between the pools over what the narrower side's ports carry."""
    run, series = judged.run, judged.run.series
    sides = [[link.bandwidth for link in run.links if link.name.endswith(end)] for end in ("out", "in")]
    capacity = max(min(sum(side) for side in sides), 1.0)
    moved = np.maximum(np.diff(series.values["kv_bytes_moved"], prepend=0.0), 0.0)
    step = np.maximum(np.diff(series.time, prepend=series.time[:1] - 1.0), 1e-9)
    lines = {"link": moved / step / capacity}
    ports = f"{capacity / 1e9:.3g} GB/s, the narrower side's ports together"
    caption = f"KV put on the link, as a share of {ports}. Above 100 % it queues."
    return _over_time(
        "link", "Link use", caption, series.time, lines, "of the ports", {"link": ROLE_COLOURS["link"]}, ".2~p"
    )


def worker_chart(judged: Judged) -> Chart:
    """How busy each worker was."""
    rows: list[dict[str, Any]] = [
        {"who": f"{worker.role} {worker.index}", "busy": worker.busy / worker.seconds if worker.seconds else 0.0,
         "role": worker.role, "what": worker.accelerator, "steps": worker.steps}
        for worker in judged.run.workers
    ]  # fmt: skip
    shown = _fewer(rows)
    roles = list(dict.fromkeys(row["role"] for row in shown))
    layer = {
        "data": values(shown),
        "mark": {"type": "bar", "height": {"band": 0.66}},
        "encoding": {
            "y": category("who", [row["who"] for row in shown]),
            "x": quantity("busy", None, scale={"domain": [0, 1]}, axis={"format": ".0%", "tickCount": 5}),
            "color": category("role", roles, legend=None, scale=palette(roles, [ROLE_COLOURS[role] for role in roles])),
            "tooltip": [{"field": "who", "type": "nominal", "title": "worker"},
                        {"field": "what", "type": "nominal", "title": "accelerator"},
                        {"field": "busy", "type": "quantitative", "format": ".1%"},
                        {"field": "steps", "type": "quantitative", "format": ",", "title": "steps"}],
        },
    }  # fmt: skip
    rest = f" The busiest and the idlest of {len(rows)} are drawn." if len(shown) < len(rows) else ""
    return Chart(
        "workers", "Busy by worker", f"Share of its paid time that a worker spent in steps.{rest}",
        specification("Bars: busy share of each worker", max(24 * len(shown), 60), layer=[layer]),
        ("worker", "accelerator", "busy", "steps"),
        tuple((row["who"], row["what"], words.percent(row["busy"]), f"{row['steps']:,}") for row in rows),
        wide=True,
    )  # fmt: skip


def _fewer(rows: Sequence[dict[str, Any]], most: int = 24) -> Sequence[dict[str, Any]]:
    if len(rows) <= most:
        return rows
    order = sorted(rows, key=lambda row: -row["busy"])
    kept = {row["who"] for row in (*order[: most // 2], *order[-most // 2 :])}
    return [row for row in rows if row["who"] in kept]
