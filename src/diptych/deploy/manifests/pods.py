"""Containers and pods: what runs in them, with which environment, on which accelerators."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from diptych.deploy.commands.launch import Launch, launches, started_by
from diptych.deploy.commands.statements import Statement, Word
from diptych.deploy.safe_yaml import Node
from diptych.deploy.typed import whole
from diptych.design.axes import Role
from diptych.engines.engine import Launcher
from diptych.engines.role import EnvValue, RoleConfig


@dataclass(frozen=True, slots=True)
class Variables:
    """A container's environment and the place of each variable; later ones stand over earlier ones."""

    values: Mapping[str, EnvValue] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    def over(self, other: Variables) -> Variables:
        return Variables({**other.values, **self.values}, {**other.places, **self.places})


@dataclass(frozen=True, slots=True)
class Hardware:
    """Where a pod runs: the accelerator by its label, how many of them, the node if it is pinned; each with its place."""

    gpu: str = ""
    count: int | None = None
    node: str = ""
    places: Mapping[str, str] = field(default_factory=dict)


_MACHINE = "node.kubernetes.io/instance-type"


@cache
def _labels() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((files("diptych.deploy") / "data" / "gpu_labels.json").read_text("utf-8"))
    return loaded


def variables(entries: list[Node]) -> Variables:
    """A list of `{name, value}` or `{name, valueFrom}` as variables; `$(OTHER)` of an earlier one is put in."""
    values: dict[str, EnvValue] = {}
    places: dict[str, str] = {}
    for entry in entries:
        name = entry.text("name")
        if name:
            values[name] = _value(entry, values)
            found = entry.get("value") or entry.get("valueFrom") or entry.get("name")
            places[name] = found.where if found else entry.where
    return Variables(values, places)


def _value(entry: Node, earlier: Mapping[str, EnvValue]) -> EnvValue:
    if entry.get("valueFrom") is None:
        whole = re.fullmatch(r"\$\((\w+)\)", entry.text("value"))
        if whole is not None and whole[1] in earlier:
            return earlier[whole[1]]
        text, known = substituted(entry.text("value"), earlier)
        return EnvValue(text=text) if known else EnvValue(source=text)
    for kind, key in (("secretKeyRef", "secret"), ("configMapKeyRef", "configMap")):
        if entry.get("valueFrom", kind) is not None:
            name, inner = entry.text("valueFrom", kind, "name"), entry.text("valueFrom", kind, "key")
            return EnvValue(source=f"{key} {name}/{inner}")
    path = entry.text("valueFrom", "fieldRef", "fieldPath") or entry.text("valueFrom", "resourceFieldRef", "resource")
    return EnvValue(source=path or "valueFrom")


def substituted(text: str, known: Mapping[str, EnvValue]) -> tuple[str, bool]:
    """Kubernetes' `$(NAME)` replaced by what is known; False when one is not."""
    unknown = [name for name in re.findall(r"(?<!\$)\$\((\w+)\)", text) if name in known and not known[name].text]

    def value(match: re.Match[str]) -> str:
        found = known.get(match[1])
        return found.text if found and found.text else match[0]

    return re.sub(r"(?<!\$)\$\((\w+)\)", value, text).replace("$$(", "$("), not unknown


def container_words(container: Node, env: Variables) -> tuple[Word, ...]:
    """Command and arguments of a container, with its variables put in."""
    words = []
    for part in ("command", "args"):
        for node in container.elements(part):
            if not isinstance(node.value, dict | list):
                text, known = substituted(node.text(), env.values)
                words.append(Word(text, node.where, known))
    return tuple(words)


def container_launches(container: Node, inherited: Variables, extra: tuple[Word, ...] = ()) -> Iterator[Launch]:
    """The known programs that a container starts."""
    env = variables(container.elements("env")).over(inherited)
    words = (*container_words(container, env), *extra)
    image = container.text("image")
    if container.get("command") is None:
        words = started_by(image, words, container.where)
    for launch in launches(Statement(words, env.values, env.places)):
        yield replace(launch, image=launch.image or image)


def hardware(pod: Node, containers: list[Node]) -> Hardware:
    """The accelerator that a pod asks for: its node selector or required affinity, and the devices that its containers take."""
    labels = _labels()
    selected = {key: node for key, node in _selected(pod).items() if not isinstance(node.value, dict | list)}
    places: dict[str, str] = {}
    gpu = node_name = ""
    for key in labels["keys"]:
        named = _accelerator(key, selected[key].text()) if key in selected and not gpu else ""
        if named:
            gpu, places["gpu"] = named, selected[key].where
    pinned = selected.get("kubernetes.io/hostname") or pod.get("nodeName")
    if pinned is not None:
        node_name, places["node"] = pinned.text(), pinned.where
    count = None
    for container in containers:
        devices = devices_of(container)
        if devices is not None:
            count, places["gpus_per_worker"] = (count or 0) + devices[0], devices[1]
    return Hardware(gpu, count, node_name, places)


def _accelerator(key: str, value: str) -> str:
    """What a label's value says; a machine's type says something only where it is known to have one kind of accelerator."""
    known: dict[str, str] = _labels()["values"]
    return known.get(value, "" if key == _MACHINE else value)


def devices_of(container: Node) -> tuple[int, str] | None:
    """How many accelerators a container takes, and where that is said."""
    for part in ("limits", "requests"):
        for name in _labels()["resources"]:
            node = container.get("resources", part, name)
            count = whole(node.text()) if node is not None else None
            if node is not None and count is not None:
                return count, node.where
    return None


def _selected(pod: Node) -> dict[str, Node]:
    """Labels that a node must have: nodeSelector, and required affinity for one value."""
    found = dict(pod.entries("nodeSelector"))
    required = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    for term in pod.elements(*required):
        for expression in term.elements("matchExpressions"):
            values = expression.elements("values")
            if expression.text("operator") == "In" and values:
                found.setdefault(expression.text("key"), values[0])
    return found


def placed_on(config: RoleConfig, found: Hardware, nodes: int = 1) -> RoleConfig:
    """The role on its hardware. `nodes` is how many pods make one worker."""
    count = found.count * nodes if found.count is not None else config.gpus_per_worker
    return replace(
        config,
        gpu=found.gpu or config.gpu,
        gpus_per_worker=count,
        node=found.node or config.node,
        places={**config.places, **found.places},
    )


def replicated(config: RoleConfig, node: Node | None, name: str, launcher: Launcher) -> RoleConfig:
    """The role with its name, its launcher and how many of it there are."""
    places = dict(config.places)
    replicas = config.replicas
    number = whole(node.text()) if node is not None else None
    if node is not None and number is not None:
        replicas, places["replicas"] = number, node.where
    launched = config.launcher if config.launcher is not Launcher.PLAIN else launcher
    return replace(config, name=name or config.name, replicas=replicas, launcher=launched, places=places)


def role_named(name: str) -> Role | None:
    """The role that a name has in it: 'vllm-prefill-0' is prefill; None where none or both are."""
    words = re.split(r"[^a-z]+", name.casefold())
    found = [role for role in (Role.PREFILL, Role.DECODE) if str(role) in words or f"{role}er" in words]
    return found[0] if len(found) == 1 else None
