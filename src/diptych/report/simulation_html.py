"""The page of a simulation: one HTML file under its own strict policy, in the style of the plan's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from diptych.planner.judge import Judged
from diptych.planner.simulated import Latencies, Simulated
from diptych.report import words
from diptych.report.chart_simulation import latency_charts, load_charts, memory_charts, worker_chart
from diptych.report.chart_timeline import timeline_charts
from diptych.report.charts import CONFIG, Chart
from diptych.report.html import Fact, asset, content_policy, embedded_json, environment, scripts
from diptych.report.simulation_tables import NAMES, bill, limits, link_line, load, pair, seconds, share, verdict
from diptych.units import format_usd


def render(judged: Judged, seen: Simulated, command: str = "") -> str:
    """The whole page. `command` is the line that makes the same simulation again."""
    code, style = scripts(), asset("assets/report.css")
    groups = _charts(judged)
    specs = {chart.key: chart.spec for group in groups.values() for chart in group}
    return (
        environment()
        .get_template("simulation.html.j2")
        .render(
            seen=seen,
            command=command,
            policy=content_policy(code, style),
            style=Markup(style),  # noqa: S704 our own file, by its hash in the policy
            scripts=[Markup(script) for script in code],  # noqa: S704 likewise
            charts_json=embedded_json({"config": CONFIG, "specs": specs}),
            charts=groups,
            verdict=verdict(seen),
            load=load(seen),
            facts=tuple(_facts(seen)),
            latencies=tuple(_latencies(seen)),
            pools=tuple(_pools(seen)),
            stages=tuple(_stages(seen)),
            asked=tuple(_asked(seen)),
        )
    )


def _charts(judged: Judged) -> dict[str, tuple[Chart, ...]]:
    if not len(judged.run.requests):
        return {"latency": (), "load": (), "memory": (), "stages": ()}
    return {
        "latency": latency_charts(judged),
        "stages": timeline_charts(judged),
        "load": load_charts(judged),
        "memory": (*memory_charts(judged), worker_chart(judged)),
    }


def _facts(seen: Simulated) -> Iterator[Fact]:
    inside = f"{words.percent(seen.attainment)} of the requests inside every limit" if seen.promises else "no SLO given"
    yield Fact("Goodput", f"{words.count(seen.goodput)} req/s", inside)
    for metric in ("ttft", "tpot"):
        at90 = seen.latencies[metric].p90
        yield Fact(f"{metric.upper()} p90", seconds(at90), limits(seen, metric) or _median(seen.latencies[metric]))
    yield Fact(
        "End to end p90", seconds(seen.latencies["e2e"].p90), limits(seen, "e2e") or _median(seen.latencies["e2e"])
    )
    if seen.usd:
        each = (
            f"{format_usd(seen.usd_per_mtok_output)} USD per million output tokens" if seen.usd_per_mtok_output else ""
        )
        yield Fact("Bill", f"{format_usd(seen.usd_per_hour)} USD/h", each)
    else:
        yield Fact("Not priced", words.plural(seen.accelerators, "accelerator"), "")
    power = words.power(seen.energy_j / max(seen.duration, 1e-9))
    joule = f"{seen.joule_per_output_token:.3g} J per output token" if seen.joule_per_output_token is not None else ""
    yield Fact("Power", power, joule)


def _median(values: Latencies) -> str:
    return f"p50 {seconds(values.p50)}, p99 {seconds(values.p99)}"


def _latencies(seen: Simulated) -> Iterator[tuple[str, str, tuple[str, ...], bool]]:
    """(name, note, numbers, whether a prediction) by row."""
    for metric, (name, note) in NAMES.items():
        if metric == "ttft_prefill" and seen.link is None:
            continue
        title = name if seen.link else name.split(",")[0]
        notes = "; ".join(part for part in (note if seen.link else "", limits(seen, metric)) if part)
        yield title, notes, _numbers(seen.latencies[metric]), False
        if seen.predicted is not None and metric in seen.predicted.latencies:
            yield (
                "the plan said",
                f"at {words.count(seen.predicted.rate)} requests/s",
                _numbers(seen.predicted.latencies[metric]),
                True,
            )


def _numbers(values: Latencies) -> tuple[str, ...]:
    return tuple(seconds(v) for v in (values.mean, values.p50, values.p90, values.p99, values.max))


def _pools(seen: Simulated) -> Iterator[tuple[Any, tuple[str, ...]]]:
    for pool in seen.pools:
        yield (
            pool,
            (
                str(pool.workers),
                share(pool.busy),
                pair(pool.queue_mean, pool.queue_max),
                pair(pool.running_mean, pool.running_max),
                f"{share(pool.kv_mean)} / {share(pool.kv_max)}",
                f"{pool.preemptions:,}",
                format_usd(pool.usd) if seen.usd else "–",
            ),
        )


def _stages(seen: Simulated) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, stage in seen.stages.items():
        if stage.mean or name in ("queue", "prefill", "decode"):
            yield name, (share(stage.share), *(seconds(v) for v in (stage.mean, stage.p50, stage.p90, stage.p99)))


def _asked(seen: Simulated) -> Iterator[tuple[str, str]]:
    yield "model", seen.model
    yield "design", seen.design
    yield "workload", f"{seen.workload} ({seen.source})" if seen.source else seen.workload
    yield "load", load(seen)
    yield "SLO", seen.slo or "none"
    for fault in seen.faults:
        yield "fault", fault
    if seen.policy:
        yield "policy", ", ".join(f"{name}={value}" for name, value in seen.policy.items())
    yield "bill", bill(seen)
    if seen.link is not None:
        yield "link", link_line(seen)
    for known in seen.estimates:
        outside = ", extrapolated" if known.outside_measured else ""
        yield f"{known.role} steps", f"{known.basis} ± {words.percent(known.band)}{outside}: {known.worker}"
