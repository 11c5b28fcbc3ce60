"""Why this plan, why not the others, what would change it, and where its numbers come from."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from diptych.catalog.catalog import Catalog
from diptych.design.axes import Role
from diptych.errors import Finding, InvalidInput
from diptych.planner.plan import Option, ParetoPoint, Plan, RuleCount, Savings, Trust
from diptych.report import story, words
from diptych.report.chart_question import flip_value, flips_at
from diptych.report.tables import table
from diptych.units import format_seconds, format_usd

MOST_RULES = 12
_PLAIN = re.compile(
    r"\d+|(tp|pp|ep|dp)\d+|[wa]=.*|kv.*|local|below|colocated|disaggregated|same-node|conditional|fp\d+|bf16|int\d"
)
_MARKS = {"yes": "✓", "partly": "~", "no": "✗", "unknown": "?"}


def explanation(plan: Plan) -> dict[str, Any]:
    """The explanation as JSON-ready values: the parts of plan.json that answer why."""
    whole = plan.to_dict()
    alternatives = [
        {"design": a["option"]["label"], "usd_per_hour_more": a["usd_per_hour_more"], "why_not": a["why_not"]}
        for a in whole["alternatives"]
    ]
    kept = ("verdict", "sensitivity", "space", "checklist", "assumptions", "warnings", "versions")
    return {
        "headline": story.headline(plan),
        "design": plan.best.label,
        "binding": plan.best.binding,
        "alternatives": alternatives,
        **{name: whole[name] for name in kept},
        "trust": {name: _trust_values(trust) for name, trust in _trusts(plan.best)},
    }


def _trust_values(trust: Trust) -> dict[str, Any]:
    return {"basis": str(trust.basis), "band": trust.band, "extrapolated": trust.outside_measured}


def explain_text(plan: Plan) -> Group:
    """The same in sentences and tables."""
    return Group(
        _section("Why this one", _why(plan)),
        _section("Why not the others", _others(plan)),
        _section("What was dropped before", _rules(plan)),
        _section("What would change the answer", _flips(plan)),
        _section("Before you deploy", _checklist(plan)),
        _section("Where the numbers come from", _sources(plan)),
    )


def why_not(plan: Plan, text: str) -> str:
    """One sentence on the first design like `text` ('H100 tp2 -> H20 tp4', each side naming its pool, or just words).

    Says how to ask when the plan kept no such design.
    """
    sides = [_split(side) for side in re.split(r"->|→", text)]
    if _holds(plan.best, sides):
        return f"{plan.best.label} is the plan."
    for other in plan.alternatives:
        if _holds(other.option, sides):
            more = format_usd(other.usd_per_hour_more)
            return f"{other.option.label} costs {more} USD/h more: {words.sentence(other.why_not)}"
    for name, option in story.named_options(plan)[1:]:
        if _holds(option, sides):
            return f"{option.label}, {name}: {_difference(plan.best, option)}"
    for point in plan.pareto:
        if _found(point.label, sides):
            return _on_front(point)
    return _dropped(plan, text, [word for side in sides for word in side])


def _dropped(plan: Plan, text: str, wanted: list[str]) -> str:
    """The rule whose example is what was asked for; else what dropped most, since a plan keeps no list of what it dropped.

    Raises `InvalidInput` for a word that names nothing.
    """
    _known(plan, wanted)
    rules = [rule for rule in (*plan.space.rules, *plan.space.pruned) if rule.dropped]
    told = next((rule for rule in rules if wanted and _told(rule.example, wanted)), None)
    if told is not None:
        name = words.spaced(told.rule)
        return f"The plan kept no design like {text!r}; rule {name!r}: {words.sentence(told.sentence)} ({told.example})"
    most = words.listed(words.spaced(rule.rule) for rule in _largest(tuple(rules))[:3])
    return (
        f"The plan kept no design like {text!r}: a rule dropped it, or a bound proved it worse; most were dropped by {most}. "
        "Plan again with it pinned (--prefill, --decode, --decode-tp, ...) to see its numbers or the rule it breaks."
    )


def _known(plan: Plan, wanted: list[str]) -> None:
    catalog, findings = Catalog.load(), []
    seen = " ".join([*(point.label for point in plan.pareto), *(rule.example for rule in plan.space.rules)])
    for word in wanted:
        if _PLAIN.fullmatch(word) or _told(seen, [word]):
            continue
        try:
            catalog.accelerator(word)
        except InvalidInput as error:
            findings += [Finding("--why-not", f.problem, f.expected, f.hint) for f in error.findings]
    if findings:
        raise InvalidInput(findings)


def _split(text: str) -> list[str]:
    return [word for word in re.split(r"[\s,;·×]+", text.casefold()) if word]


def _holds(option: Option, sides: list[list[str]]) -> bool:
    """Whether every side's words are all told of its pool, or of the whole option when only one side is given."""
    if len(sides) == 2:
        pools = (option.pool(Role.PREFILL), option.pool(Role.DECODE))
        told = [words.pool_line(pool) if pool else "" for pool in pools]
        return all(_told(text, side) for text, side in zip(told, sides, strict=True))
    return _told(" ".join((option.label, *words.fleet_lines(option), option.placement)), sides[0])


