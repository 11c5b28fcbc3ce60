"""KServe's LLMInferenceService: the top level is decode, `prefill` is prefill; engine flags are in VLLM_ADDITIONAL_ARGS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diptych.deploy.commands.launch import Launch, launches
from diptych.deploy.commands.roles import ENGINES, Reading, role_config
from diptych.deploy.commands.statements import Statement, Word, statements
from diptych.deploy.manifests.pods import Variables, container_words, hardware, placed_on, replicated, variables
from diptych.deploy.manifests.routing import picker, pickers_within
from diptych.deploy.notes import Notes, with_notes
from diptych.deploy.safe_yaml import Node
from diptych.deploy.typed import of_their_types, whole
from diptych.design.axes import Role
from diptych.engines.deployment import Deployment, Router
from diptych.engines.engine import Launcher
from diptych.engines.role import RoleConfig

ADDITIONAL = "VLLM_ADDITIONAL_ARGS"
_PARALLELISM = {"tensor": "tp", "pipeline": "pp", "data": "dp"}


def read_kserve(document: Node, reading: Reading) -> Deployment:
    """The service's decode and prefill, or its one colocated role; its scheduler is the router."""
    notes = Notes()
    spec = document.get("spec") or Node({}, document.where)
    prefill = spec.get("prefill")
    roles = list(_roles(spec, spec, Role.DECODE if prefill else Role.COLOCATED, reading, notes))
    if prefill is not None:
        roles += _roles(prefill, spec, Role.PREFILL, reading, notes)
    return with_notes(Deployment(tuple(roles), _router(spec), Launcher.KSERVE), notes)


def _roles(part: Node, spec: Node, role: Role, reading: Reading, notes: Notes) -> Iterator[RoleConfig]:
    template = part.get("template") or Node({}, part.where)
    containers = template.elements("containers") or [Node({}, template.where)]
    main = next((each for each in containers if each.text("name") == "main"), containers[0])
    config = role_config(_launch(main, spec), replace(reading, role=role), notes)
    config = _with_parallelism(_with_name(config, spec), part)
    config = placed_on(config, hardware(template, [main]), _nodes(part, config))
    yield replicated(config, part.get("replicas"), str(role), Launcher.KSERVE)


def _nodes(part: Node, config: RoleConfig) -> int:
    """Pods of one worker: one for each pipeline stage, or for each share of the data-parallel ranks."""
    shares = config.dp // (whole(part.text("parallelism", "dataLocal")) or config.dp)
    return 1 if part.get("worker") is None else max(1, config.pp, shares)


def _launch(container: Node, spec: Node) -> Launch:
    """What runs: the container's own command, else KServe's: `vllm serve MODEL` with the variable's flags and the args."""
    env = variables(container.elements("env"))
    words = container_words(container, env)
    found = [each for each in launches(Statement(words, env.values, env.places)) if each.program in ENGINES]
    kept = {name: value for name, value in env.values.items() if name != ADDITIONAL}  # read as flags, where it is used
    image = container.text("image")
    if found:
        inner = {name: value for name, value in found[0].env.items() if name != ADDITIONAL}
        return replace(found[0], env=inner, image=image)
    flags = tuple(word for word in words if container.get("command") is None)
    uri = spec.get("model", "uri")
    model = (Word(uri.text().removeprefix("hf://"), uri.where),) if uri is not None else ()
    return Launch("vllm", (*model, *flags, *_additional(env)), container.where, kept, env.places, image)


def _additional(env: Variables) -> tuple[Word, ...]:
    value = env.values.get(ADDITIONAL)
    if value is None or not value.text:
        return ()
    name, _, line = env.places[ADDITIONAL].rpartition(":")
    found = statements(f"flags {value.text}", name, int(line))
    return found[0].words[1:] if found else ()


def _with_name(config: RoleConfig, spec: Node) -> RoleConfig:
    name = spec.get("model", "name")
    if config.served_name or name is None:
        return config
    return replace(config, served_name=name.text(), places={**config.places, "served_name": name.where})


def _with_parallelism(config: RoleConfig, part: Node) -> RoleConfig:
    values: dict[str, int | bool] = {}
    places = dict(config.places)
    for name, setting in _PARALLELISM.items():
        node = part.get("parallelism", name)
        if node is not None and setting not in config.written and of_their_types({setting: node.value}):
            values[setting], places[setting] = node.value, node.where
    expert = part.get("parallelism", "expert")
    if expert is not None and expert.value is True:
        values["ep"], places["ep"] = True, expert.where
    return replace(config, **values, places=places)  # type: ignore[arg-type]  # names and values are paired above


def _router(spec: Node) -> Router | None:
    """The scheduler with its configuration: inline, or a text among its container's arguments."""
    scheduler = spec.get("router", "scheduler")
    if scheduler is None:
        return None
    inline = scheduler.get("config", "inline")
    if inline is not None:
        return picker(inline)
    for container in scheduler.elements("template", "containers"):
        found = [router for argument in container.elements("args") for router in pickers_within(argument)]
        if found:
            return found[0]
    return Router("epp", {}, {"scheduler": scheduler.where})
