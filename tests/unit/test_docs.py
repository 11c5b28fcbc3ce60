"""The worked examples of the documentation are run, so they cannot rot."""

from __future__ import annotations

import doctest
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
