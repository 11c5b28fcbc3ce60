"""Docker compose: one file, one profile for each role, so that every host starts its own part of it."""

from __future__ import annotations

from diptych.deploy.generate.argv import arguments, program
from diptych.deploy.generate.nodes import node
from diptych.deploy.generate.pods import Fields, as_yaml
from diptych.deploy.generate.request import Request
from diptych.deploy.generate.scripts import FIRST_PORT, FIRST_SIDE_CHANNEL, HOSTS, hosts, router
from diptych.engines.engine import Engine
from diptych.engines.role import RoleConfig

IMAGES = {Engine.VLLM: "vllm/vllm-openai:v{version}", Engine.SGLANG: "lmsysorg/sglang:v{version}"}
ROUTERS = {Engine.VLLM: "vllm-router==0.1.17", Engine.SGLANG: "sglang-router==0.3.2"}


def files(request: Request) -> dict[str, str]:
    """compose.yaml, hosts.env for the router, and router.sh, which it runs."""
    roles = request.deployment.roles
    services = {config.name: _worker(request, config) for config in roles}
    services["router"] = _router(request)
    text = as_yaml({"name": request.name, "services": services, "volumes": {"models": {}}})
    return {"compose.yaml": _HEAD + text, HOSTS: hosts(roles), "router.sh": router(request, roles)}


_HEAD = """\
# On every host of a role:  HOST_IP=<its address> docker compose --profile <role> up -d
# Where clients connect:    docker compose --profile router up -d      (reads hosts.env)
# One worker to a host. For more, copy the service with the next ports and device_ids.
"""


def _worker(request: Request, config: RoleConfig) -> Fields:
    port = FIRST_PORT[config.role]
    image = request.images.get(str(config.role)) or request.images.get("") or IMAGES[config.engine]
    start, rest = program(config), list(arguments(config))
    return {
        "image": image.format(version=request.release),
        "profiles": [str(config.role)],
        "entrypoint": list(start[:2] if config.engine is Engine.VLLM else start),
        "command": [*start[2:], *rest, *_address(port)] if config.engine is Engine.VLLM else [*rest, *_address(port)],
        "environment": _environment(config),
        "network_mode": "host",
        "ipc": "host",
        "ulimits": {"memlock": -1},
        "devices": ["/dev/infiniband:/dev/infiniband"] if "rc" in config.env_text("UCX_TLS").split(",") else [],
        "deploy": {"resources": {"reservations": {"devices": [_devices(config)]}}},
        "volumes": ["models:/root/.cache/huggingface"],
        "healthcheck": {
            "test": [
                "CMD-SHELL",
                f"python3 -c \"import urllib.request as u; u.urlopen('http://$$HOST_IP:{port}/health', timeout=5)\"",
            ],
            "interval": "10s",
            "start_period": "20m",
        },
        "restart": "unless-stopped",
    }


def _address(port: int) -> list[str]:
    return ["--host", "${HOST_IP:?the address of this host}", "--port", str(port)]


def _environment(config: RoleConfig) -> Fields:
    """Addresses of this host; the token for gated models is passed through, never written down."""
    values: Fields = {"HOST_IP": "${HOST_IP:?the address of this host}", "HF_TOKEN": "${HF_TOKEN:-}"}
    for name, value in config.env.items():
        values[name] = "${HOST_IP}" if value.source else value.text
    if "VLLM_NIXL_SIDE_CHANNEL_PORT" in values:
        values["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(FIRST_SIDE_CHANNEL[config.role])
    return values


def _devices(config: RoleConfig) -> Fields:
    driver = {"amd.com/gpu": "amd"}.get(node(config.gpu).resource, "nvidia")
    ids = [str(number) for number in range(config.gpus_per_worker or 1)]
    return {"driver": driver, "device_ids": ids, "capabilities": ["gpu"]}


def _router(request: Request) -> Fields:
    package = ROUTERS[request.target.engine]
    return {
        "image": request.images.get("router") or "python:3.12-slim",
        "profiles": ["router"],
        "entrypoint": ["bash", "-c"],
        "command": [f"pip install --quiet {package} && exec bash /deploy/router.sh"],
        "network_mode": "host",
        "volumes": [".:/deploy:ro"],
        "restart": "unless-stopped",
    }