def _told(text: str, wanted: list[str]) -> bool:
    """Whether every wanted word stands in the text as a whole: H20 is not told of an H200."""
    return bool(text) and all(
        re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", text.casefold()) for word in wanted
    )


def _found(label: str, sides: list[list[str]]) -> bool:
    parts = re.split(r"->|→", label) if len(sides) == 2 else [label]
    return len(parts) == len(sides) and all(_told(part, side) for part, side in zip(parts, sides, strict=True))


def _on_front(point: ParetoPoint) -> str:
    fate = "keeps the SLO" if point.meets_slo else "misses the SLO"
    latency = f"TTFT p90 {format_seconds(point.ttft)}, TPOT p90 {format_seconds(point.tpot)}"
    return f"{point.label} {fate} at {format_usd(point.usd_per_hour)} USD/h: {latency}."


def _difference(best: Option, option: Option) -> str:
    more = option.usd_per_hour - best.usd_per_hour
    money = f"{format_usd(abs(more))} USD/h {'more' if more >= 0 else 'less'}"
    ttft, tpot = format_seconds(option.ttft.p90), format_seconds(option.tpot.p90)
    return f"{money}, TTFT p90 {ttft}, TPOT p90 {tpot}, {words.binding(option)} binds."


def _section(title: str, body: RenderableType) -> Group:
    return Group(Text(title, style="bold"), Padding(body, (0, 0, 1, 2)))


def _why(plan: Plan) -> Group:
    binds = words.sentence(f"{words.binding(plan.best)} is what binds")
    lines = [
        f"{story.headline(plan)}.",
        words.sentence(plan.verdict.reason),
        f"{words.sentence(story.bill(plan))} {binds}",
        *(_saved(saving) for saving in plan.verdict.savings),
    ]
    return Group(*(Text(line) for line in lines))


def _saved(saving: Savings) -> str:
    shares = f"{words.percent(saving.per_hour)} per hour and {words.percent(saving.per_mtok)} per token"
    return f"{shares} less than {story.baseline(saving)}, {saving.baseline}."


def _others(plan: Plan) -> RenderableType:
    if not plan.alternatives:
        return Text("No other design keeps the SLO.")
    rows = table("design", "USD/h more", "why not", text=("why not",))
    for other in plan.alternatives:
        more = format_usd(other.usd_per_hour_more)
        rows.add_row(
            Text("\n".join(words.fleet_lines(other.option, brief=True))), more, Text(words.sentence(other.why_not))
        )
    return rows


def _rules(plan: Plan) -> Group:
    space = plan.space
    counts = f"{space.cartesian:,} designs; {space.effective:,} keep every rule; {space.sized:,} were sized."
    rows = table("rule", "designs", "because", text=("because",))
    for rule in _largest((*space.rules, *space.pruned)):
        rows.add_row(words.spaced(rule.rule), f"{rule.dropped:,}", Text(rule.sentence))
    return Group(Text(counts), Text(), rows)


def _largest(rules: tuple[RuleCount, ...]) -> list[RuleCount]:
    return sorted((rule for rule in rules if rule.dropped), key=lambda rule: -rule.dropped)[:MOST_RULES]


def _flips(plan: Plan) -> RenderableType:
    if not plan.sensitivity:
        return Text("Not examined.")
    rows = table("input", "now", "changes at", "then the answer is", text=("then the answer is", "changes at"))
    for flip in plan.sensitivity:
        after = flip.after if flip.at is not None else "as now"
        rows.add_row(flip.axis.replace("price:", "price of "), flip_value(flip, flip.now), flips_at(flip), Text(after))
    return rows


def _checklist(plan: Plan) -> Table:
    rows = Table.grid(padding=(0, 1))
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    for item in plan.checklist:
        told = " ".join(part for part in (words.sentence(item.detail), words.sentence(item.action)) if part)
        rows.add_row(_MARKS.get(item.status, "?"), Text.assemble((item.question, "bold"), f" {told}"))
    return rows


def _trusts(best: Option) -> list[tuple[str, Trust]]:
    pools = [(f"{pool.role} step", pool.trust) for pool in best.pools]
    return [*pools, ("TTFT", best.ttft.trust), ("TPOT", best.tpot.trust), ("end to end", best.e2e.trust)]


def _sources(plan: Plan) -> Group:
    asked = plan.question
    lines = [f"{name}: {words.trust(trust)}" for name, trust in _trusts(plan.best)]
    lines.append(f"prices: {story.prices(plan)}")
    seen = f"{asked.workload.requests:,} requests" if asked.workload.requests else "described, not recorded"
    lines.append(f"workload: {asked.workload.name}, {seen}; {asked.workload.source}")
    lines += [f"{name} {version}" for name, version in plan.versions.items()]
    return Group(*(Text(line) for line in lines), *(Text(words.sentence(line)) for line in plan.assumptions))
