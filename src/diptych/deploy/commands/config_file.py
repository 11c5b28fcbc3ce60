"""Settings that a command takes from a file (`--config serve.yaml`): inserted before its own flags, which win."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diptych.deploy.commands.flags import FlagTable, Kind
from diptych.deploy.commands.statements import Word, placed
from diptych.deploy.notes import Notes
from diptych.deploy.safe_yaml import Node, load_below
from diptych.errors import InvalidInput


def words_of_config(path_word: Word, base: Path | None, table: FlagTable, notes: Notes) -> tuple[Word, ...]:
    """The file's settings as flags with the file's lines for places; empty with a finding where it cannot be read.

    `base` is the directory that relative paths start from; None means that no file may be read.
    """
    documents = documents_below(base, path_word, "--config", notes)
    if documents is None:
        return ()
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        notes.mistake(f"{path_word.text}:1", "not one mapping of settings", "lines such as tensor-parallel-size: 4")
        return ()
    return tuple(word for name, node in documents[0].value.items() for word in _flag(name, node, table))


def documents_below(base: Path | None, path: Word, flag: str, notes: Notes) -> list[Node] | None:
    """The documents of a file that a flag names; None with a note where it is not read. Raises nothing."""
    problem = "is not read here"
    if base is not None and path.known:
        try:
            return load_below(base, path.text)
        except InvalidInput as error:
            problem = error.findings[0].problem
            if error.findings[0].where != path.text:  # it was there, and is broken
                notes.mistakes.extend(error.findings)
                return None
    problem = f"{flag} {path.text}: {problem}; its settings are unknown"
    notes.not_known(placed(path.where, flag), problem, "a file beside the command")
    return None


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
