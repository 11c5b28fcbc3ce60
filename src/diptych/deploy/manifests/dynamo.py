"""DynamoGraphDeployments: v1beta1, whose components are a list, and v1alpha1, whose services are a mapping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from diptych.deploy.commands.launch import Launch
from diptych.deploy.commands.roles import ENGINES, Reading, role_config
from diptych.deploy.commands.routers import router_of
from diptych.deploy.manifests.pods import (
    Hardware,
    Variables,
    container_launches,
    hardware,
    placed_on,
    replicated,
    variables,
)
from diptych.deploy.notes import Notes, with_notes
from diptych.deploy.safe_yaml import Node
from diptych.deploy.typed import whole
from diptych.design.axes import Role
from diptych.engines.deployment import Deployment, Router
from diptych.engines.engine import Launcher
from diptych.engines.role import RoleConfig

FRONTEND = "dynamo.frontend"


@dataclass(frozen=True, slots=True)
class Component:
    """One component of either version: what it is, its pod, and its main container."""

    name: str
    kind: str
    node: Node
    pod: Node
    container: Node
    env: Variables
    devices: Node | None = None
    """Where v1alpha1 says how many accelerators: `resources.limits.gpu`."""


def read_dynamo(document: Node, reading: Reading) -> Deployment:
    """The workers of a graph as roles, its frontend as the router."""
    notes = Notes()
    roles: list[RoleConfig] = []
    router: Router | None = None
    for component in _components(document):
        found = list(_launches(component))
        roles += [_role(component, each, reading, notes) for each in found if each.program in ENGINES]
        if component.kind in ("frontend", "epp"):
            started = [each for each in found if each.program == FRONTEND]
            router = _router(component, started, notes)
    router = _with_policy(router, document)
    return with_notes(Deployment(tuple(roles), router, Launcher.DYNAMO), notes)


def _components(document: Node) -> Iterator[Component]:
    shared = variables(document.elements("spec", "env") + document.elements("spec", "envs"))
    for node in document.elements("spec", "components"):
        pod = node.get("podTemplate", "spec") or Node({}, node.where)
        containers = pod.elements("containers")
        main = next((each for each in containers if each.text("name") == "main"), containers[0] if containers else pod)
        yield Component(node.text("name"), node.text("type"), node, pod, main, shared)
    for name, node in document.entries("spec", "services").items():
        pod = node.get("extraPodSpec") or Node({}, node.where)
        main = pod.get("mainContainer") or Node({}, node.where)
        own = variables(node.elements("envs")).over(shared)
        kind = node.text("subComponentType") or node.text("componentType")
        yield Component(name, kind, node, pod, main, own, node.get("resources", "limits", "gpu"))


def _launches(component: Component) -> Iterator[Launch]:
    return container_launches(component.container, component.env)


def _role(component: Component, launch: Launch, reading: Reading, notes: Notes) -> RoleConfig:
    config = role_config(launch, reading, notes)
    config = replace(config, role=_agreed(component, config, notes))
    nodes = component.node.text("multinode", "nodeCount")
    config = placed_on(config, _hardware(component), whole(nodes) or 1)
    return replicated(config, component.node.get("replicas"), component.name, Launcher.DYNAMO)


def _agreed(component: Component, config: RoleConfig, notes: Notes) -> Role:
    """The engine's own role; a component that is called by another is a mistake, for the operator goes by the component."""
    named = {"prefill": Role.PREFILL, "decode": Role.DECODE}.get(component.kind)
    mode = "disaggregation-mode"
    if named is not None and mode in config.options and config.role is not named:
        problem = (
            f"component {component.name} is of type {component.kind}, its engine runs in mode {config.options[mode]}"
        )
        notes.mistake(config.place(mode), problem, f"--{mode} {named}")
    return config.role if config.role is not Role.COLOCATED or named is None else named


def _hardware(component: Component) -> Hardware:
    found = hardware(component.pod, [component.container])
    devices = whole(component.devices.text()) if component.devices is not None else None
    if found.count is None and component.devices is not None and devices is not None:
        places = {**found.places, "gpus_per_worker": component.devices.where}
        return replace(found, count=devices, places=places)
    return found


def _router(component: Component, started: list[Launch], notes: Notes) -> Router:
    if component.kind == "epp":
        config = component.node.get("eppConfig", "config")
        settings = config.plain if config is not None and isinstance(config.value, dict) else {}
        return Router("epp", settings, {"config": config.where} if config is not None else {})
    if started:
        return router_of(started[0], notes)
    env = variables(component.container.elements("env")).over(component.env)
    return router_of(Launch(FRONTEND, (), component.node.where, env.values, env.places), notes)


def _with_policy(router: Router | None, document: Node) -> Router | None:
    policy = document.get("spec", "experimental", "kvTransferPolicy")
    if router is None or policy is None:
        return router
    settings = {**router.settings, "kvTransferPolicy": policy.plain}
    return replace(router, settings=settings, places={**router.places, "kvTransferPolicy": policy.where})
