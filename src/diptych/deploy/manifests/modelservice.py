"""llm-d's ModelService Helm values: `prefill` and `decode`, each with its accelerators, parallelism and containers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diptych.deploy.commands.launch import Launch
from diptych.deploy.commands.roles import ENGINES, Reading, role_config
from diptych.deploy.commands.statements import Word
from diptych.deploy.manifests.pods import (
    Hardware,
    container_launches,
    container_words,
    hardware,
    placed_on,
    replicated,
    variables,
)
from diptych.deploy.notes import Notes, with_notes
from diptych.deploy.safe_yaml import Node
from diptych.deploy.typed import of_their_types, whole
from diptych.design.axes import Role
from diptych.engines.deployment import Deployment, Router
from diptych.engines.engine import Launcher
from diptych.engines.role import RoleConfig

_PARALLELISM = {"tensor": "tp", "data": "dp", "pipeline": "pp"}


def read_modelservice(document: Node, reading: Reading) -> Deployment:
    """The two roles of the values; a section with `create: false` is none."""
    notes = Notes()
    roles: list[RoleConfig] = []
    for role in (Role.PREFILL, Role.DECODE):
        section = document.get(str(role))
        if section is not None and section.text("create", default="true") != "false":
            roles += _roles(section, document, replace(reading, role=role), notes)
    return with_notes(Deployment(tuple(roles), _router(document), Launcher.LLM_D), notes)


def _roles(section: Node, document: Node, reading: Reading, notes: Notes) -> Iterator[RoleConfig]:
    containers = section.elements("containers")
    for container in containers:
        for launch in _launches(container, document):
            config = role_config(launch, reading, notes)
            config = _with_parallelism(_with_name(config, document), section)
            config = placed_on(config, _hardware(section, containers, config), _nodes(section, document))
            yield replicated(config, section.get("replicas"), str(reading.role), Launcher.LLM_D)


def _launches(container: Node, document: Node) -> Iterator[Launch]:
    """`modelCommand: vllmServe` starts `vllm serve MODEL` with the container's args; others say their command."""
    if container.text("modelCommand") != "vllmServe":
        yield from (each for each in container_launches(container, variables([])) if each.program in ENGINES)
        return
    env = variables(container.elements("env"))
    words = (*model_word(document), *container_words(container, env))
    yield Launch("vllm", words, container.where, env.values, env.places, container.text("image"))


def model_word(document: Node) -> tuple[Word, ...]:
    """What the chart passes for MODEL: a repository, or the artefact's name where it is mounted."""
    uri, name = document.get("modelArtifacts", "uri"), document.get("modelArtifacts", "name")
    if uri is not None and uri.text().startswith("hf://") and "{{" not in uri.text():
        return (Word(uri.text().removeprefix("hf://"), uri.where),)
    return (Word(name.text(), name.where),) if name is not None else ()


def _with_name(config: RoleConfig, document: Node) -> RoleConfig:
    name = document.get("modelArtifacts", "name")
    if config.served_name or name is None:
        return config
    return replace(config, served_name=name.text(), places={**config.places, "served_name": name.where})


def _with_parallelism(config: RoleConfig, section: Node) -> RoleConfig:
    values: dict[str, int] = {}
    places = dict(config.places)
    for name, setting in _PARALLELISM.items():
        node = section.get("parallelism", name)
        if node is not None and setting not in config.written and of_their_types({setting: node.value}):
            values[setting], places[setting] = node.value, node.where
    return replace(config, **values, places=places)  # type: ignore[arg-type]  # every value is a whole number


def _hardware(section: Node, containers: list[Node], config: RoleConfig) -> Hardware:
    """The chart asks for as many accelerators as TP × local DP where the container does not say."""
    found = hardware(section, containers)
    values = section.elements("acceleratorTypes", "labelValues")
    if values:
        found = replace(found, gpu=values[0].text(), places={**found.places, "gpu": values[0].where})
    if found.count is None:
        found = replace(found, count=config.tp * (whole(section.text("parallelism", "dataLocal")) or 1))
    return found


def _nodes(section: Node, document: Node) -> int:
    """Pods of one worker, where the chart makes LeaderWorkerSets."""
    workers = whole(section.text("parallelism", "workers")) or 1
    return workers if document.text("multinode") == "true" else 1


def _router(document: Node) -> Router | None:
    """The chart's sidecar beside decode, which carries requests between the roles; the endpoint picker is deployed apart."""
    proxy = document.get("routing", "proxy")
    if proxy is None:
        return None
    settings = {name: node.plain for name, node in proxy.entries().items()}
    return Router("epp", settings, {name: node.where for name, node in proxy.entries().items()})
