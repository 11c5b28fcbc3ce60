"""The configuration of `trtllm-serve disaggregated`: context servers are prefill, generation servers decode."""

from __future__ import annotations

from dataclasses import replace

from diptych.deploy.commands.roles import Reading
from diptych.deploy.commands.trtllm import places_of, with_engine_args
from diptych.deploy.safe_yaml import Node
from diptych.deploy.secrets import hidden_inside
from diptych.deploy.typed import whole
from diptych.design.axes import Role
from diptych.engines.deployment import Deployment, Router
from diptych.engines.engine import Engine
from diptych.engines.role import RoleConfig

SERVERS = {"context_servers": Role.PREFILL, "generation_servers": Role.DECODE}
_OWN = frozenset({"num_instances", "urls"})


def read_trtllm(document: Node, reading: Reading) -> Deployment:
    """Both kinds of servers as roles; the orchestrator in front of them is the router."""
    del reading
    roles = tuple(_role(document, name, role) for name, role in SERVERS.items() if document.get(name) is not None)
    own = {name: node for name, node in document.entries().items() if name not in SERVERS}
    settings = {name: hidden_inside(node.plain) for name, node in own.items()}
    router = Router("trtllm-serve disaggregated", settings, {name: node.where for name, node in own.items()})
    return Deployment(roles, router)


def _role(document: Node, name: str, role: Role) -> RoleConfig:
    section = document.get(name) or Node({}, document.where)
    model = section.get("model") or document.get("model")
    instances = section.get("num_instances")
    config = RoleConfig(role, Engine.TRTLLM, name=str(role), model=model.text() if model is not None else "")
    places = {"model": model.where} if model is not None else {}
    number = whole(instances.text()) if instances is not None else None
    if instances is not None and number is not None:
        places["replicas"] = instances.where
        config = replace(config, replicas=number)
    shared = {
        each: node for each, node in document.entries().items() if each in ("free_gpu_memory_fraction", "backend")
    }
    entries = shared | {each: node for each, node in section.entries().items() if each not in _OWN and each != "model"}
    settings = Node(entries, section.where)
    return with_engine_args(replace(config, places=places), hidden_inside(settings.plain), places_of(settings))
