"""Settings that a command takes from a file (`--config serve.yaml`): inserted before its own flags, which win."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diptych.deploy.commands.flags import FlagTable, Kind
from diptych.deploy.commands.statements import Word
from diptych.deploy.safe_yaml import Node, load_below
from diptych.errors import Finding, InvalidInput


def words_of_config(path_word: Word, base: Path | None, table: FlagTable, findings: list[Finding]) -> tuple[Word, ...]:
    """The file's settings as flags with the file's lines for places; empty with a finding where it cannot be read.

    `base` is the directory that relative paths start from; None means that no file may be read.
    """
    shown = path_word.text
    if base is None or not path_word.known:
        findings.append(
            Finding(
                path_word.where, f"--config {shown} is not read here: its settings are unknown", "the flags themselves"
            )
        )
        return ()
    try:
        documents = load_below(base, shown)
    except InvalidInput as error:
        findings.extend(error.findings)
        return ()
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        findings.append(Finding(f"{shown}:1", "not one mapping of settings", "lines such as tensor-parallel-size: 4"))
        return ()
    return tuple(word for name, node in documents[0].value.items() for word in _flag(name, node, table))


def _flag(name: str, node: Node, table: FlagTable) -> Iterator[Word]:
    """One line as its program would take it: vLLM drops a false switch that has no --no- form, SGLang any false one."""
    value, where = node.plain, node.where
    spelling = f"--{name}" if table.separator else f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        match = table.match(spelling)
        negatable = match is not None and match.flags[0].kind is Kind.BOOLEAN
        if value:
            yield Word(spelling, where)
        elif negatable:
            yield Word(f"--no-{name}", where)
        return
    yield Word(spelling, where)
    if isinstance(value, list):
        yield from (Word(_text(item), where) for item in value)
    else:
        yield Word(_text(value), where)


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
