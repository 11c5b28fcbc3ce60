"""What every Kubernetes target says of a pod: where it runs, what it asks for, the variables of its engine."""

from __future__ import annotations

from typing import Any

import yaml

from diptych.catalog.interconnect import Link
from diptych.deploy.generate.nodes import network_resource, node
from diptych.engines.role import EnvValue, RoleConfig

Fields = dict[str, Any]


def as_yaml(*documents: Fields) -> str:
    """Documents in the order their fields were made, without references, so that a diff reads like the manifest."""
    dumper = yaml.SafeDumper
    texts = [
        yaml.dump(document, Dumper=dumper, sort_keys=False, width=1000, default_flow_style=False)
        for document in documents
    ]
    return "---\n".join(texts)


def environment(config: RoleConfig) -> list[Fields]:
    """The engine's variables; addresses come from the pod itself."""
    return [_variable(name, value) for name, value in config.env.items()]


def _variable(name: str, value: EnvValue) -> Fields:
    if value.source:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": value.source}}}
    return {"name": name, "value": value.text}


def placement(config: RoleConfig) -> Fields:
    """The nodes of this role's accelerator, and the taint that such nodes carry."""
    wanted = node(config.gpu)
    return {
        "nodeSelector": wanted.selector,
        "tolerations": [{"key": wanted.resource, "operator": "Exists", "effect": "NoSchedule"}],
    }


def resources(config: RoleConfig, link: Link | None) -> Fields:
    """Accelerators of one pod of a worker, and as many NICs where the fabric has a resource."""
    count = (config.gpus_per_worker or 1) // config.nodes_per_worker
    limits = {node(config.gpu).resource: str(count)}
    network = network_resource(link)
    if network:
        limits[network] = str(count)
    return {"limits": limits}
