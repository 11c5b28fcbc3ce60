"""The design space: how many designs each rule dropped, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from diptych.planner.plan import Plan, RuleCount
from diptych.report import words
from diptych.report.charts import Chart, category, palette, quantity, specification, values

MOST_BARS = 12
_COLOURS = {"broke a rule": "var(--colo)", "proved worse": "var(--homodis)", "sized in full": "var(--hetero)"}


@dataclass(frozen=True, slots=True)
class Dropped:
    """One line of the matrix."""

    stage: str
    rule: str
    designs: int
    reason: str
    example: str


def rule_chart(plan: Plan) -> Chart:
    """Every rule with its count and its sentence; the drawing shows the largest of each stage and sums up the rest."""
    space = plan.space
    broke, worse = _lines("broke a rule", space.rules), _lines("proved worse", space.pruned)
    sized = [Dropped("sized in full", "sized in full", space.sized, "", "")] if space.sized else []
    drawn = [_bar(line) for line in (*_largest(broke), *_largest(worse), *sized)]
    whole, possible = words.big(space.cartesian), words.big(space.effective)
    return Chart(
        "rules",
        f"{whole} designs, {possible} of them possible" + (f", {space.sized:,} sized" if space.sized else ""),
        "A rule drops what cannot exist; a proof of dominance drops what cannot win.",
        specification("Bars: designs dropped by every rule", 24 * len(drawn), layer=_layers(drawn)),
        ("stage", "rule", "designs", "reason", "for example"),
        tuple(
            (d.stage, d.rule, f"{d.designs:,}", words.sentence(d.reason), d.example) for d in (*broke, *worse, *sized)
        ),
        wide=True,
    )


def _lines(stage: str, rules: Iterable[RuleCount]) -> list[Dropped]:
    """The rules that dropped something, largest first."""
    dropped = sorted((rule for rule in rules if rule.dropped), key=lambda rule: -rule.dropped)
    return [Dropped(stage, words.spaced(rule.rule), rule.dropped, rule.sentence, rule.example) for rule in dropped]


def _largest(lines: list[Dropped]) -> list[Dropped]:
    kept, rest = lines[:MOST_BARS], lines[MOST_BARS:]
    if len(rest) < 2:
        return lines
    more = sum(line.designs for line in rest)
    return [*kept, Dropped(kept[0].stage, f"{len(rest)} more rules", more, "each of them is in the numbers below", "")]


def _bar(line: Dropped) -> dict[str, Any]:
    return {
        "rule": line.rule,
        "stage": line.stage,
        "n": line.designs,
        "text": words.big(line.designs),
        "exact": f"{line.designs:,}",
        "why": line.reason,
    }


def _layers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    used = [stage for stage in _COLOURS if any(row["stage"] == stage for row in rows)]
    y = category("rule", [row["rule"] for row in rows], axis={"labelLimit": 210})
    axis = {"format": "~s", "tickCount": 5, "labels": False, "title": "designs, on a logarithmic scale"}
    x = quantity("n", None, scale={"type": "log", "domainMin": 1}, axis=axis)
    tooltip = [
        {"field": "rule", "type": "nominal"},
        {"field": "why", "type": "nominal", "title": "reason"},
        {"field": "exact", "type": "nominal", "title": "designs"},
    ]
    colour = category("stage", used, scale=palette(used, [_COLOURS[stage] for stage in used]))
    bar = {"x": x, "x2": {"datum": 1}, "y": y, "color": colour, "tooltip": tooltip}
    text = {"x": x, "y": y, "text": {"field": "text", "type": "nominal"}}
    return [
        {"data": values(rows), "mark": {"type": "bar", "height": {"band": 0.62}}, "encoding": bar},
        {"data": values(rows), "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 11}, "encoding": text},
    ]
