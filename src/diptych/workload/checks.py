"""What a trace must satisfy, one sentence per rule, checked by SQL over every row of the table `request`.

All kinds are reported at once: the first rows of each, and how many there are.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diptych.errors import Finding, InvalidTrace
from diptych.workload.formats import Layout

MAX_TOKENS = 10_000_000  # the longest context any model on the market offers; more is a unit error
_SHOWN = 4  # rows per kind
_REJECTED = {
    "TOO MANY COLUMNS": "more cells than the header has",
    "MISSING COLUMNS": "fewer cells than the header has",
    "UNQUOTED VALUE": "a quote that never ends",
    "INVALID ENCODING": "not text: bytes that are not UTF-8",
    "LINE SIZE OVER MAXIMUM": "a line of more than 4 MiB",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A row breaks the rule when `broken` holds; `shown` is the value to print, `problem` a sentence with it."""

    broken: str
    shown: str
    problem: str
    expected: str
    hint: str = ""


def _length_rules(role: str, title: str, column: str) -> Iterator[Rule]:
    whole = "a whole number of tokens of at least 1"
    yield Rule(f"{role}_raw IS NOT NULL", f"{role}_raw", f"{title} ({column}) is not a number: {{}}", whole)
    yield Rule(
        f"line_raw IS NULL AND {role} IS NULL AND {role}_raw IS NULL", "''", f"{title} ({column}) is missing", whole
    )
    yield Rule(f"NOT isfinite({role})", role, f"{title} ({column}) is {{}}", whole)
    yield Rule(f"{role} < 0 AND isfinite({role})", role, f"{title} ({column}) is negative: {{}}", whole)
    yield Rule(f"{role} = 0", role, f"{title} ({column}) is zero", whole, "--drop-empty leaves such requests out")
    yield Rule(f"isfinite({role}) AND {role} > 0 AND {role} <= {MAX_TOKENS} AND {role} <> floor({role})", role,
               f"{title} ({column}) is not whole: {{}}", whole)  # fmt: skip
    yield Rule(f"isfinite({role}) AND {role} > {MAX_TOKENS}", role,
               f"{title} ({column}) of {{}} tokens is out of reach of any model", f"at most {MAX_TOKENS:,} tokens")  # fmt: skip


def _rules(layout: Layout, sort: bool) -> Iterator[Rule]:
    if layout.kind == "jsonl":
        yield Rule("line_raw IS NOT NULL", "line_raw", "not JSON: {}", "one JSON object a line")
    yield from _length_rules("isl", "prompt length", layout.isl)
    yield from _length_rules("osl", "answer length", layout.osl)
    if layout.arrival:
        kind = {"iso": "a timestamp such as 2024-05-10 00:00:00.0099"}.get(layout.unit, f"a number in {layout.unit}")
        title = f"arrival ({layout.arrival})"
        yield Rule("t_raw IS NOT NULL", "t_raw", f"{title} is not {kind}: {{}}", kind)
        yield Rule("line_raw IS NULL AND t IS NULL AND t_raw IS NULL", "''", f"{title} is missing", kind)
        yield Rule("NOT isfinite(t)", "t", f"{title} is {{}}", kind)
        if not sort:
            yield Rule("gap < 0", "-gap", f"{title} is {{}} s before the row above", "rows in order of arrival",
                       "--sort puts them in order")  # fmt: skip
    if layout.blocks:
        yield Rule(
            "blocks_raw IS NOT NULL", "blocks_raw", f"{layout.blocks} is not a list: {{}}", "a list of block hashes"
        )


def check(connection: Any, layout: Layout, path: Path, name: str, sort: bool) -> None:
    """Raise `InvalidTrace` with the first rows of each broken rule and the counts of all, or return."""
    rules = list(_rules(layout, sort))
    parts = ", ".join(f"count(*) FILTER ({rule.broken})" for rule in rules)
    counts = connection.execute(f"SELECT {parts} FROM request").fetchone()  # noqa: S608
    rejects = _rejects(connection, layout)
    broken = [(rule, count) for rule, count in zip(rules, counts, strict=True) if count]
    if not broken and not rejects:
        return
    found = [(row, rule, value) for rule, _ in broken for row, value in _first_rows(connection, rule)]
    lines = _line_numbers(path, layout, [row for row, _, _ in found], set(rejects))
    placed = [
        (lines.get(row, row), rule.problem.format(_short(value)), rule.expected, rule.hint)
        for row, rule, value in found
    ]
    placed += [
        (line, problem, f"text in {len(layout.header)} columns", "") for line, problem in [*rejects.items()][:_SHOWN]
    ]
    findings = [Finding(f"{name}:{line}", *rest) for line, *rest in sorted(placed)]
    raise InvalidTrace([*findings, *_total(name, [count for _, count in broken], len(rejects), len(findings))])


def _first_rows(connection: Any, rule: Rule) -> list[tuple[int, Any]]:
    query = f"SELECT row, {rule.shown} FROM request WHERE {rule.broken} ORDER BY row LIMIT {_SHOWN}"  # noqa: S608
    rows: list[tuple[int, Any]] = connection.execute(query).fetchall()
    return rows


def _rejects(connection: Any, layout: Layout) -> Mapping[int, str]:
    """Rows with the wrong number of cells or open quotes, by line of the file."""
    if layout.kind != "csv":
        return {}
    rows = connection.execute(
        "SELECT DISTINCT line, error_type, error_message FROM reject_errors ORDER BY line"
    ).fetchall()
    return {line: _REJECTED.get(kind, message.splitlines()[0]) for line, kind, message in rows}


def _line_numbers(path: Path, layout: Layout, rows: list[int], rejects: set[int]) -> dict[int, int]:
    """Line of the file for each data row. JSONL rows are lines; a CSV has a header, blank lines and refused rows."""
    if layout.kind == "jsonl" or not rows:
        return {row: row for row in rows}
    wanted, found, row = set(rows), dict[int, int](), -1
    with gzip.open(path, "rb") if layout.gzipped else path.open("rb") as stream:
        for line, text in enumerate(stream, start=1):
            if text.strip() and line not in rejects:
                row += 1
                if row in wanted:
                    found[row] = line
                    if len(found) == len(wanted):
                        break
    return found


def _total(name: str, counts: list[int], rejects: int, shown: int) -> list[Finding]:
    total = sum(counts) + rejects
    if total == shown:
        return []
    kinds = len(counts) + bool(rejects)
    return [
        Finding(
            name, f"{total:,} problems of {kinds} kind{'s' if kinds > 1 else ''} in all; the first {shown} are above"
        )
    ]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:g}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
