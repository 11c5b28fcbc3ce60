"""Plain Kubernetes workloads: Deployments, StatefulSets, LeaderWorkerSets and the like, each a role, a router or neither."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from diptych.deploy.commands.launch import Launch
from diptych.deploy.commands.read import launcher_of, named_roles, roles_of_router
from diptych.deploy.commands.roles import ENGINES, Reading, role_config
from diptych.deploy.commands.routers import ROUTERS, router_of
from diptych.deploy.manifests.pods import container_launches, hardware, placed_on, replicated, role_named, variables
from diptych.deploy.manifests.routing import picker, pickers_within
from diptych.deploy.notes import Notes, with_notes
from diptych.deploy.safe_yaml import Node
from diptych.deploy.typed import whole
from diptych.design.axes import Role
from diptych.engines.deployment import Deployment, Router
from diptych.engines.engine import Launcher
from diptych.engines.role import RoleConfig

WORKLOADS = frozenset(
    {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "Pod", "LeaderWorkerSet", "DisaggregatedSet"}
)
ROLE_LABEL = "llm-d.ai/role"


@dataclass(frozen=True, slots=True)
class Workload:
    """One object that makes pods: its name, labels, pod, replicas, and how many pods make one worker."""

    name: str
    labels: dict[str, Node]
    pod: Node
    replicas: Node | None
    pods: int = 1
    slices: int = 1
    role: str = ""


def read_workloads(documents: list[Node], reading: Reading) -> Deployment:
    """Workloads that start an engine are roles; what starts a router, or configures an endpoint picker, is the router."""
    notes = Notes()
    roles: list[RoleConfig] = []
    routers: list[Router] = []
    for workload in (each for document in documents for each in _workloads(document)):
        for launch in _launches(workload):
            if launch.program in ENGINES:
                roles.append(_role(workload, launch, reading, notes))
            elif launch.program in ROUTERS:
                routers.append(router_of(launch, notes))
    routers += [router for document in documents for router in _pickers(document)]
    router = routers[0] if routers else None
    roles = named_roles(roles_of_router(roles, router))
    return with_notes(Deployment(tuple(roles), router, launcher_of(roles)), notes)


def _workloads(document: Node) -> Iterator[Workload]:
    kind, name = document.text("kind"), document.text("metadata", "name")
    if kind == "List":
        for item in document.elements("items"):
            yield from _workloads(item)
    elif kind == "LeaderWorkerSet":
        yield from _groups(document.get("spec") or document, name)
    elif kind == "DisaggregatedSet":
        slices = document.text("spec", "slices", default="1")
        for role in document.elements("spec", "roles"):
            for group in _groups(role.get("spec") or role, role.text("name")):
                yield replace(group, slices=whole(slices) or 1, role=role.text("name"))
    elif kind == "Pod":
        yield Workload(name, document.entries("metadata", "labels"), document.get("spec") or document, None)
    elif kind in WORKLOADS:
        template = document.get("spec", "template") or Node({}, document.where)
        labels = template.entries("metadata", "labels")
        yield Workload(name, labels, template.get("spec") or template, document.get("spec", "replicas"))


def _groups(spec: Node, name: str) -> Iterator[Workload]:
    """The leader of each group of a LeaderWorkerSet's specification; a group is one worker."""
    template = spec.get("leaderWorkerTemplate") or Node({}, spec.where)
    leader = template.get("leaderTemplate") or template.get("workerTemplate")
    size = template.text("size", default="1")
    if leader is not None:
        pods = whole(size) or 1
        yield Workload(
            name, leader.entries("metadata", "labels"), leader.get("spec") or leader, spec.get("replicas"), pods
        )


def _launches(workload: Workload) -> Iterator[Launch]:
    containers = workload.pod.elements("containers")
    sidecars = [each for each in workload.pod.elements("initContainers") if each.text("restartPolicy") == "Always"]
    for container in (*containers, *sidecars):
        yield from container_launches(container, variables([]))


def _role(workload: Workload, launch: Launch, reading: Reading, notes: Notes) -> RoleConfig:
    config = role_config(launch, reading, notes)
    label = workload.labels.get(ROLE_LABEL)
    if config.role is Role.COLOCATED and (found := _role_of(workload, label, config)) is not None:
        config = replace(config, role=found)
    config = placed_on(config, hardware(workload.pod, workload.pod.elements("containers")), workload.pods)
    launcher = Launcher.LLM_D if label is not None else Launcher.PLAIN
    config = replicated(config, workload.replicas, workload.name, launcher)
    return replace(config, replicas=config.replicas * workload.slices)


def _role_of(workload: Workload, label: Node | None, config: RoleConfig) -> Role | None:
    """llm-d's label; else the workload's name, where its engine has a connector that could be either's."""
    named = role_named(label.text()) if label is not None else role_named(workload.role)
    return named or (role_named(workload.name) if config.connector is not None else None)


def _pickers(document: Node) -> Iterator[Router]:
    """An EndpointPickerConfig, by itself or as a text within a ConfigMap."""
    if document.text("kind") == "EndpointPickerConfig":
        yield picker(document)
    if document.text("kind") == "ConfigMap":
        for node in document.entries("data").values():
            yield from pickers_within(node)
