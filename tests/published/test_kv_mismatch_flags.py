"""What released stacks do with pairs whose KV differs, asked for as people ask: by the flags of two commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from diptych.catalog.catalog import Catalog
from diptych.deploy.commands.read import read_pair
from diptych.engines.check import Report, check
from diptych.engines.rule import Severity

FILE = Path(__file__).parents[1] / "data" / "kv_mismatch_flags" / "pairs.yaml"
BOOK = yaml.safe_load(FILE.read_text(encoding="utf-8"))
CATALOG = Catalog.load()
ROWS = [pytest.param(row, id=f"{row['id']}-{number}") for number, row in enumerate(BOOK["rows"])]


def report(row: dict[str, Any]) -> Report:
    """The row's commands, read and checked."""
    sides = ("prefill", "decode")
    names = row.get("model") or "Qwen/Qwen3-32B"
    models = names if isinstance(names, list) else [names, names]
    texts = [
        f"{BOOK['stacks'][row['stack']][side].replace('Qwen/Qwen3-32B', model)} {row.get(side, '')}"
        for side, model in zip(sides, models, strict=True)
    ]
    deployment = read_pair(texts[:1], texts[1:], FILE.parent)
    assert deployment.findings == ()
    extra = {**row.get("options", {}), **row.get("checkpoint", {})}
    roles = [
        replace(role, gpu=gpu, options={**role.options, **extra})
        for role, gpu in zip(deployment.roles, row.get("gpus", ["H100", "H100"]), strict=True)
    ]
    return check(replace(deployment, roles=tuple(roles)), CATALOG)


def test_the_corpus_is_whole() -> None:
    ids = {row["id"] for row in BOOK["rows"]}
    numbers = {"M": 18, "check-": 10, "cpu-": 7}
    assert ids == {f"{name}{number}" for name, count in numbers.items() for number in range(1, count + 1)}


@pytest.mark.parametrize("row", ROWS)
def test_the_truth_of_the_stored_bytes(row: dict[str, Any]) -> None:
    (pair,) = report(row).pairs
    assert pair.meaning == row["truth"]


@pytest.mark.parametrize("row", ROWS)
def test_the_rules_that_are_broken_and_no_other(row: dict[str, Any]) -> None:
    found = report(row)
    assert {each.rule.id for each in found.broken} == set(row["rules"])
    assert any(each.clash.is_spurious for each in found.broken) is row.get("spurious", False)
    assert row.get("remark", "") in " ".join(each.sentence for each in found.remarks)


@pytest.mark.parametrize("row", ROWS)
def test_what_the_stack_does_with_it(row: dict[str, Any]) -> None:
    found = report(row)
    severities = {each.severity for each in found.broken}
    is_refused = bool(severities & {Severity.REQUEST, Severity.STARTUP})
    assert is_refused is (row["outcome"] == "refused")
    if row["outcome"] == "accepted" and row["truth"] != "compatible":
        assert Severity.SILENT in severities
    if row["outcome"] == "recomputed":
        assert severities == {Severity.SLOW}
