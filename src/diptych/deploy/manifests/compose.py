"""Docker compose files: each service that starts an engine is a role, one that starts a router the router."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from diptych.deploy.commands.launch import Launch, launches, started_by
from diptych.deploy.commands.read import launcher_of, named_roles, roles_of_router
from diptych.deploy.commands.roles import ENGINES, Reading, role_config
from diptych.deploy.commands.routers import router_of
from diptych.deploy.commands.statements import Statement, Word
from diptych.deploy.manifests.pods import Hardware, Variables, placed_on, role_named
from diptych.deploy.notes import Notes, with_notes
from diptych.deploy.safe_yaml import Node
from diptych.deploy.typed import whole
from diptych.design.axes import Role
from diptych.engines.deployment import Deployment, Router
from diptych.engines.role import EnvValue, RoleConfig

_INTERPOLATED = re.compile(r"\$(?:\$|\{(\w+)(?::?-([^}]*))?[^}]*\}|(\w+))")


def read_compose(document: Node, reading: Reading) -> Deployment:
    """The services of a compose file as a deployment."""
    notes = Notes()
    roles: list[RoleConfig] = []
    routers: list[Router] = []
    for name, service in document.entries("services").items():
        for launch in _launches(service, notes):
            if launch.program in ENGINES:
                roles.append(_role(name, service, launch, reading, notes))
            else:
                routers.append(router_of(launch, notes))
    router = routers[0] if routers else None
    roles = named_roles(roles_of_router(roles, router))
    return with_notes(Deployment(tuple(roles), router, launcher_of(roles)), notes)


def _role(name: str, service: Node, launch: Launch, reading: Reading, notes: Notes) -> RoleConfig:
    config = role_config(launch, reading, notes)
    named = role_named(name) if config.role is Role.COLOCATED and config.connector is not None else None
    config = placed_on(replace(config, role=named or config.role, name=name), _hardware(service))
    replicas = service.get("deploy", "replicas")
    number = whole(replicas.text()) if replicas is not None else None
    if replicas is None or number is None:
        return config
    return replace(config, replicas=number, places={**config.places, "replicas": replicas.where})


def _launches(service: Node, notes: Notes) -> list[Launch]:
    env = _environment(service)
    image, known = interpolated(service.text("image"))
    command = _words(service.get("command"), notes)
    entry = _words(service.get("entrypoint"), notes)
    words = (*entry, *command) if entry else started_by(image, command, service.where)
    found = launches(Statement(words, env.values, env.places))
    return [replace(each, image=each.image or (image if known else "")) for each in found]


def _words(node: Node | None, notes: Notes) -> tuple[Word, ...]:
    """A command as compose takes it: a list as it is, a text split as words, without a shell."""
    if node is None:
        return ()
    if isinstance(node.value, list):
        return tuple(
            Word(text, item.where, known) for item in node.value for text, known in [interpolated(item.text())]
        )
    try:
        split = shlex.split(node.text())
    except ValueError:
        notes.mistake(node.where, "a quote in the command is never closed", "its pair")
        return ()
    return tuple(Word(text, node.where, known) for text, known in map(interpolated, split))


def interpolated(text: str) -> tuple[str, bool]:
    """Compose's `${NAME:-default}` with its default, `$$` as `$`; False where a variable has none, which stays as written."""
    known = True

    def value(match: re.Match[str]) -> str:
        nonlocal known
        if match[0] == "$$":
            return "$"
        if match[2] is not None:
            return match[2]
        known = False
        return match[0]

    return _INTERPOLATED.sub(value, text), known


def _environment(service: Node) -> Variables:
    node = service.get("environment")
    values: dict[str, EnvValue] = {}
    places: dict[str, str] = {}
    entries = [(name, each.text(), each.where) for name, each in service.entries("environment").items()]
    for item in node.value if node is not None and isinstance(node.value, list) else []:
        name, equals, text = item.text().partition("=")
        entries.append((name, text if equals else f"${name}", item.where))
    for name, written, where in entries:
        text, known = interpolated(written)
        values[name], places[name] = EnvValue(text=text) if known else EnvValue(source=text), where
    return Variables(values, places)


def _hardware(service: Node) -> Hardware:
    """Reserved devices: their count, or how many are listed."""
    for device in service.elements("deploy", "resources", "reservations", "devices"):
        count = device.get("count")
        number = whole(count.text()) if count is not None else None
        if count is not None and number is not None:
            return Hardware(count=number, places={"gpus_per_worker": count.where})
        listed = device.elements("device_ids")
        if listed:
            return Hardware(count=len(listed), places={"gpus_per_worker": listed[0].where})
    return Hardware()
