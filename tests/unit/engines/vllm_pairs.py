"""A vLLM prefill and decode over one connector, for tests of rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rule_pairs import pair

from diptych.engines.engine import Engine
from diptych.engines.resolve import Joint
from diptych.engines.role import Connector

PULL, PUSH, MOONCAKE = "NixlConnector", "NixlPushConnector", "MooncakeConnector"
HOSTS = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1"}


def connector(name: str, kv_role: str, extra: Mapping[str, Any] | None = None, **fields: Any) -> Connector:
    """A connector as a parser reads it: fields as written, the free dictionary apart."""
    written = {"kv_connector": name, "kv_role": kv_role, **fields}
    return Connector(name, kv_role, written | ({"kv_connector_extra_config": extra} if extra else {}), extra or {})


def producer(name: str = PULL, extra: Mapping[str, Any] | None = None, **fields: Any) -> Connector:
    return connector(name, "kv_producer", extra, **fields)


def consumer(name: str = PULL, extra: Mapping[str, Any] | None = None, **fields: Any) -> Connector:
    return connector(name, "kv_consumer", extra, **fields)


def vllm(
    prefill: Mapping[str, Any] | None = None,
    decode: Mapping[str, Any] | None = None,
    *,
    over: str = PULL,
    gpus: tuple[str | None, str | None] = ("H100", "H100"),
    **more: Any,
) -> Joint:
    """Two alike roles that differ by what is given; `env` is added to a side channel that can be reached."""
    sides = []
    for settings, link, gpu in ((prefill or {}, producer(over), gpus[0]), (decode or {}, consumer(over), gpus[1])):
        env = {**HOSTS, **settings.get("env", {})}
        sides.append({"connector": link, "gpu": gpu or "", **settings, "env": env})
    return pair(Engine.VLLM, *sides, gpus=gpus, **more)
