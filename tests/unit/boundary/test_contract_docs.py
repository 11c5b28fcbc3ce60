"""docs/boundary.md: its examples are run, and its table names every field of the state."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from diptych.boundary.conversion import Op
from diptych.boundary.descriptor import KVState, Layout
from diptych.boundary.element import Element, ScaleSource

PAGE = (Path(__file__).parents[3] / "docs" / "boundary.md").read_text(encoding="utf-8")


def test_examples_say_what_the_code_says() -> None:
    unfenced = "\n".join("" if line.startswith("```") else line for line in PAGE.splitlines())
    test = doctest.DocTestParser().get_doctest(unfenced + "\n", {}, "boundary.md", None, 0)
    assert len(test.examples) > 25
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert not said, "".join(said)


def paths(kind: type, prefix: str = "") -> Iterator[str]:
    """Every leaf of the state as the table writes it: 'identity.model', 'layers[].kind'."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        hint: Any = hints[each.name]
        inner = [arg for arg in (hint, *get_args(hint)) if is_dataclass(arg)]
        many = "[]" if get_origin(hint) is tuple and inner else ""
        assert get_origin(hint) in (None, tuple, UnionType)
        if inner:
            yield from paths(inner[0], f"{prefix}{each.name}{many}.")
        else:
            yield prefix + each.name


def test_the_table_names_every_field_and_no_other() -> None:
    table = PAGE[PAGE.index("| field | says") : PAGE.index("A layout names")]
    named = re.findall(r"`([\w\[\].]+)`", "\n".join(line.split("|")[1] for line in table.splitlines() if "|" in line))
    assert sorted(named) == sorted(paths(KVState))


def test_the_page_names_every_value() -> None:
    for name in [*Element, *Layout, *(source for source in ScaleSource), *Op]:
        assert re.search(rf"\b{re.escape(str(name).split()[0])}\b", PAGE), name
