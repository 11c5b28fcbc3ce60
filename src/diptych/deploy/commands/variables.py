"""Flags that a variable sets where the command does not: Dynamo reads most of its own from the environment too."""

from __future__ import annotations

from diptych.deploy.commands.arguments import Arguments, parse_arguments
from diptych.deploy.commands.flags import Flag, FlagTable, Kind
from diptych.deploy.commands.launch import Launch
from diptych.deploy.commands.statements import Word

_ON = frozenset({"1", "true", "yes", "on"})


def with_variables(arguments: Arguments, launch: Launch, table: FlagTable) -> Arguments:
    """The arguments with the flags that the launch's environment sets; a flag of the command stands over its variable."""
    for flag in set(table.spellings.values()):
        value = launch.env.get(flag.env) if flag.env else None
        if value is not None and flag.name not in arguments.given:
            where = launch.env_places.get(flag.env, launch.where)
            read = _as_argument(flag, Word(value.text or value.source, where, bool(value.text)), table)
            arguments.given |= read.given
            arguments.notes.mistakes += read.notes.mistakes
    return arguments


def _as_argument(flag: Flag, word: Word, table: FlagTable) -> Arguments:
    if flag.kind in (Kind.SWITCH, Kind.BOOLEAN):
        is_on = word.text.strip().casefold() in _ON
        return parse_arguments([Word(f"--{flag.name}", word.where)] if is_on else [], table)
    return parse_arguments([Word(f"--{flag.name}={word.text}", word.where, word.known)], table)
