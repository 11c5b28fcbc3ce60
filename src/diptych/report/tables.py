"""The plan in a terminal: plain text that stays readable at 80 columns, in a pipe and without colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diptych.planner.plan import Latency, Option, Plan, PoolPlan, Verification
from diptych.report import story, words
from diptych.report.terminal_plot import pareto_plot
from diptych.report.verified import counted, verified_rows
from diptych.units import format_bandwidth, format_seconds, format_usd

ROLE_STYLES = {"prefill": "blue", "decode": "yellow", "link": "magenta", "colocated": "cyan"}
MOST_ROWS = 3


def plan_text(plan: Plan, written: Sequence[str] = (), plot: bool = True) -> Group:
    """Headline, fleet, latencies, comparison, Pareto front, warnings and the files written."""
    parts: list[RenderableType] = [
        _headline(plan),
        _section("The fleet", _fleet(plan.best)),
        _section("Bill and latency", _numbers(plan)),
        _section(f"Compared: each {story.common(plan)} (latencies p90)", _compared(plan)),
    ]
    if plan.verification is not None:
        parts.append(_section("Simulated", _verified(plan.verification)))
    if plot and len(plan.pareto) > 1 and plan.best.usd_per_hour:
        parts.append(_section("USD per million tokens against TPOT p90", Text(pareto_plot(plan))))
    parts += [_warning(advice) for advice in story.warnings(plan)]
    parts.append(_considered(plan))
    if written:
        parts.append(_section("Written", Group(*(Text(f"  {name}", overflow="fold") for name in written))))
    return Group(*parts)


def table(*columns: str, text: Iterable[str] = ()) -> Table:
    """A light table: the first column is text, the others are numbers unless named in `text`."""
    left = set(text)
    result = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style="dim")
    for index, name in enumerate(columns):
        is_text = index == 0 or name in left
        result.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    return result


def _section(title: str, body: RenderableType) -> Group:
    return Group(Text(), Text(title, style="bold"), Padding(body, (0, 0, 0, 2)))


def _headline(plan: Plan) -> Group:
    return Group(
        Text(story.headline(plan), style="bold green"),
        Text(words.sentence(f"{story.bill(plan)}, {story.purpose(plan)}")),
        Text(words.sentence(plan.verdict.reason)),
    )


def _fleet(best: Option) -> Table:
    rows = table("", "what", "USD/h", "busy", "idle", text=("what",))
    for pool in best.pools:
        if pool is not best.pools[0] and best.boundary is not None and rows.row_count == 1:
            _add_link(rows, best)
        what = f"{words.pool_line(pool)}\n{_formats(pool)}"
        busy, idle = words.percent(pool.utilisation), words.percent(pool.idle_share)
        rows.add_row(_role(str(pool.role)), Text(what), words.money(pool.usd_per_hour), busy, idle)
    return rows


def _add_link(rows: Table, best: Option) -> None:
    link = best.boundary
    assert link is not None
    least = f"{format_bandwidth(link.required_bandwidth)} would do of {format_bandwidth(link.bandwidth)}"
    local = f"; prompts below {link.local_below:,} tokens stay local" if link.local_below else ""
    what = f"{link.link}: {link.ownership}, KV {words.wire(link)}\n{least}{local}"
    idle = words.percent(max(0.0, 1 - link.utilisation))
    rows.add_row(_role("link"), Text(what), "", words.percent(link.utilisation), idle)


def _role(name: str) -> Text:
    return Text(name, style=ROLE_STYLES.get(name, ""))


def _formats(pool: PoolPlan) -> str:
    rented = "".join(f"\n{line}" for member in pool.members if (line := words.rented(member)))
    return f"{words.pool_formats(pool)}, {pool.members[0].engine}, {words.short_trust(pool.trust)}{rented}"


def _numbers(plan: Plan) -> Group:
    best = plan.best
    costs = (
        f"{format_usd(best.usd_per_hour)} USD/h; per million tokens: {format_usd(best.usd_per_mtok_output)} output, "
        f"{format_usd(best.usd_per_mtok_input)} input, {format_usd(best.usd_per_mtok_total)} all"
    )
    bill = [Text(costs)] if best.usd_per_hour else []
    spare = f"{story.spare(plan)}; {words.size(best)}, {words.power(best.power_w)}"
    latencies = (best.ttft, best.ttft_decode, best.tpot, best.e2e)
    outside = any(latency.trust.outside_measured for latency in latencies)
    note = [Text("* beyond what was measured", style="dim")] if outside else []
    return Group(*bill, Text(spare), Text(), _latencies(plan), *note)


def _latencies(plan: Plan) -> Table:
    best = plan.best
    rows = table("", "mean", "p50", "p90", "p99", "floor")
    named = [("TTFT", "ttft", best.ttft), ("TPOT", "tpot", best.tpot), ("end to end", "e2e", best.e2e)]
    if best.boundary is not None:
        named.insert(1, ("TTFT after the handoff", "", best.ttft_decode))
    for name, metric, latency in named:
        notes = "; ".join(note for note in (_limit(plan, metric), words.short_trust(latency.trust)) if note)
        rows.add_row(Text.assemble(name, "\n", (notes, "dim")), *_quantiles(latency))
    return rows


def _quantiles(latency: Latency) -> tuple[str, ...]:
    return tuple(format_seconds(v) for v in (latency.mean, latency.p50, latency.p90, latency.p99, latency.floor))


def _limit(plan: Plan, metric: str) -> str:
    term = words.limit(plan, metric)
    if term is None:
        return ""
    return words.objective(term).removeprefix(f"{metric.upper()} ")


def _compared(plan: Plan) -> Table:
    """The answer and the baselines, always; then the next best designs up to `MOST_ROWS` runners-up."""
    rows = table("fleet", "USD/h", "USD/Mtok\noutput", "TTFT", "TPOT", story.gain_title(plan).replace(" ", "\n"))
    for name, option in story.named_options(plan):
        _add_option(rows, name, option, plan)
    for other in story.runners_up(plan)[:MOST_ROWS]:
        _add_option(rows, "runner-up", other.option, plan)
    return rows


def _add_option(rows: Table, name: str, option: Option, plan: Plan) -> None:
    lines = Text(name, style="bold" if option == plan.best else "")
    for line in words.fleet_lines(option, brief=True):
        lines.append(f"\n{line}", style="dim")
    rows.add_row(
        lines,
        words.money(option.usd_per_hour),
        words.money(option.usd_per_mtok_output),
        format_seconds(option.ttft.p90),
        format_seconds(option.tpot.p90),
        story.gain(plan, option),
    )


def _verified(verification: Verification) -> Group:
    rows = table("finalist", "USD/h", "TTFT p90\nplan / seen", "TPOT p90\nplan / seen", "inside\nthe SLO")
    found = verified_rows(verification)
    for row in found:
        name = Text.assemble(row.label, "\n", (row.fate, "dim"))
        rows.add_row(name, words.money(row.usd_per_hour), row.ttft, row.tpot, row.inside)
    told = [Text(words.sentence(row.reason)) for row in found if row.reason]
    return Group(Text(words.sentence(counted(verification))), Text(), rows, *told)


def _warning(advice: story.Advice) -> Group:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in (("Why", advice.why), ("Fix", advice.fix)):
        if text:
            grid.add_row(Text(name, style="dim"), Text(text))
    return Group(Text(), Text(f"! {advice.what}", style="yellow"), Padding(grid, (0, 0, 0, 2)))


def _considered(plan: Plan) -> Group:
    space = plan.space
    sized = f", {space.sized:,} sized" if space.sized else ""
    line = (
        f"{words.big(space.cartesian)} designs, {words.big(space.effective)} possible{sized}; "
        f"prices: {story.prices(plan)}"
    )
    return Group(Text(), Text(line, style="dim"))
