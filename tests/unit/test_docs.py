"""The worked examples of the documentation are run, so they cannot rot."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["model.md"])
def test_worked_examples(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    unfenced = "\n".join("" if line.startswith("```") else line for line in text.splitlines())
    test = doctest.DocTestParser().get_doctest(unfenced + "\n", {}, page, str(DOCS / page), 0)
    assert len(test.examples) > 80
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert not said, "".join(said)


def test_every_law_names_a_test_that_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "invariants.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (DOCS.parent / file).exists() or f"def {test}(" not in (DOCS.parent / file).read_text(encoding="utf-8")
    ]
    assert not missing
