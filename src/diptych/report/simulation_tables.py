"""A simulation in a terminal: plain text that stays readable at 80 columns, in a pipe and without colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diptych.metrics.slo import SLO
from diptych.planner.simulated import Latencies, PoolSeen, Simulated
from diptych.report import words
from diptych.report.tables import ROLE_STYLES, table
from diptych.units import format_bytes, format_seconds, format_usd

NAMES = {
    "ttft_prefill": ("TTFT, computed by prefill", "the handoff is hidden"),
    "ttft": ("TTFT, delivered by decode", "the handoff is included"),
    "tpot": ("TPOT", ""),
    "itl": ("ITL, between tokens", "over tokens, not requests"),
    "e2e": ("end to end", ""),
}


def simulation_text(seen: Simulated, written: Sequence[str] = ()) -> Group:
    """Headline, latencies, where the time went, the fleet, the bill, what limits the result, the files written."""
    parts: list[RenderableType] = [
        headline(seen),
        _section("Latency over requests", _latencies(seen)),
        _section("Where the time went", _stages(seen)),
        _section("The fleet over the run", _fleet(seen)),
        _section("Bill and energy", _bill(seen)),
    ]
    if seen.told:
        parts.append(_section("To know", Group(*(Text(f"! {words.sentence(line)}") for line in seen.told))))
    if written:
        parts.append(_section("Written", Group(*(Text(f"  {name}", overflow="fold") for name in written))))
    return Group(*parts)


def _section(title: str, body: RenderableType) -> Group:
    return Group(Text(), Text(title, style="bold"), Padding(body, (0, 0, 0, 2)))


def verdict(seen: Simulated) -> str:
    """`Holds the SLO: goodput 19.2 requests/s`."""
    within = words.percent(seen.attainment)
    inside = f"goodput {words.count(seen.goodput)} requests/s, {within} of the requests inside every limit"
    if not seen.promises:
        return f"{words.count(seen.request_rate)} requests/s served; no SLO to judge them by"
    if seen.holds:
        return f"The SLO holds: {inside}"
    terms = zip(SLO.parse(seen.slo).objectives, seen.promises, strict=True)
    broken = [words.objective(term) for term, promise in terms if not promise.holds]
    return f"The SLO is missed: {inside}; {words.listed(broken)}"


def load(seen: Simulated) -> str:
    """What was asked of the fleet, in one line."""
    came = f"{seen.arrived:,} requests of {seen.workload}"
    pace = f"{seen.concurrency} at a time" if seen.concurrency else f"{words.count(seen.offered)} requests/s"
    lost = f", {seen.refused:,} not served" if seen.refused else ""
    again = f", {seen.retries:,} begun again" if seen.retries else ""
    return f"{came}, {pace}, {format_seconds(seen.duration)} simulated, seed {seen.seed}{lost}{again}"


def headline(seen: Simulated) -> Group:
    """Verdict, design, load, faults."""
    style = "bold green" if seen.holds else "bold red"
    lines = [
        Text(verdict(seen), style=style if seen.promises else "bold"),
        Text(f"{seen.model}: {seen.design}"),
        Text(load(seen)),
    ]
    lines += [Text(f"fault: {fault}", style="yellow") for fault in seen.faults]
    lines += [Text("policy: " + ", ".join(f"{k}={v}" for k, v in seen.policy.items()))] if seen.policy else []
    return Group(*lines)


def _latencies(seen: Simulated) -> Table:
    rows = table("", "mean", "p50", "p90", "p99", "max")
    for metric, (name, note) in NAMES.items():
        if metric == "ttft_prefill" and seen.link is None:
            continue
        if metric not in seen.latencies:
            continue  # a summary from before there was this metric
        title = name.split(",")[0] if seen.link is None else name
        notes = "; ".join(part for part in (note if seen.link else "", limits(seen, metric)) if part)
        rows.add_row(_titled(title, notes), *_quantiles(seen.latencies[metric]))
        if seen.predicted is not None and metric in seen.predicted.latencies:
            said = f"  the plan, at {words.count(seen.predicted.rate)}/s"
            rows.add_row(Text(said, style="dim"), *_quantiles(seen.predicted.latencies[metric]))
    return rows


def _titled(title: str, note: str) -> Text:
    return Text.assemble(title, *(("\n", (note, "dim")) if note else ()))


def limits(seen: Simulated, metric: str) -> str:
    """`p90 < 2 s kept: 99.2 % below` for each objective on a metric."""
    return "; ".join(_limit(seen, metric))


def _limit(seen: Simulated, metric: str) -> Iterator[str]:
    terms = SLO.parse(seen.slo).objectives if seen.slo else ()
    for term, promise in zip(terms, seen.promises, strict=True):
        if term.metric == metric:
            bound = words.objective(term).removeprefix(f"{metric.upper()} ")
            yield f"{bound} {'kept' if promise.holds else 'missed'}: {words.percent(promise.share or 0.0)} below"


def _quantiles(values: Latencies) -> tuple[str, ...]:
    return tuple(seconds(value) for value in (values.mean, values.p50, values.p90, values.p99, values.max))


def seconds(value: float | None) -> str:
    """A duration, or a dash where there is none."""
    return "–" if value is None else format_seconds(value)


def share(value: float | None) -> str:
    """A share in percent, or a dash."""
    return "–" if value is None else words.percent(value)


def _stages(seen: Simulated) -> Table:
    rows = table("", "share", "mean", "p50", "p90", "p99")
    for name, stage in seen.stages.items():
        if name in ("convert", "transfer", "wait") and not stage.mean:
            continue
        rows.add_row(name, share(stage.share), *(seconds(v) for v in (stage.mean, stage.p50, stage.p90, stage.p99)))
    return rows


def _fleet(seen: Simulated) -> Group:
    rows = table("", "workers", "busy", "queue\nmean / max", "running\nmean / max", "KV\nmean / max")
    for pool in seen.pools:
        rows.add_row(
            Text.assemble((str(pool.role), ROLE_STYLES.get(str(pool.role), "")), "\n", (pool.label, "dim")),
            str(pool.workers),
            share(pool.busy),
            pair(pool.queue_mean, pool.queue_max),
            pair(pool.running_mean, pool.running_max),
            f"{share(pool.kv_mean)} / {share(pool.kv_max)}",
        )
    lines = [Text(link_line(seen))] if seen.link else []
    preempted = sum(pool.preemptions for pool in seen.pools)
    lines += [Text(f"{preempted:,} preemptions")] if preempted else []
    return Group(rows, *lines)


def pair(mean: float | None, most: float | None) -> str:
    """`1.2 / 40`."""
    return "–" if mean is None or most is None else f"{words.count(round(mean, 2))} / {words.count(most)}"


def link_line(seen: Simulated) -> str:
    """What crossed the link."""
    link = seen.link
    assert link is not None
    each = f", {format_bytes(link.bytes_per_request)} per request" if link.bytes_per_request else ""
    flight = f", {words.plural(int(link.in_flight_max), 'transfer')} at once seen" if link.in_flight_max else ""
    return (
        f"{link.link}: {format_bytes(link.bytes)}{each}; ports {words.percent(link.use_mean)} used, "
        f"the busiest {words.percent(link.use_max)}{flight}"
    )


def _bill(seen: Simulated) -> Group:
    hours = max(seen.duration, 1e-9)
    energy = f"{words.power(seen.energy_j / hours)} on average"
    if seen.joule_per_output_token is not None:
        energy += f", {seen.joule_per_output_token:.3g} J per output token"
    return Group(Text(bill(seen)), Text(energy))


def bill(seen: Simulated) -> str:
    """`41.20 USD/h, 0.92 USD per million output tokens`; says so when nothing is priced."""
    if not seen.usd:
        return f"{words.plural(seen.accelerators, 'accelerator')}, not priced (--prices BOOK, or usd= in the design)"
    each = f", {format_usd(seen.usd_per_mtok_output)} USD per million output tokens" if seen.usd_per_mtok_output else ""
    return f"{format_usd(seen.usd_per_hour)} USD/h{each}"


def pool_title(pool: PoolSeen) -> str:
    """`prefill: 3 × H100-SXM-80GB tp2`."""
    return f"{pool.role}: {pool.label}"
