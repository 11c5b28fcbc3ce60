"""What `diptych check` says, for people, for scripts, for code scanning (SARIF 2.1.0) and for GitHub's annotations."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from diptych.engines.check import Pair, Report
from diptych.engines.role import RoleConfig
from diptych.engines.rule import Broken, Remark, Rule, Severity
from diptych.errors import Finding

_MARKS = {
    Severity.SILENT: ("✗", "bold red"),
    Severity.REQUEST: ("✗", "red"),
    Severity.STARTUP: ("✗", "red"),
    Severity.LEAK: ("✗", "red"),
    Severity.SLOW: ("!", "yellow"),
}
_LEVELS = {Severity.SLOW: "warning"}
_LINE = re.compile(r"(?P<file>[^\s:][^:]*):(?P<line>\d+)(?::\d+)?(?:\s.*)?")
STARTS = "SETTING"
"""The id of what an engine refuses when it starts: a flag that it does not know, a value that it cannot read."""


def level(severity: Severity) -> str:
    """SARIF's and GitHub's word: what is only slow is a warning."""
    return _LEVELS.get(severity, "error")


# --- for people -------------------------------------------------------------------------------------------------------


def check_text(report: Report, width: int = 80) -> Text:
    """Findings worst first, then what only looks wrong, what is not known, and one line to end with; `width` in columns.

    Words are wrapped here and addresses kept whole, so that a line can be copied and none ends in blanks.
    """
    parts = [_pair(pair, width) for pair in report.pairs]
    parts += [Text()]
    parts += [_setting(finding, width) for finding in report.deployment.findings]
    parts += [_broken(each, width) for each in report.broken]
    parts += [_remark(remark, width) for remark in _new_remarks(report)]
    parts += [Text(_hang(f"? not known, so not checked: {said}", width)) for said in report.unknown]
    return Text("\n").join([*parts, Text(_hang(summary(report), width), style="bold")])


def summary(report: Report) -> str:
    """The last line: how many findings of which kind, or that there are none."""
    counts = Counter(each.severity for each in report.broken)
    told = [f"{counts[severity]} {_plural(severity, counts[severity])}" for severity in Severity if counts[severity]]
    settings = len(report.deployment.findings)
    if settings:
        told.insert(0, f"{settings} setting{'s' if settings > 1 else ''} not accepted at start-up")
    pairs = sum(len(pair.names) for pair in report.pairs)
    about = f"{pairs} pair{'s' if pairs != 1 else ''} checked"
    return f"{about}: {'; '.join(told) or 'nothing found'}"


_PLURALS = {
    Severity.REQUEST: "fail each request while pods look healthy",
    Severity.STARTUP: "fail at start-up",
    Severity.LEAK: "leak or hang",
}


def _plural(severity: Severity, count: int) -> str:
    return _PLURALS.get(severity, str(severity)) if count > 1 else str(severity)


def _hang(text: str, width: int, first: str = "", indent: str = "  ") -> str:
    """`text` wrapped to `width` columns, `first` before its first line and `indent` before the others."""
    lines = [
        textwrap.fill(
            line,
            max(width, len(indent) + 20),
            initial_indent=indent if number else first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for number, line in enumerate(text.splitlines())
    ]
    return "\n".join(lines)


def _pair(pair: Pair, width: int) -> Text:
    lines = []
    for role, stored in zip((pair.joint.prefill, pair.joint.decode), pair.stored, strict=True):
        block = f", {_tokens(stored.block_tokens)} a block" if stored.block_tokens else ""
        lines.append(_hang(f"{role.name or role.role}: {_engine(role)}, stores {stored.says}{block}", width))
    alike = len(pair.names) - 1
    more = f" (and {alike} pair{'s' if alike > 1 else ''} like this)" if alike else ""
    lines.append(_hang(meaning(pair) + more, width, "  → ", "    "))
    return Text("\n".join(lines))


def _tokens(count: int) -> str:
    return f"{count} token{'s' if count != 1 else ''}"


def _engine(role: RoleConfig) -> str:
    assumed = "" if role.version else " (assumed)"
    return f"{role.engine} {role.release}{assumed}{f' on {role.gpu}' if role.gpu else ''}, TP {role.tp}"


def meaning(pair: Pair) -> str:
    """What the boundary could do with the pair, whatever the engine compares."""
    if pair.contract is None:
        return _meaning_of_formats(pair)
    if pair.meaning == "compatible":
        return pair.meaning
    if pair.meaning == "incompatible":
        return f"incompatible: {'; '.join(str(reason) for reason in pair.contract.reasons)}"
    return f"needs conversion: {'; '.join(str(step) for step in pair.contract.plan)}"


def _meaning_of_formats(pair: Pair) -> str:
    """What the formats alone say, where a model or an accelerator is not known and no plan can be made."""
    ours, theirs = (stored.element for stored in pair.stored)
    if pair.meaning == "unknown":
        return "unknown: what is stored could not be resolved on both sides"
    if pair.meaning == "compatible":
        return "compatible as far as is known: one KV format on both sides"
    if ours is theirs:
        return f"needs conversion: {ours} under other scales"
    return f"needs conversion: {ours} → {theirs}; too little is known for the steps"


def _broken(each: Broken, width: int) -> Text:
    mark, style = _MARKS[each.severity]
    facts = [_hang(value, width, f"  {name:9}", " " * 11) for name, value in _facts(each)]
    return Text.assemble((f"{mark} {each.rule.id}", style), f"  {each.severity}\n", "\n".join(facts), "\n")


def _facts(each: Broken) -> Iterator[tuple[str, str]]:
    yield "rule", each.rule.sentence
    if each.clash.prefill:
        yield "prefill", each.clash.prefill
    if each.clash.decode:
        yield "decode", each.clash.decode
    if each.clash.places:
        yield "set at", ", ".join(dict.fromkeys(each.clash.places))
    if each.clash.detail:
        yield "because", each.clash.detail
    yield "change", each.clash.change
    if each.rule.message:
        yield "in logs", each.rule.message
    yield "source", each.rule.source


def _setting(finding: Finding, width: int) -> Text:
    said = _hang(str(finding), width, "  ")
    return Text.assemble((f"✗ {STARTS}", "red"), f"  {Severity.STARTUP}\n", f"{said}\n")


def _new_remarks(report: Report) -> Iterator[Remark]:
    """The remarks that no finding has told already: one that is spurious says itself that the bytes are the same."""
    told = {each.clash.places for each in report.broken if each.clash.is_spurious}
    return (remark for remark in report.remarks if remark.places not in told)


def _remark(remark: Remark, width: int) -> Text:
    says = _hang(remark.sentence, width, "  ")
    if remark.change:
        says += "\n" + _hang(remark.change, width, f"  {'change':9}", " " * 11)
    return Text.assemble(("✓ fine", "green"), f"{_looks(remark)}\n", f"{says}\n")


def _looks(remark: Remark) -> str:
    if remark.prefill == remark.decode:
        return f"  {remark.prefill} on both roles"
    return f", though it looks wrong  {remark.prefill} against {remark.decode}"


# --- for scripts ------------------------------------------------------------------------------------------------------


def check_json(report: Report) -> dict[str, Any]:
    """The whole report as data."""
    return {
        "kind": "check",
        "source": report.deployment.source,
        "pairs": [_pair_json(pair) for pair in report.pairs],
        "findings": [_setting_json(finding) for finding in report.deployment.findings]
        + [_broken_json(each) for each in report.broken],
        "remarks": [
            {
                "prefill": r.prefill,
                "decode": r.decode,
                "sentence": r.sentence,
                "change": r.change,
                "places": list(r.places),
            }
            for r in report.remarks
        ],
        "unknown": list(report.unknown),
        "summary": summary(report),
    }


def _pair_json(pair: Pair) -> dict[str, Any]:
    roles = {}
    for role, stored in zip((pair.joint.prefill, pair.joint.decode), pair.stored, strict=True):
        roles[str(role.role)] = {
            "engine": f"{role.engine}@{role.release}",
            "gpu": role.gpu or None,
            "stored": str(stored.element) if stored.element else None,
            "word": stored.word,
            "block_tokens": stored.block_tokens,
            "tp": role.tp,
        }
    return {"names": [list(names) for names in pair.names], **roles, "meaning": pair.meaning, "boundary": meaning(pair)}


def _broken_json(each: Broken) -> dict[str, Any]:
    clash = each.clash
    return {
        "rule": each.rule.id,
        "severity": str(each.severity),
        "level": level(each.severity),
        "sentence": each.rule.sentence,
        "prefill": clash.prefill or None,
        "decode": clash.decode or None,
        "places": list(clash.places),
        "detail": clash.detail,
        "change": clash.change,
        "spurious": clash.is_spurious,
        "message": each.rule.message,
        "source": each.rule.source,
    }


def _setting_json(finding: Finding) -> dict[str, Any]:
    return {
        "rule": STARTS,
        "severity": str(Severity.STARTUP),
        "level": "error",
        "sentence": finding.problem,
        "places": [finding.where],
        "detail": finding.expected,
        "change": finding.hint,
    }


# --- for code scanning ------------------------------------------------------------------------------------------------


def check_sarif(report: Report) -> dict[str, Any]:
    """SARIF 2.1.0, one result for each finding, at the file and line where it was set when that is known."""
    from importlib.metadata import version  # slow to load, and only this needs it

    rules = {each.rule.id: each.rule for each in report.broken}
    driver = {
        "name": "diptych",
        "version": version("diptych"),
        "informationUri": "https://arxiv.org/abs/2606.29708",
        "rules": [_sarif_rule(rule) for rule in rules.values()]
        + (
            [{"id": STARTS, "shortDescription": {"text": "The engine accepts each setting."}}]
            if _settings(report)
            else []
        ),
    }
    results = [_result(each.rule.id, level(each.severity), one_line(each), each.clash.places) for each in report.broken]
    results += [_result(STARTS, "error", str(finding), (finding.where,)) for finding in _settings(report)]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _settings(report: Report) -> tuple[Finding, ...]:
    return tuple(report.deployment.findings)


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.sentence},
        "help": {"text": rule.source},
        "defaultConfiguration": {"level": level(rule.severity)},
        "properties": {"severity": str(rule.severity)},
    }


def _result(rule: str, word: str, text: str, places: tuple[str, ...]) -> dict[str, Any]:
    result: dict[str, Any] = {"ruleId": rule, "level": word, "message": {"text": text}}
    if places:
        result["locations"] = [_location(place) for place in places]
    return result


def _location(place: str) -> dict[str, Any]:
    match = _LINE.fullmatch(place)
    if match is None:
        return {"logicalLocations": [{"fullyQualifiedName": place}]}
    region = {"startLine": int(match["line"])}
    return {"physicalLocation": {"artifactLocation": {"uri": match["file"]}, "region": region}}


def one_line(each: Broken) -> str:
    """The finding in one sentence: the rule, the two values, what to change."""
    values = " against ".join(filter(None, (each.clash.prefill, each.clash.decode)))
    because = f" ({each.clash.detail})" if each.clash.detail else ""
    return f"{each.severity}: {each.rule.sentence.rstrip('.')}: {values}{because}. {each.clash.change}"


# --- for GitHub -------------------------------------------------------------------------------------------------------


def check_github(report: Report) -> str:
    """Workflow commands, one line each, which a runner shows at the lines of a pull request."""
    found = [(each.rule.id, level(each.severity), one_line(each), each.clash.places) for each in report.broken]
    found += [(STARTS, "error", str(finding), (finding.where,)) for finding in _settings(report)]
    return "".join(_annotation(*each) + "\n" for each in found)


def _annotation(rule: str, word: str, text: str, places: tuple[str, ...]) -> str:
    where = next((match for place in places if (match := _LINE.fullmatch(place))), None)
    at = f"file={_property(where['file'])},line={where['line']}," if where else ""
    return f"::{word} {at}title={_property(rule)}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
