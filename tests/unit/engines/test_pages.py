"""The written pages of rules and of public issues agree with what they are written from."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from diptych.engines.rules import all_rules

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_engine_pages", ROOT / "tools" / "write_engine_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["rules", "issues"])
def test_a_page_is_what_the_tool_writes(writer: ModuleType, page: str) -> None:
    path = getattr(writer, page.upper())
    written = getattr(writer, f"{page}_page")()
    assert path.read_text(encoding="utf-8") == written, "run python tools/write_engine_pages.py"


def test_every_rule_has_a_row(writer: ModuleType) -> None:
    page = writer.rules_page()
    assert [rule.id for rule in all_rules() if f"| {rule.id} |" not in page] == []


def test_ids_are_one_each_and_every_rule_says_where_it_is_known_from() -> None:
    ids = [rule.id for rule in all_rules()]
    assert len(set(ids)) == len(ids)
    assert [rule.id for rule in all_rules() if not rule.source or not rule.sentence.endswith(".")] == []
