"""One command as a role, two commands as a pair, a script as a deployment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from diptych.deploy.commands.launch import Launch, launches
from diptych.deploy.commands.roles import ENGINES, Reading, role_config
from diptych.deploy.commands.routers import router_of, worker_urls
from diptych.deploy.commands.statements import statements
from diptych.deploy.notes import Notes, with_notes
from diptych.deploy.secrets import without_user
from diptych.design.axes import Role
from diptych.engines.deployment import Deployment, Router
from diptych.engines.engine import Engine, Launcher
from diptych.engines.role import RoleConfig, whole
from diptych.errors import Finding, InvalidInput

UNDERSTOOD = (
    "vllm serve MODEL, python -m sglang.launch_server, python -m dynamo.vllm|sglang|trtllm, or trtllm-serve MODEL "
    "(also within env, docker run, bash -c and the like)"
)


def read_command(
    text: str,
    role: Role | None = None,
    where: str = "",
    base: Path | None = None,
    notes: Notes | None = None,
) -> RoleConfig:
    """One launch command as a role. `role` is what the caller knows it for, otherwise its flags say.

    `base` is the directory of files that it may name (`--config serve.yaml`); None reads no file. What the engine would refuse
    (an unknown flag), and what is left open, is added to `notes`. Raises InvalidInput unless one known engine is started.
    """
    where = where or str(role or "command")
    collected = Notes() if notes is None else notes
    found = [each for each in _launches(text, where, lines=False) if each.program in ENGINES]
    if not found:
        raise InvalidInput(Finding(where, f"no engine that is known is started{_first_word(text, where)}", UNDERSTOOD))
    if len(found) > 1:
        raise InvalidInput(
            Finding(where, f"{len(found)} engines are started", "one command; a script of several is read as a file")
        )
    config = role_config(found[0], Reading(role, base), collected)
    _mind_mode(config, collected)
    return replace(config, name=found[0].name or where)


def _mind_mode(config: RoleConfig, notes: Notes) -> None:
    """Complain of a SGLang that is given for one role and started in another's mode: its router cannot pair it."""
    if config.engine is not Engine.SGLANG or config.role is Role.COLOCATED or config.launcher is not Launcher.PLAIN:
        return
    told = config.options.get("disaggregation-mode")
    if told is None and "disaggregation-mode" in config.places:
        return  # it is set outside of what was read
    mode = str(told or "null")
    if mode in ("null", "prefill", "decode") and mode != config.role:
        place = config.place("disaggregation-mode")
        notes.mistake(
            place, f"the command for {config.role} runs in mode {mode}", f"--disaggregation-mode {config.role}"
        )


def read_pair(prefill: Sequence[str], decode: Sequence[str], base: Path | None = None) -> Deployment:
    """The commands of a prefill and a decode role, one or more of each, as a deployment. Raises InvalidInput."""
    notes = Notes()
    broken: list[Finding] = []
    roles: list[RoleConfig] = []
    for role, texts in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
        for number, text in enumerate(texts, start=1):
            where = str(role) if len(texts) == 1 else f"{role} {number}"
            try:
                roles.append(read_command(text, role, where, base, notes))
            except InvalidInput as error:
                broken += error.findings
    if broken:
        raise InvalidInput(broken)
    return with_notes(Deployment(tuple(leaders(roles)), launcher=launcher_of(roles)), notes)


def read_script(text: str, where: str = "script", base: Path | None = None) -> Deployment:
    """A shell script's engines and their router. Raises InvalidInput where it starts neither."""
    notes = Notes()
    found = _launches(text, where, lines=True)
    roles = [role_config(each, Reading(None, base), notes) for each in found if each.program in ENGINES]
    routers = [router_of(each, notes) for each in found if each.program not in ENGINES]
    if not roles and not routers:
        raise InvalidInput(Finding(where, f"no engine that is known is started{_first_word(text, where)}", UNDERSTOOD))
    router = routers[0] if routers else None
    named = named_roles(leaders(roles_of_router(roles, router)))
    return with_notes(Deployment(tuple(named), router, launcher_of(roles), where), notes)


def launcher_of(roles: Sequence[RoleConfig]) -> Launcher:
    """What starts them: the launcher of the first that has one."""
    return next((role.launcher for role in roles if role.launcher is not Launcher.PLAIN), Launcher.PLAIN)


def roles_of_router(roles: Sequence[RoleConfig], router: Router | None) -> list[RoleConfig]:
    """Engines that do not say their role (`kv_both`, or no connector) take it from the router's addresses, by port."""
    if router is None:
        return list(roles)
    urls = worker_urls(router)
    ports = {role: {_port(url) for url in urls[str(role)]} for role in (Role.PREFILL, Role.DECODE)}
    return [
        replace(config, role=_by_port(config, ports)) if config.role is Role.COLOCATED else config for config in roles
    ]


def leaders(roles: Sequence[RoleConfig]) -> list[RoleConfig]:
    """One role for each worker: one over several nodes is what rank 0 says; its other nodes' commands are part of it."""
    led = {config.role for config in roles if config.options.get("node-rank") is not None and not _rank(config)}
    return [config for config in roles if not (_rank(config) and config.role in led)]


def _rank(config: RoleConfig) -> int:
    return whole(config.options.get("node-rank"), 0)


def named_roles(roles: Sequence[RoleConfig]) -> list[RoleConfig]:
    """Each role with a name of its own: the one that it has, else its role, numbered where there are several."""
    nameless = Counter(config.role for config in roles if not config.name)
    named: list[RoleConfig] = []
    counted: Counter[Role] = Counter()
    for config in roles:
        counted[config.role] += not config.name
        number = f"-{counted[config.role]}" if nameless[config.role] > 1 else ""
        named.append(config if config.name else replace(config, name=f"{config.role}{number}"))
    return named


def _by_port(config: RoleConfig, ports: dict[Role, set[int | None]]) -> Role:
    listening = config.port if config.port is not None else _DEFAULT_PORTS[config.engine]
    matches = [role for role, known in ports.items() if listening in known]
    return matches[0] if len(matches) == 1 else config.role


_DEFAULT_PORTS = {Engine.VLLM: 8000, Engine.SGLANG: 30000, Engine.TRTLLM: 8000}


def _port(url: str) -> int | None:
    try:
        return urlsplit(url if "//" in url else f"//{url}").port
    except ValueError:
        return None


def _launches(text: str, where: str, lines: bool) -> list[Launch]:
    return [launch for statement in statements(text, where, lines=lines) for launch in launches(statement)]


def _first_word(text: str, where: str) -> str:
    """The program of the first command, for a message; never its arguments."""
    for statement in statements(text, where, lines=False):
        word = without_user(statement.words[0].text).rsplit("/", 1)[-1]
        return f": the first command is {word[:40]!r}" if word.isprintable() and "=" not in word else ""
    return ": there is no command"
