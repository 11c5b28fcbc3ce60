"""What `diptych check` says, for people, for scripts, for code scanning (SARIF 2.1.0) and for GitHub's annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
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


def check_text(report: Report) -> RenderableType:
    """Findings worst first, then what only looks wrong, what is not known, and one line to end with."""
    parts: list[RenderableType] = [_pairs(report), Text()]
    parts += [_setting(finding) for finding in report.deployment.findings]
    parts += [_broken(each) for each in report.broken]
    parts += [_remark(remark) for remark in report.remarks]
    parts += [Text(f"? not known, so not checked: {said}") for said in report.unknown]
    return Group(*parts, Text(summary(report), style="bold"))


def summary(report: Report) -> str:
    """The last line: how many findings of which kind, or that there are none."""
    counts = {severity: sum(each.severity is severity for each in report.broken) for severity in Severity}
    told = [f"{count} {severity}" for severity, count in counts.items() if count]
    if report.deployment.findings:
        told.insert(0, f"{len(report.deployment.findings)} not accepted at start-up")
    pairs = sum(len(pair.names) for pair in report.pairs)
    about = f"{pairs} pair{'s' if pairs != 1 else ''} checked"
    return f"{about}: {'; '.join(told)}" if told else f"{about}: nothing found"


def _pairs(report: Report) -> Text:
    lines = []
    for pair in report.pairs:
        for role, stored in zip((pair.joint.prefill, pair.joint.decode), pair.stored, strict=True):
            block = f", {stored.block_tokens} tokens a block" if stored.block_tokens else ""
            lines.append(f"{role.name or role.role}: {_engine(role)}, stores {stored.says}{block}")
        lines.append(f"  → {meaning(pair)}")
    return Text("\n".join(lines))


def _engine(role: RoleConfig) -> str:
    assumed = "" if role.version else " (assumed)"
    return f"{role.engine} {role.release}{assumed}{f' on {role.gpu}' if role.gpu else ''}, TP {role.tp}"


def meaning(pair: Pair) -> str:
    """What the boundary could do with the pair, whatever the engine compares."""
    if pair.contract is None or pair.meaning == "compatible":
        return pair.meaning
    if pair.meaning == "incompatible":
        return f"incompatible: {'; '.join(str(reason) for reason in pair.contract.reasons)}"
    return f"needs conversion: {'; '.join(str(step) for step in pair.contract.plan)}"


def _broken(each: Broken) -> RenderableType:
    mark, style = _MARKS[each.severity]
    head = Text.assemble((f"{mark} {each.rule.id}", style), f"  {each.severity}")
    body = Table.grid(padding=(0, 2))
    for name, value in _facts(each):
        body.add_row(Text(name, style="dim"), Text(value))
    return Group(head, Padding(body, (0, 0, 1, 2)))


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


def _setting(finding: Finding) -> RenderableType:
    head = Text.assemble((f"✗ {STARTS}", "red"), f"  {Severity.STARTUP}")
    return Group(head, Padding(Text(str(finding)), (0, 0, 1, 2)))


def _remark(remark: Remark) -> RenderableType:
    head = Text.assemble(("✓ fine, though it looks wrong", "green"), f"  {remark.prefill} against {remark.decode}")
    says = remark.sentence + (f"\nchange  {remark.change}" if remark.change else "")
    return Group(head, Padding(Text(says), (0, 0, 1, 2)))


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
