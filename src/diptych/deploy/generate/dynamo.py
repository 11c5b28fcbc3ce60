"""Dynamo: one DynamoGraphDeployment (nvidia.com/v1beta1) with a component for each role."""

from __future__ import annotations

import json
from collections.abc import Iterator

from diptych.deploy.generate.argv import arguments, program
from diptych.deploy.generate.pods import Fields, as_yaml, environment, placement, resources
from diptych.deploy.generate.request import Request
from diptych.design.axes import Role
from diptych.design.boundary import Placement
from diptych.engines.engine import Engine
from diptych.engines.role import RoleConfig

EVENTS_PORT = 5557


def manifests(request: Request) -> dict[str, str]:
    """The one manifest."""
    return {"dynamo.yaml": as_yaml(graph(request))}


def graph(request: Request) -> Fields:
    """The custom resource."""
    roles = request.deployment.roles
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": request.name},
        "spec": {
            "backendFramework": str(request.target.engine),
            "components": [_frontend(request), *(_component(request, config) for config in roles)],
        },
    }


def _image(request: Request, role: str) -> str:
    runtime = f"nvcr.io/nvidia/ai-dynamo/{request.target.engine}-runtime:1.6.1"
    return request.images.get(role) or request.images.get("") or runtime


def _frontend(request: Request) -> Fields:
    container: Fields = {
        "name": "main",
        "image": _image(request, "frontend"),
        "command": ["python3", "-m", "dynamo.frontend"],
        "args": list(_routing(request)),
    }
    pod = {"spec": {"containers": [container]}}
    return {"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": pod}


def _routing(request: Request) -> Iterator[str]:
    """A router that knows prefixes where the engine publishes them. Without a prefill worker it fails: no silent detour."""
    yield from ("--router-mode", "kv" if request.target.engine is Engine.VLLM else "round-robin")
    boundary = request.design.boundary
    if boundary is None:
        return
    if boundary.placement is Placement.CONDITIONAL:
        threshold = {"policy": "isl_bounding", "eff_isl_threshold": boundary.local_below}
        yield from ("--router-conditional-disagg", "--router-conditional-disagg-config", json.dumps(threshold))
    else:
        yield "--enforce-disagg"


def _component(request: Request, config: RoleConfig) -> Fields:
    container: Fields = {
        "name": "main",
        "image": _image(request, str(config.role)),
        "command": list(program(config)),
        "args": [*arguments(config), *_events(config)],
        "resources": resources(config, request.link),
    }
    variables = environment(config)
    if variables:
        container["env"] = variables
    pod = {"spec": {**placement(config), "containers": [container]}}
    kind = {Role.PREFILL: "prefill", Role.DECODE: "decode"}.get(config.role, "worker")
    component: Fields = {"name": config.name, "type": kind, "replicas": config.replicas}
    if config.nodes_per_worker > 1:
        component["multinode"] = {"nodeCount": config.nodes_per_worker}
    return {**component, "podTemplate": pod}


def _events(config: RoleConfig) -> tuple[str, ...]:
    """What the router needs to know each worker's prefixes; a conditional router needs it of decode."""
    if config.engine is not Engine.VLLM:
        return ()
    events = {
        "publisher": "zmq",
        "topic": "kv-events",
        "endpoint": f"tcp://*:{EVENTS_PORT}",
        "enable_kv_cache_events": True,
    }
    return "--kv-events-config", json.dumps(events, separators=(",", ":"))
