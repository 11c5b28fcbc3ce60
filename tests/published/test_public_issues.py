"""Faults that people reported in public: those that settings alone betray are found, and nothing else with them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from public_issues import cases, deployment, issues

from diptych.catalog.catalog import Catalog
from diptych.engines.check import check
from diptych.engines.rules import all_rules

CATALOG = Catalog.load()
CASES = dict(cases())


@pytest.mark.parametrize("name", CASES)
def test_the_fault_is_found_and_nothing_else(name: str) -> None:
    report = check(deployment(CASES[name]), CATALOG)
    assert sorted({broken.rule.id for broken in report.broken}) == CASES[name]["find"], [
        (broken.rule.id, broken.clash) for broken in report.broken
    ]


def test_every_static_fault_is_broken_by_a_case() -> None:
    for issue in issues():
        found = [case["find"] for case in issue.get("cases", ())]
        assert any(found) == (issue["how"] == "static"), issue["issue"]


def test_the_table_is_whole() -> None:
    table = issues()
    assert len(table) >= 60
    assert len({issue["issue"] for issue in table}) == len(table)
    for issue in table:
        assert issue["how"] in ("static", "runtime", "planner")
        assert issue["links"]
        assert all(
            re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", link) for link in issue["links"]
        )
        assert ("needs" in issue) == (issue["how"] != "static"), issue["issue"]


def test_every_rule_that_is_expected_exists() -> None:
    known = {rule.id for rule in all_rules()}
    assert {id for case in CASES.values() for id in case["find"]} <= known


def test_the_page_of_validation_tells_these_numbers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "validation.md").read_text(encoding="utf-8")
    count = Counter(issue["how"] for issue in issues())
    told = re.search(
        r"Of (\d+) public threads .* finds those (\d+) .* (\d+) ask what to deploy.*?(\d+) show only", page, re.DOTALL
    )
    assert told is not None
    assert tuple(map(int, told.groups())) == (count.total(), count["static"], count["planner"], count["runtime"])
