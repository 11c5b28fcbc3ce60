"""Write docs/rules.md from the registry of rules, and docs/public_issues.md from the table of public issues.

python tools/write_engine_pages.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from diptych.engines.engine import EVERY, READ, Engine
from diptych.engines.rule import Rule, Severity
from diptych.engines.rules import all_rules

ROOT = Path(__file__).parents[1]
RULES, ISSUES = ROOT / "docs" / "rules.md", ROOT / "docs" / "public_issues.md"
TABLE = ROOT / "tests" / "data" / "public_issues"

_SECTIONS = {
    "PD": "Any pair",
    "VN": "vLLM over NIXL",
    "VM": "vLLM over Mooncake",
    "VD": "vLLM over diptych's own connector",
    "SG": "SGLang",
    "TR": "TensorRT-LLM",
    "LM": "LMCache",
    "OR": "Routers and operators",
}
_ORDER = {
    "static": "Found by `diptych check`",
    "planner": "Questions of what to deploy",
    "runtime": "Only a running system shows it",
}


def rules_page() -> str:
    """The page of rules: one table for each engine or orchestrator."""
    rules = all_rules()
    return "\n".join([*_rules_head(rules), *(line for prefix in _SECTIONS for line in _rules_of(prefix, rules))]) + "\n"


def issues_page() -> str:
    """The page of public issues: those that settings betray with their rules, and what the others need."""
    issues = [
        issue
        for path in sorted(TABLE.glob("*.yaml"), reverse=True)
        for issue in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]
    lines = [*_issues_head(issues)]
    for how, title in _ORDER.items():
        lines += ["", f"## {title}", "", *_issues_of(how, issues)]
    return "\n".join(lines) + "\n"


def _rules_head(rules: Sequence[Rule]) -> Iterator[str]:
    vllm, sglang = READ[Engine.VLLM], READ[Engine.SGLANG]
    yield "# Rules of prefill/decode pairs"
    yield ""
    yield "Written by `tools/write_engine_pages.py` from `diptych.engines.rules`; a test keeps the two alike."
    yield f"The {len(rules)} rules were read from the released sources of vLLM {vllm}, SGLang {sglang}, LMCache 0.5.6 and"
    yield "Dynamo 1.6.1, and from TensorRT-LLM's cache formatter, unless their source says otherwise. No engine was run for them,"
    yield "except where their source says what was measured; where a consequence was derived from a source, it says so."
    yield ""
    yield (
        "What happens when one is broken, worst first: " + " · ".join(f"**{severity}**" for severity in Severity) + "."
    )
    yield "Some rules say a milder or a worse outcome for some values."


_NAMES = {Engine.VLLM: "vLLM", Engine.SGLANG: "SGLang", Engine.TRTLLM: "TensorRT-LLM"}


def _rules_of(prefix: str, rules: Sequence[Rule]) -> Iterator[str]:
    mine = sorted((rule for rule in rules if rule.id.rstrip("0123456789") == prefix), key=lambda rule: int(rule.id[2:]))
    if not mine:
        return
    yield from ("", f"## {_SECTIONS[prefix]}", "")
    yield "| rule | engine | what must hold | otherwise | releases | in the logs | known from |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for rule in mine:
        releases = "" if rule.versions == EVERY else str(rule.versions)
        message = f"`{rule.message}`" if rule.message else ""
        engine = _NAMES[rule.engine] if rule.engine else "any"
        yield _row(rule.id, engine, rule.sentence, str(rule.severity), releases, message, rule.source)


def _issues_head(issues: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    counts = {how: sum(issue["how"] == how for issue in issues) for how in _ORDER}
    yield "# Public issues"
    yield ""
    yield "Written by `tools/write_engine_pages.py` from `tests/data/public_issues`. `tests/published/test_public_issues.py`"
    yield "gives the commands of each static one to `check`, which must find the rules named here and no others."
    yield ""
    yield (
        f"Of {len(issues)} threads on disaggregated serving, settings betray {counts['static']}, a few with what is expected of"
        f" the workload: all are found before anything is started. {counts['planner']} ask what to deploy, and"
        f" {counts['runtime']} show only in a running system."
    )


def _issues_of(how: str, issues: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    last = "found as" if how == "static" else "needs"
    yield f"| thread | what went wrong | {last} |"
    yield "| --- | --- | --- |"
    for issue in issues:
        if issue["how"] == how:
            yield _row(_linked(issue), issue["fact"], _answer(issue))


def _linked(issue: Mapping[str, Any]) -> str:
    first, *others = issue["links"]
    more = " ".join(f"[{number}]({link})" for number, link in enumerate(others, start=2))
    return f"[{issue['issue']}]({first}) {more}".strip()


def _answer(issue: Mapping[str, Any]) -> str:
    found = dict.fromkeys(id for case in issue.get("cases", ()) for id in case["find"])
    return ", ".join(found) or issue["needs"]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ").strip() for cell in cells) + " |"


if __name__ == "__main__":
    RULES.write_text(rules_page(), encoding="utf-8")
    ISSUES.write_text(issues_page(), encoding="utf-8")
