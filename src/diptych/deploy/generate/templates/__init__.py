"""Texts with holes. A name that a template asks for and is not given is an error, never an empty hole."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def fill(name: str, **values: Any) -> str:
    """The template with its holes filled; plain text, nothing is escaped."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Environment:
    loader = PackageLoader("diptych.deploy.generate")
    return Environment(  # noqa: S701  shell and Markdown, not HTML
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
