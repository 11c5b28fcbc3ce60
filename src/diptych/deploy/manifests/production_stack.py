"""The Helm values of vLLM's production stack: one entry of `modelSpec` for each pool, its connector under `lmcacheConfig`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from diptych.deploy.commands.launch import Launch
from diptych.deploy.commands.roles import Reading, role_config
from diptych.deploy.commands.statements import Word
from diptych.deploy.manifests.pods import Hardware, placed_on, replicated, role_named, variables
from diptych.deploy.notes import Notes, with_notes
from diptych.deploy.safe_yaml import Node
from diptych.deploy.secrets import hidden_inside
from diptych.deploy.typed import whole
from diptych.design.axes import Role
from diptych.engines.deployment import Deployment, Router
from diptych.engines.engine import Launcher
from diptych.engines.role import Connector, RoleConfig

_FLAGS = {
    "tensorParallelSize": "--tensor-parallel-size",
    "maxModelLen": "--max-model-len",
    "maxNumSeqs": "--max-num-seqs",
    "dtype": "--dtype",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
}
_SWITCHES = {"enablePrefixCaching": "--enable-prefix-caching", "enableChunkedPrefill": "--enable-chunked-prefill"}
_KV_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


def read_production_stack(document: Node, reading: Reading) -> Deployment:
    """The stack's pools as roles, its router's settings as the router."""
    notes = Notes()
    roles = [_role(entry, reading, notes) for entry in document.elements("servingEngineSpec", "modelSpec")]
    router = document.get("routerSpec")
    settings = {name: hidden_inside(node.plain) for name, node in document.entries("routerSpec").items()}
    places = {name: node.where for name, node in document.entries("routerSpec").items()}
    found = Router("production-stack", settings, places) if router is not None else None
    return with_notes(Deployment(tuple(roles), found, Launcher.PRODUCTION_STACK), notes)


def _role(entry: Node, reading: Reading, notes: Notes) -> RoleConfig:
    env = variables(entry.elements("env"))
    image = f"{entry.text('repository')}:{entry.text('tag')}"
    launch = Launch("vllm", tuple(_words(entry)), entry.where, env.values, env.places, image)
    config = _with_lmcache(role_config(launch, reading, notes), entry)
    config = placed_on(config, _hardware(entry))
    return replicated(config, entry.get("replicaCount"), entry.text("name"), Launcher.PRODUCTION_STACK)


def _words(entry: Node) -> Iterator[Word]:
    model = entry.get("modelURL")
    if model is not None:
        yield Word(model.text(), model.where)
    for name, node in entry.entries("vllmConfig").items():
        if name in _FLAGS and node.value is not None:
            yield from (Word(_FLAGS[name], node.where), Word(node.text(), node.where))
        elif name in _SWITCHES and node.value is not None:
            yield Word(_SWITCHES[name] if node.value else f"--no-{_SWITCHES[name][2:]}", node.where)
    for node in entry.elements("vllmConfig", "extraArgs"):
        yield Word(node.text(), node.where)


def _with_lmcache(config: RoleConfig, entry: Node) -> RoleConfig:
    """`lmcacheConfig` makes the connector that the chart passes to vLLM; a pool's name may say its role."""
    cache = entry.get("lmcacheConfig")
    role = config.role
    if cache is not None and cache.text("enabled") == "true" and config.connector is None:
        kind = cache.text("kvRole", default="kv_both")
        fields: dict[str, Any] = {"kv_connector": "LMCacheConnectorV1", "kv_role": kind}
        config = replace(
            config,
            connector=Connector("LMCacheConnectorV1", kind, fields),
            places={**config.places, "connector": cache.where},
        )
        role = _KV_ROLES.get(kind, role)
        named = {"sender": Role.PREFILL, "receiver": Role.DECODE}
        role = named.get(cache.text("nixlRole"), role)
    if role is Role.COLOCATED and config.connector is not None:
        role = role_named(entry.text("name")) or role
    return replace(config, role=role)


def _hardware(entry: Node) -> Hardware:
    places = {}
    count = entry.get("requestGPU")
    devices = whole(count.text()) if count is not None else None
    if devices is not None and count is not None:
        places["gpus_per_worker"] = count.where
    gpu = ""
    for term in entry.elements("nodeSelectorTerms"):
        for expression in term.elements("matchExpressions"):
            values = expression.elements("values")
            if "gpu" in expression.text("key") and values:
                gpu, places["gpu"] = values[0].text(), values[0].where
    return Hardware(gpu, devices, "", places)
