"""KServe: one LLMInferenceService (serving.kserve.io/v1alpha2); its own template is decode, `prefill` the other role."""

from __future__ import annotations

import shlex
from typing import Any

from diptych.catalog.interconnect import LinkKind
from diptych.deploy.generate.argv import arguments
from diptych.deploy.generate.epp import scheduler_config
from diptych.deploy.generate.pods import Fields, as_yaml, environment, placement, resources
from diptych.deploy.generate.request import Request
from diptych.design.axes import Role
from diptych.engines.role import RoleConfig

OF_KSERVE = (
    "--served-model-name",
    "--tensor-parallel-size",
    "--data-parallel-size",
    "--pipeline-parallel-size",
    "--enable-expert-parallel",
)
"""Flags that KServe writes itself, from `model` and `parallelism`."""


def manifests(request: Request) -> dict[str, str]:
    """The one manifest."""
    return {"llminferenceservice.yaml": as_yaml(service(request))}


def service(request: Request) -> Fields:
    """The custom resource."""
    deployment = request.deployment
    prefill = next(iter(deployment.of(Role.PREFILL)), None)
    own = next(iter((*deployment.of(Role.DECODE), *deployment.of(Role.COLOCATED))))
    spec: Fields = {
        "model": {"uri": _uri(own), "name": own.served_name},
        **_role(request, own),
        "router": {"route": {}, "gateway": {}, "scheduler": _scheduler(request)},
    }
    if prefill is not None:
        spec["prefill"] = _role(request, prefill)
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": request.name},
        "spec": spec,
    }


def _uri(config: RoleConfig) -> str:
    return f"hf://{config.model}"


def _scheduler(request: Request) -> Fields:
    return {"config": {"inline": scheduler_config(request)}} if request.design.is_disaggregated else {}


def _role(request: Request, config: RoleConfig) -> Fields:
    container: Fields = {
        "name": "main",
        "env": [
            *_fabric(request),
            *environment(config),
            {"name": "VLLM_ADDITIONAL_ARGS", "value": shlex.join(arguments(config, OF_KSERVE))},
        ],
        "resources": resources(config, request.link),
    }
    image = request.images.get(str(config.role)) or request.images.get("")
    if image:
        container["image"] = image
    return {
        "replicas": config.replicas,
        "parallelism": _parallelism(config),
        "template": {**placement(config), "containers": [container]},
    }


def _parallelism(config: RoleConfig) -> Fields:
    sizes: dict[str, Any] = {"tensor": config.tp}
    if config.pp > 1:
        sizes["pipeline"] = config.pp
    if config.dp > 1:
        sizes |= {"data": config.dp, "dataLocal": config.dp}
    if config.ep:
        sizes["expert"] = True
    return sizes


def _fabric(request: Request) -> list[Fields]:
    is_roce = request.link is not None and request.link.kind is LinkKind.ROCE and request.link.name != "efa"
    return [{"name": "KSERVE_INFER_ROCE", "value": "true"}] if is_roce else []
