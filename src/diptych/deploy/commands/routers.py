"""What routes between the roles, as it was told to run."""

from __future__ import annotations

from typing import Any

from diptych.deploy.commands.arguments import is_flag, parse_arguments
from diptych.deploy.commands.flags import flag_table
from diptych.deploy.commands.launch import Launch
from diptych.deploy.commands.statements import Word
from diptych.deploy.commands.variables import with_variables
from diptych.deploy.notes import Notes
from diptych.deploy.secrets import HIDDEN, is_secret, without_user
from diptych.engines.deployment import Router

ROUTERS = frozenset({"vllm-router", "sglang_router", "dynamo.frontend"})


def router_of(launch: Launch, notes: Notes) -> Router:
    """A router's flags, and variables that set them, by long name; repeated `--prefill URL [PORT]` is a tuple of tuples."""
    if launch.program not in ROUTERS:
        return _proxy(launch)
    table = flag_table(launch.program)
    arguments = with_variables(parse_arguments(launch.words, table), launch, table)
    notes.mistakes += arguments.notes.mistakes
    notes.unknown += arguments.notes.unknown
    settings = {name: _shown(given.value) for name, given in arguments.given.items() if given.value is not None}
    places = {name: given.place for name, given in arguments.given.items()}
    return Router(launch.program, settings, places)


def _proxy(launch: Launch) -> Router:
    """A script of its own: what it was given, flag by flag, as text."""
    arguments = _plain(launch.words)
    return Router(launch.program, arguments, dict.fromkeys(arguments, launch.where))


def _plain(words: tuple[Word, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if is_flag(word.text):
            name, equals, value = word.text.lstrip("-").partition("=")
            found[name] = (HIDDEN if is_secret(name) else without_user(value),) if equals else found.get(name, ())
        elif name:
            found[name] = (*found[name], HIDDEN if is_secret(name) else without_user(word.text))
    return {name: _single(values) for name, values in found.items()}


def _single(values: tuple[str, ...]) -> Any:
    return True if not values else values[0] if len(values) == 1 else values


def _shown(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_shown(item) for item in value)
    return without_user(value) if isinstance(value, str) else value


def worker_urls(router: Router) -> dict[str, tuple[str, ...]]:
    """The addresses that a router was given for each role: 'prefill' and 'decode'."""
    found: dict[str, tuple[str, ...]] = {}
    for role in ("prefill", "decode"):
        entries = router.settings.get(role, ())
        urls = tuple(str(entry[0]) for entry in entries if isinstance(entry, tuple) and entry)
        ports = router.settings.get("prefiller-ports" if role == "prefill" else "decoder-ports", ())
        ports = ports if isinstance(ports, tuple) else (ports,)
        found[role] = urls + tuple(f":{port}" for port in ports)
    return found
