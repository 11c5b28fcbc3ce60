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
from diptych.workload.stage import RAW

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
    whole, named = "a whole number of tokens of at least 1", f"{title} ({column})"
    yield from _unread(role, named, f"{named} is not a number: {{}}", whole)
    yield Rule(f"NOT isfinite({role})", role, f"{named} is {{}}", whole)
    yield Rule(f"{role} < 0 AND isfinite({role})", role, f"{named} is negative: {{}}", whole)
    yield Rule(f"{role} = 0", role, f"{named} is zero", whole, "--drop-empty leaves such requests out")
    within, beyond = f"{role} > 0 AND {role} <= {MAX_TOKENS}", f"{role} > {MAX_TOKENS} AND isfinite({role})"
    yield Rule(f"{within} AND {role} <> floor({role})", role, f"{named} is not whole: {{}}", whole)
    problem = f"{named} of {{}} tokens is out of reach of any model"
    yield Rule(beyond, role, problem, f"at most {MAX_TOKENS:,} tokens")


def _unread(role: str, named: str, problem: str, expected: str) -> Iterator[Rule]:
    """A cell with a text that is no number, and one without a text in a line that is otherwise fine."""
    yield Rule(f"{role} IS NULL AND {RAW[role]} IS NOT NULL", RAW[role], problem, expected)
    missing = f"{role} IS NULL AND {RAW[role]} IS NULL AND {RAW['line']} IS NULL"
    yield Rule(missing, "''", f"{named} is missing", expected)


def _arrival_rules(column: str, unit: str, sort: bool) -> Iterator[Rule]:
    kind = "a timestamp such as 2024-05-10 00:00:00.0099" if unit == "iso" else f"a number in {unit}"
    named = f"arrival ({column})"
    yield from _unread("t", named, f"{named} cannot be read: {{}}", kind)
    yield Rule("NOT isfinite(t)", "t", f"{named} is {{}}", kind)
    if not sort:
        problem = f"{named} is {{}} s before the row above"
        yield Rule("gap < 0", "-gap", problem, "rows in order of arrival", "--sort puts them in order")


def _rules(layout: Layout, sort: bool) -> Iterator[Rule]:
    if layout.kind == "jsonl":
        yield Rule(f"{RAW['line']} IS NOT NULL", RAW["line"], "not JSON: {}", "one JSON object a line")
    yield from _length_rules("isl", "prompt length", layout.isl)
    yield from _length_rules("osl", "answer length", layout.osl)
    if layout.arrival:
        yield from _arrival_rules(layout.arrival, layout.unit, sort)
    if layout.blocks:
        broken = f"blocks IS NULL AND {RAW['blocks']} IS NOT NULL"
        yield Rule(broken, RAW["blocks"], f"{layout.blocks} is not a list: {{}}", "a list of block hashes")


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
