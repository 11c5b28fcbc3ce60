"""Shell scripts for bare machines: one per role that runs on each of its hosts, one for the router, the addresses in one file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from diptych.deploy.generate.argv import command
from diptych.deploy.generate.request import Request
from diptych.deploy.generate.templates import fill
from diptych.design.axes import Role
from diptych.engines.engine import Engine
from diptych.engines.handling import DIPTYCH
from diptych.engines.of_design import RANK_PORT
from diptych.engines.role import RoleConfig

FIRST_PORT = {Role.PREFILL: 8100, Role.DECODE: 8200, Role.COLOCATED: 8100}
"""The first worker of a host listens here, the next ones above it."""
FIRST_SIDE_CHANNEL = {Role.PREFILL: 5600, Role.DECODE: 5800}
"""vLLM's handshake ports: one for each DP rank of each worker of a host."""
FIRST_BOOTSTRAP = 8998
ROUTER_PORT = 8000
HOSTS = "hosts.env"


def scripts(request: Request) -> dict[str, str]:
    """hosts.env, a script for each role, and one for the router."""
    roles = request.deployment.roles
    workers = {f"{config.name}.sh": _worker(config) for config in roles}
    return {HOSTS: hosts(roles), **workers, "router.sh": router(request, roles)}


def hosts(roles: tuple[RoleConfig, ...]) -> str:
    """The addresses of every worker, with examples to replace."""
    lines = ["# host:port of every worker, with spaces between. The addresses are examples: put yours."]
    for index, config in enumerate(roles):
        examples = " ".join(addresses(index, config))
        lines.append(f"# {config.replicas} × {config.role}, {config.gpus_per_worker} × {config.gpu} each")
        lines.append(f'{_variable(config)}="{examples}"')
    return "\n".join(lines) + "\n"


def addresses(index: int, config: RoleConfig) -> list[str]:
    """Example addresses of the workers of the `index`-th role, one to a host."""
    port = FIRST_PORT[config.role]
    return [f"10.0.{index + 1}.{worker}:{port}" for worker in range(1, config.replicas + 1)]


def _variable(config: RoleConfig) -> str:
    return f"{config.name.upper().replace('-', '_')}_WORKERS"


def _worker(config: RoleConfig) -> str:
    return fill(
        "worker.sh.j2",
        config=config,
        nodes=config.nodes_per_worker,
        each=(config.gpus_per_worker or 1) // config.nodes_per_worker,
        port=FIRST_PORT[config.role],
        assignments=tuple(_assignments(config)),
        exports=tuple(_exports(config)),
        command=command(config, host='"$HOST_IP"', port='"$port"', taken=_TAKEN) + _spread(config),
    )


_TAKEN = {"disaggregation-bootstrap-port": '"$bootstrap"'}
"""Flags whose value a script works out for itself."""


def _assignments(config: RoleConfig) -> Iterator[str]:
    if "VLLM_NIXL_SIDE_CHANNEL_PORT" in config.env:
        each = f"worker * {config.dp}" if config.dp > 1 else "worker"
        yield f"side_channel=$(({FIRST_SIDE_CHANNEL[config.role]} + {each}))"
    if _pushes(config):
        yield f"rank_port=$(({RANK_PORT} + worker * {config.tp}))"
    if "disaggregation-bootstrap-port" in config.options:
        yield f"bootstrap=$(({FIRST_BOOTSTRAP} + worker))"


def _pushes(config: RoleConfig) -> bool:
    """Whether decode meets this worker at a port of its own."""
    return config.connector is not None and config.connector.extra.get("port") == RANK_PORT


def _spread(config: RoleConfig) -> str:
    """The flags of a worker over several nodes, as shell text; only its leader answers requests."""
    if config.nodes_per_worker == 1:
        return ""
    nodes = f' \\\n  --nnodes {config.nodes_per_worker} --node-rank "$node"'
    if config.engine is Engine.SGLANG:
        return f'{nodes} --dist-init-addr "$LEADER_IP:20000"'
    return f'{nodes} --master-addr "$LEADER_IP" $([ "$node" = 0 ] || echo --headless)'


def _exports(config: RoleConfig) -> Iterator[tuple[str, str]]:
    own = {"VLLM_NIXL_SIDE_CHANNEL_HOST": '"$HOST_IP"', "VLLM_NIXL_SIDE_CHANNEL_PORT": '"$side_channel"'}
    for name, value in config.env.items():
        yield name, own.get(name) or shlex.quote(value.text)


def router(request: Request, roles: tuple[RoleConfig, ...]) -> str:
    """The script that starts the router on the addresses of hosts.env."""
    return fill(
        "router.sh.j2",
        port=ROUTER_PORT,
        hosts=HOSTS,
        roles=roles,
        variable=_variable,
        flag=lambda config: _url_flag(request, config),
        suffix=_bootstrap,
        command=" \\\n  ".join(router_words(request)),
    )


def _url_flag(request: Request, config: RoleConfig) -> str:
    if request.connector == DIPTYCH:
        return f"--{config.role}-url"
    return "--worker-urls" if config.role is Role.COLOCATED else f"--{config.role}"


def _bootstrap(config: RoleConfig) -> str:
    """The port beside a prefill worker's address where decode finds it: as far above the first as its own port is."""
    if _pushes(config):
        return f'",$(({RANK_PORT} + (${{address##*:}} - {FIRST_PORT[config.role]}) * {config.tp}))"'
    if "disaggregation-bootstrap-port" not in config.options:
        return ""
    return f' "$(({FIRST_BOOTSTRAP} + ${{address##*:}} - {FIRST_PORT[config.role]}))"'


def router_words(request: Request) -> Iterator[str]:
    """The router's command as shell text, a flag to a line; `workers` is the array that the script has filled."""
    apart = request.design.is_disaggregated
    if request.connector == DIPTYCH and request.design.boundary is not None:
        yield f"diptych serve --engine vllm --connector {DIPTYCH} --ownership {request.design.boundary.ownership}"
        yield '"${workers[@]}"'
        yield f"--host 127.0.0.1 --port {ROUTER_PORT}"
        return
    if request.target.engine is Engine.SGLANG:
        yield "python3 -m sglang_router.launch_router"
        if apart:
            yield "--pd-disaggregation --disable-retries"
            yield "--prefill-policy cache_aware --decode-policy power_of_two"
    else:
        yield "vllm-router"
        if apart:
            yield "--vllm-pd-disaggregation --kv-connector nixl"
            yield "--prefill-policy cache_aware --decode-policy power_of_two"
    if not apart:
        yield "--policy cache_aware"
    yield '"${workers[@]}"'
    yield f"--host 127.0.0.1 --port {ROUTER_PORT}"
    yield "--prometheus-host 127.0.0.1 --prometheus-port 29000"
