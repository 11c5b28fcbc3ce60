"""llm-d: values of the ModelService chart, and the endpoint picker's configuration beside them."""

from __future__ import annotations

from diptych.deploy.generate.argv import arguments
from diptych.deploy.generate.epp import scheduler_config
from diptych.deploy.generate.nodes import node
from diptych.deploy.generate.pods import Fields, as_yaml, environment, placement, resources
from diptych.deploy.generate.request import Request
from diptych.design.axes import Role
from diptych.engines.role import RoleConfig

OF_CHART = ("--served-model-name", "--tensor-parallel-size", "--data-parallel-size")
"""Flags that the chart writes itself."""
SIDE_CHANNEL = 5600
PORTS = {Role.PREFILL: 8000, Role.DECODE: 8200, Role.COLOCATED: 8000}
"""Decode's engine listens behind the routing sidecar, which has port 8000."""


def manifests(request: Request) -> dict[str, str]:
    """The chart's values; the picker's configuration where there are two roles."""
    files = {"values.yaml": as_yaml(values(request))}
    if request.design.is_disaggregated:
        files["epp-config.yaml"] = as_yaml(scheduler_config(request))
    return files


def values(request: Request) -> Fields:
    """Values for llm-d-modelservice."""
    deployment = request.deployment
    served = deployment.roles[0]
    decode = next(iter((*deployment.of(Role.DECODE), *deployment.of(Role.COLOCATED))))
    prefill = next(iter(deployment.of(Role.PREFILL)), None)
    return {
        "fullnameOverride": request.name,
        "multinode": False,
        "accelerator": {"type": _vendor(decode)},
        "modelArtifacts": {"name": served.served_name, "uri": f"hf://{served.model}", "size": _size(request)},
        "routing": {
            "servicePort": 8000,
            "proxy": {"enabled": prefill is not None, "connector": "nixlv2", "secure": False},
        },
        "decode": _role(request, decode),
        "prefill": _role(request, prefill) if prefill is not None else {"create": False},
    }


def _vendor(config: RoleConfig) -> str:
    """The chart's word for who made it; per-role resources are written out, so that roles may differ."""
    domain = node(config.gpu).resource.partition("/")[0]
    return {"amd.com": "amd", "habana.ai": "intel-gaudi"}.get(domain, "nvidia")


def _size(request: Request) -> str:
    """Room for the published weights with a tenth to spare."""
    return f"{max(int(request.model.parameters * request.model.native.stored_bytes * 1.1 / 2**30), 1)}Gi"


def _role(request: Request, config: RoleConfig) -> Fields:
    port = PORTS[config.role]
    ports = [{"containerPort": port, "protocol": "TCP"}]
    if config.connector is not None:
        ports.append({"containerPort": SIDE_CHANNEL, "protocol": "TCP"})
    wanted, where = node(config.gpu), placement(config)
    container: Fields = {
        "name": "vllm",
        "image": request.images.get(str(config.role)) or request.images.get("") or "ghcr.io/llm-d/llm-d-cuda:v0.8.0",
        "modelCommand": "vllmServe",
        "args": list(arguments(config, OF_CHART)),
        "env": environment(config),
        "ports": ports,
        "resources": resources(config, request.link),
        "mountModelVolume": True,
    }
    return {
        "create": True,
        "replicas": config.replicas,
        "parallelism": {"tensor": config.tp, "data": config.dp, "dataLocal": config.dp, "workers": 1},
        "acceleratorTypes": {"labelKey": wanted.label, "labelValues": [wanted.value]},
        "monitoring": {"podmonitor": {"enabled": True}},
        "containers": [container],
        "tolerations": where["tolerations"],
    }
