"""The README of a deployment: what it is, the order of starting, the proof that KV arrives, the way back, what to watch."""

from __future__ import annotations

from diptych.deploy.generate.nodes import OWN_LABEL, node
from diptych.deploy.generate.request import Request
from diptych.deploy.generate.scripts import FIRST_PORT, HOSTS, ROUTER_PORT
from diptych.deploy.generate.target import Target
from diptych.deploy.generate.templates import fill
from diptych.design.axes import Role
from diptych.engines.check import Report
from diptych.engines.engine import Engine
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
        start=fill(_START[request.target], request=request, roles=roles, hosts=HOSTS, port=ROUTER_PORT),
        unlabelled=sorted({config.gpu for config in roles if not node(config.gpu).is_well_known}),
        own_label=OWN_LABEL,
        canary=_canary(request, roles),
        is_sglang=request.target.engine is Engine.SGLANG,
        lease=LEASE,
        slow=report.broken,
        remarks=report.remarks,
        unknown=report.unknown,
    )


_START = {
    Target.VLLM: "start_scripts.md.j2",
    Target.SGLANG: "start_scripts.md.j2",
    Target.COMPOSE: "start_compose.md.j2",
    Target.DYNAMO_VLLM: "start_dynamo.md.j2",
    Target.DYNAMO_SGLANG: "start_dynamo.md.j2",
    Target.KSERVE: "start_kserve.md.j2",
    Target.LLM_D: "start_llm_d.md.j2",
}


def _row(config: RoleConfig) -> dict[str, str]:
    precision = " ".join(filter(None, (config.dtype, config.quantization and f"weights {config.quantization}")))
    sizes = [
        f"TP {config.tp}",
        *(f"{name} {size}" for name, size in (("PP", config.pp), ("DP", config.dp)) if size > 1),
    ]
    return {
        "name": config.name,
        "workers": f"{config.replicas} × {config.gpus_per_worker} × {config.gpu}",
        "sizes": ", ".join(sizes),
        "precision": precision,
        "kv": config.kv_cache_dtype,
        "block": str(config.block_size),
    }


def _canary(request: Request, roles: tuple[RoleConfig, ...]) -> str:
    """The command that runs the canary, with this deployment's own addresses."""
    served = roles[0].served_name
    if request.target.is_kubernetes:
        workers = "--prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200"
    else:
        workers = " ".join(
            f"--{role} http://10.0.{index + 1}.1:{FIRST_PORT[role]}"
            for index, role in enumerate((Role.PREFILL, Role.DECODE))
        )
    engine = request.target.engine
    return f"python3 canary.py --router http://127.0.0.1:{ROUTER_PORT} {workers} --engine {engine} --model {served}"
