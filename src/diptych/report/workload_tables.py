"""A workload in a terminal: lengths, arrivals, prefix reuse, regime, doubts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diptych.report.words import percent
from diptych.units import format_seconds
from diptych.workload.summary import PERCENTILES

_NONE = "–"
_COLUMNS = ("mean", *(f"p{percent}" for percent in PERCENTILES), "max")


def workload_text(summary: Mapping[str, Any]) -> Group:
    """The document of `workload.summary.summarise` as text for people."""
    count = f"{summary['requests']:,} requests; " if summary["requests"] else ""
    parts: list[RenderableType] = [
        Text.assemble((summary["name"], "bold"), f"  {count}{summary['source']}"),
        _indented(_lengths_table(summary)),
        _indented(Text(_lengths_sentence(summary))),
        Text("\nArrivals", style="bold"),
        _indented(Group(*(Text(line) for line in _arrival_lines(summary["arrivals"])))),
        Text("\nPrefix reuse", style="bold"),
        _indented(_prefix_part(summary["prefix"])),
        Text.assemble(("\nRegime: ", "bold"), (summary["regime"]["name"], "bold cyan")),
        _indented(Text(summary["regime"]["sentence"] + ".")),
    ]
    if summary["notes"]:
        parts += [Text("\nNotes", style="bold"), *(_indented(Text(f"• {note}")) for note in summary["notes"])]
    return Group(*parts)


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2), expand=False)


def _lengths_table(summary: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), collapse_padding=True)
    table.add_column("tokens")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for role in ("isl", "osl"):
        table.add_row(role.upper(), *(_tokens(summary[role][column]) for column in _COLUMNS))
    return table


def _lengths_sentence(summary: Mapping[str, Any]) -> str:
    correlation = summary["correlation"]
    related = (
        f"correlation {correlation:+.2f}" if correlation is not None else "no correlation: one length never varies"
    )
    totals = [summary[role]["total"] for role in ("isl", "osl")]
    all_tokens = f"{_tokens(totals[0])} tokens in, {_tokens(totals[1])} out; " if all(totals) else ""
    return f"{all_tokens}{summary['in_out_ratio']:.3g} in per out; {related}"


def _arrival_lines(arrivals: Mapping[str, Any]) -> Iterator[str]:
    if arrivals["offline"]:
        yield "offline: no arrivals"
    elif arrivals["rate"] is None:
        yield "rate unknown"
    else:
        how = "measured" if arrivals["measured"] else "assumed"
        yield f"{arrivals['rate']:.4g} requests/s; gaps' CV {arrivals['cv']:.2f} (Poisson: 1), {how}"
    if arrivals["measured"]:
        fano = ", ".join(f"{row['value']:.2f} over {format_seconds(row['window_s'])}" for row in arrivals["fano"])
        yield f"variance over mean of counts (Poisson: 1): {fano}"
        yield f"busiest minute {arrivals['peak_to_mean']:.2f}× the average one"
    if arrivals["note"]:
        yield arrivals["note"]


def _prefix_part(prefix: Mapping[str, Any]) -> RenderableType:
    if not prefix["measured"]:
        known = "unknown, none assumed: no block hashes to measure it by; --prefix-hit sets it"
        if prefix["hit_ratio"]:
            known = f"{percent(prefix['hit_ratio'])} of prompt tokens taken as cached; no block hashes here to measure it by"
        return Text(known)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), collapse_padding=True)
    table.add_column("LRU cache of", justify="right")
    table.add_column("prompt tokens found", justify="right")
    for row in prefix["curve"]:
        capacity = row["capacity_tokens"]
        label = "no limit" if capacity is None else f"{_tokens(capacity)} tokens"
        table.add_row(label, percent(row["hit_ratio"], 1))
    blocks = f"Blocks of {prefix['block']} tokens, {prefix['distinct_blocks']:,} distinct"
    return Group(table, Text(f"{blocks}; {percent(prefix['hit_ratio'], 2)} of prompt tokens taken as cached."))


def _tokens(value: float | None) -> str:
    """Tokens as people read them: whole below 100,000, then with a unit and at least three digits."""
    if value is None:
        return _NONE
    for limit, scale, unit in ((99_999.5, 1.0, ""), (999_500.0, 1e3, "K"), (999.5e6, 1e6, "M")):
        if value < limit:
            return f"{value / scale:,.0f}" if scale == 1.0 else f"{value / scale:.3g}{unit}"
    return f"{value / 1e9:,.3g}G"
