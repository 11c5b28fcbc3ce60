"""The README of a deployment: what it is, the order of starting, the proof that KV arrives, the way back, what to watch."""

from __future__ import annotations

from diptych.deploy.generate.nodes import OWN_LABEL, node
from diptych.deploy.generate.request import Request
from diptych.deploy.generate.scripts import FIRST_PORT, HOSTS, ROUTER_PORT
from diptych.deploy.generate.target import Target
from diptych.deploy.generate.templates import fill
from diptych.design.axes import Role
from diptych.engines.check import Report
from diptych.engines.engine import Engine, Launcher
from diptych.engines.of_design import LEASE
from diptych.engines.role import RoleConfig

LEADS = {
    Target.VLLM: "shell scripts for vLLM",
    Target.SGLANG: "shell scripts for SGLang",
    Target.COMPOSE: "docker compose with vLLM",
    Target.DYNAMO_VLLM: "NVIDIA Dynamo with vLLM",
    Target.DYNAMO_SGLANG: "NVIDIA Dynamo with SGLang",
    Target.KSERVE: "KServe",
    Target.LLM_D: "llm-d",
}


def guide(request: Request, report: Report) -> str:
    """README.md."""
    roles = request.deployment.roles
    return fill(
        "README.md.j2",
        request=request,
        target=LEADS[request.target],
        roles=[_row(config) for config in roles],
        start=_start(request, roles),
        unlabelled=sorted({config.gpu for config in roles if not node(config.gpu).is_well_known}),
        own_label=OWN_LABEL,
        canary=_canary(request, roles).rstrip(),
        is_sglang=request.target.engine is Engine.SGLANG,
        is_dynamo=request.target.launcher is Launcher.DYNAMO,
        fall_back=fill(_FALL_BACK[request.target], request=request, port=FIRST_PORT[Role.DECODE]).rstrip(),
        lease=LEASE,
        slow=report.broken,
        remarks=report.remarks,
        unknown=report.unknown,
    )


def _start(request: Request, roles: tuple[RoleConfig, ...]) -> str:
    connectors = [config.connector for config in roles if config.connector]
    certificates = any("certificate" in each.extra for each in connectors)
    template = _START[request.target]
    return fill(
        template, request=request, roles=roles, hosts=HOSTS, port=ROUTER_PORT, certificates=certificates
    ).rstrip()


_START = {
    Target.VLLM: "start_scripts.md.j2",
    Target.SGLANG: "start_scripts.md.j2",
    Target.COMPOSE: "start_compose.md.j2",
    Target.DYNAMO_VLLM: "start_dynamo.md.j2",
    Target.DYNAMO_SGLANG: "start_dynamo.md.j2",
    Target.KSERVE: "start_kserve.md.j2",
    Target.LLM_D: "start_llm_d.md.j2",
}


_FALL_BACK = {
    Target.VLLM: "fall_back_scripts.md.j2",
    Target.SGLANG: "fall_back_scripts.md.j2",
    Target.COMPOSE: "fall_back_compose.md.j2",
    Target.DYNAMO_VLLM: "fall_back_dynamo.md.j2",
    Target.DYNAMO_SGLANG: "fall_back_dynamo.md.j2",
    Target.KSERVE: "fall_back_kserve.md.j2",
    Target.LLM_D: "fall_back_llm_d.md.j2",
}


def _row(config: RoleConfig) -> dict[str, str]:
    precision = " ".join(filter(None, (config.dtype, config.quantization and f"weights {config.quantization}")))
    sizes = [
        f"TP {config.tp}",
        *(f"{name} {size}" for name, size in (("PP", config.pp), ("DP", config.dp)) if size > 1),
    ]
    return {
        "name": config.name,
        "workers": f"{config.replicas}, each {config.gpus_per_worker} × {config.gpu}",
        "sizes": ", ".join(sizes),
        "precision": precision,
        "kv": config.kv_cache_dtype,
        "block": str(config.block_size),
    }


def _canary(request: Request, roles: tuple[RoleConfig, ...]) -> str:
    """The commands that run the canary over every worker: a request may go to any, and one that is not read is not counted."""
    target = request.target
    alone = f"--alone http://127.0.0.1:{ROUTER_PORT} " if target is Target.DYNAMO_VLLM else ""
    call = (
        f"python3 canary.py --router http://127.0.0.1:{ROUTER_PORT} $workers {alone}"
        f"--engine {target.engine} --model {roles[0].served_name}"
    )
    if not target.is_kubernetes:
        return fill("canary_hosts.sh.j2", hosts=HOSTS, call=call)
    pods = [
        {
            "role": config.role,
            "labels": ",".join(f"{name}={value}" for name, value in _labels(request, config)),
            "port": target.metrics_port(config.role),
            "first": FIRST_PORT[config.role],
        }
        for config in roles
        if config.role in FIRST_PORT
    ]
    return fill("canary_pods.sh.j2", pods=pods, call=call)


def _labels(request: Request, config: RoleConfig) -> list[tuple[str, str]]:
    return list(request.target.pod_labels(request.name, str(config.role)).items())
