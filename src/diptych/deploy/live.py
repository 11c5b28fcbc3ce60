"""What running servers say of themselves, read-only: vLLM, SGLang (its bootstrap server too) and Dynamo's frontend.

Sources: vLLM 0.33 entrypoints/serve (`/version`, `/v1/models`, `/metrics`, `/server_info` of development mode), SGLang 0.5.23
entrypoints/http_server.py (`/server_info`), disaggregation/common/conn.py (`/route`, every rank −1), Dynamo 1.6.1 (`/health`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from diptych.deploy.commands.flags import flag_table
from diptych.deploy.commands.read import launcher_of, named_roles
from diptych.deploy.commands.roles import FIELDS, connector_of
from diptych.deploy.fetch import OPEN, TIMEOUT, Access, Server, Unreachable, get, get_json, server
from diptych.deploy.notes import Notes, with_notes
from diptych.deploy.secrets import HIDDEN, hidden, hidden_inside, is_secret
from diptych.deploy.typed import of_their_types, whole
from diptych.design.axes import Role
from diptych.engines.deployment import Deployment, Router
from diptych.engines.engine import Engine, version
from diptych.engines.role import Connector, EnvValue, RoleConfig
from diptych.errors import Finding, InvalidInput

EXPECTED = "a running vLLM or SGLang server, or a SGLang bootstrap server"
ROUTE = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
DEVELOPMENT = "/server_info?config_format=json"
SLOW = 60.0
"""Seconds for its first answer: it looks at the whole machine then."""


def probe(urls: Sequence[str], timeout: float = TIMEOUT, access: Access = OPEN, prefills: int = 1) -> Deployment:
    """The servers at some addresses as a deployment, the prefills first unless they say otherwise. Nothing is changed there.

    `timeout` is for each answer, in seconds. Raises InvalidInput with every address that is not, or not such, a server.
    """
    notes = Notes()
    broken: list[Finding] = []
    roles: list[RoleConfig] = []
    routers: list[Router] = []
    for position, url in enumerate(urls):
        try:
            found = _ask(
                server(url, access=access), Role.PREFILL if position < prefills else Role.DECODE, timeout, notes
            )
        except InvalidInput as error:
            broken += error.findings
            continue
        (roles if isinstance(found, RoleConfig) else routers).append(found)  # type: ignore[arg-type]  # each to its own list
    if not roles and not broken:
        broken.append(
            Finding(
                "--live",
                "only a frontend answers, which does not say how its workers store KV",
                "the workers themselves",
            )
        )
    if broken:
        raise InvalidInput(broken)
    names = named_roles(roles)
    source = " ".join(role.places["host"] for role in roles)
    return with_notes(Deployment(tuple(names), routers[0] if routers else None, launcher_of(roles), source), notes)


def _ask(target: Server, role: Role, timeout: float, notes: Notes) -> RoleConfig | Router:
    """The first of the known kinds of server that answers as its kind does."""
    try:
        if (said := get_json(target, "/version", timeout)) is not None and "version" in said:
            return _vllm(target, role, str(said["version"]), timeout, notes)
        if (said := get_json(target, "/server_info", timeout)) is not None and "tp_size" in said:
            return _sglang(target, role, said, "/server_info")
        if (said := get_json(target, "/get_server_info", timeout)) is not None and "tp_size" in said:
            return _sglang(target, role, said, "/get_server_info")
        if (said := get_json(target, ROUTE, timeout)) is not None and "page_size" in said:
            return _bootstrap(target, said, notes)
        metrics = get(target, "/metrics", timeout) or ""
        if "vllm:cache_config_info" in metrics:
            return _vllm(target, role, "", timeout, notes)
        if (said := get_json(target, "/health", timeout)) is not None and "instances" in said:
            return Router("dynamo.frontend", {"components": _components(said)}, {"components": target.place("/health")})
    except Unreachable as error:
        raise InvalidInput(Finding(target.base, str(error), EXPECTED)) from None
    raise InvalidInput(Finding(target.base, "answers, but as no server that is known", EXPECTED))


def _components(said: Mapping[str, Any]) -> tuple[str, ...]:
    instances = said.get("instances")
    entries = [each for each in instances if isinstance(each, dict)] if isinstance(instances, list) else []
    return tuple(sorted({str(each.get("component", "")) for each in entries} - {""}))


def _blank(target: Server, engine: Engine, role: Role, release: str) -> RoleConfig:
    try:
        known = version(release) if release else None
    except InvalidInput:
        known = None
    places = {"host": target.base, "port": target.base, "version": target.place("/version")}
    return RoleConfig(role, engine, known, name=target.name, host=target.host, port=target.port, places=places)


# ---- vLLM -------------------------------------------------------------------------------------------------------------


def _vllm(target: Server, role: Role, release: str, timeout: float, notes: Notes) -> RoleConfig:
    config = _blank(target, Engine.VLLM, role, release)
    config = _with_model(config, target, get_json(target, "/v1/models", timeout))
    config = _with_metrics(config, target, get(target, "/metrics", timeout) or "")
    told = get_json(target, DEVELOPMENT, max(timeout, SLOW))
    whole = told.get("vllm_config") if told else None
    if isinstance(whole, Mapping):
        return _with_configuration(config, target, whole, told.get("vllm_env") if told else None)
    if config.connector is None:
        config = replace(config, connector=Connector(""))
    problem = "does not say its tensor parallelism, model type, attention backend and connector settings"
    notes.not_known(target.base, problem, "a server with VLLM_SERVER_DEV_MODE=1, or its launch command")
    return config


def _with_model(config: RoleConfig, target: Server, models: Mapping[str, Any] | None) -> RoleConfig:
    entries = models.get("data") if models else None
    first = entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
    length = first.get("max_model_len")
    place = target.place("/v1/models")
    return replace(
        config,
        served_name=str(first.get("id") or ""),
        model=str(first.get("root") or first.get("id") or ""),
        max_model_len=length if isinstance(length, int) else None,
        places={**config.places, "model": place, "served_name": place, "max_model_len": place},
    )


_LABELS = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_CONNECTOR_METRICS = {
    "vllm:nixl_": "NixlConnector",
    "vllm:mooncake_": "MooncakeConnector",
    "vllm:diptych_": "DiptychConnector",
}
_MODULES = {"DiptychConnector": "diptych.integrations.vllm"}


def cache_labels(metrics: str) -> list[dict[str, str]]:
    """The labels of every `vllm:cache_config_info` sample: the cache configuration as resolved, one for each DP rank."""
    lines = [line for line in metrics.splitlines() if line.startswith("vllm:cache_config_info{")]
    return [dict(_LABELS.findall(line)) for line in lines]


def _with_metrics(config: RoleConfig, target: Server, metrics: str) -> RoleConfig:
    samples = cache_labels(metrics)
    place = target.place("/metrics")
    labels = samples[0] if samples else {}
    places = dict(config.places)
    for name, setting in (
        ("block_size", "block_size"),
        ("cache_dtype", "kv_cache_dtype"),
        ("enable_prefix_caching", "prefix_caching"),
    ):
        if name in labels:
            places[setting] = place
    env = dict(config.env)
    if labels.get("kv_cache_layout", "None") != "None":
        env["VLLM_KV_CACHE_LAYOUT"], places["VLLM_KV_CACHE_LAYOUT"] = EnvValue(text=labels["kv_cache_layout"]), place
    name = next((name for prefix, name in _CONNECTOR_METRICS.items() if f"\n{prefix}" in f"\n{metrics}"), "")
    connector = None
    if name:
        role = "kv_producer" if config.role is Role.PREFILL else "kv_consumer"
        path = {"kv_connector_module_path": _MODULES[name]} if name in _MODULES else {}
        connector = Connector(name, role, {"kv_connector": name, "kv_role": role, **path})
        places["connector"] = place
    return replace(
        config,
        block_size=whole(labels.get("block_size", "")) or None,
        kv_cache_dtype=labels.get("cache_dtype", "auto"),
        prefix_caching={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
        dp=max(1, len({each.get("engine", "0") for each in samples})),
        connector=connector,
        env=env,
        places=places,
    )


_CONFIGURATION: Mapping[str, Mapping[str, str]] = {
    "model_config": {
        "model": "model",
        "revision": "revision",
        "tokenizer": "tokenizer",
        "dtype": "dtype",
        "quantization": "quantization",
        "max_model_len": "max_model_len",
    },
    "cache_config": {
        "block_size": "block_size",
        "cache_dtype": "kv_cache_dtype",
        "enable_prefix_caching": "prefix_caching",
    },
    "parallel_config": {
        "tensor_parallel_size": "tp",
        "pipeline_parallel_size": "pp",
        "data_parallel_size": "dp",
        "enable_expert_parallel": "ep",
        "decode_context_parallel_size": "dcp",
        "prefill_context_parallel_size": "pcp",
    },
    "scheduler_config": {"max_num_seqs": "max_seqs", "max_num_batched_tokens": "max_batched_tokens"},
    "attention_config": {"backend": "attention_backend"},
}
_ENVIRONMENT = re.compile(r"VLLM_(NIXL|MOONCAKE|KV_CACHE_LAYOUT|SSM_CONV_STATE_LAYOUT|ROCM_USE_AITER|P2P)\w*")


def _with_configuration(config: RoleConfig, target: Server, whole: Mapping[str, Any], env: object) -> RoleConfig:
    """Everything that development mode tells, over what the other answers did."""
    place = target.place(DEVELOPMENT)
    values: dict[str, Any] = {}
    for section, fields in _CONFIGURATION.items():
        told = whole.get(section)
        for name, setting in fields.items():
            if isinstance(told, Mapping) and told.get(name) is not None:
                values[setting] = _plain(told[name])
    transfer = whole.get("kv_transfer_config")
    connector = None
    if isinstance(transfer, Mapping) and transfer.get("kv_connector"):
        connector = connector_of(
            {name: value for name, value in hidden_inside(dict(transfer)).items() if value is not None}
        )
    speculative = whole.get("speculative_config")
    if isinstance(speculative, Mapping):
        kept = ("method", "model", "num_speculative_tokens")
        values["speculative"] = {name: speculative[name] for name in kept if speculative.get(name) is not None}
    speculation = values.pop("speculative", {})
    device = whole.get("device_config")
    on_cpu = isinstance(device, Mapping) and "cpu" in (device.get("device"), device.get("device_type"))
    return replace(
        config,
        gpu="cpu" if on_cpu else config.gpu,
        **of_their_types(values),
        speculative=speculation,
        connector=connector,
        role={"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}.get(
            connector.role if connector else "", config.role
        ),
        env={**config.env, **dict(_environment(env))},
        places={**config.places, **dict.fromkeys((*values, "connector", "speculative"), place)},
    )


def _plain(value: Any) -> Any:
    return value.removeprefix("torch.") if isinstance(value, str) else value


def _environment(told: object) -> Iterator[tuple[str, EnvValue]]:
    for name, value in told.items() if isinstance(told, Mapping) else ():
        if _ENVIRONMENT.fullmatch(str(name)) and value is not None and not is_secret(str(name)):
            yield str(name), EnvValue(text=str(value))


# ---- SGLang -----------------------------------------------------------------------------------------------------------

_INVERTED = "disable-radix-cache"


def _sglang(target: Server, role: Role, said: Mapping[str, Any], path: str) -> RoleConfig:
    """Its settings as resolved, by the names of its flags; values that say nothing (null, false, empty) are left out."""
    config = _blank(target, Engine.SGLANG, role, str(said.get("version") or ""))
    fields, place = FIELDS[Engine.SGLANG], target.place(path)
    values: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for flag in set(flag_table("sglang").spellings.values()):
        value = said.get(flag.name.replace("-", "_"))
        if value in (None, "", False) or value in ([], {}) or flag.name in ("host", "port"):
            continue
        if flag.name in fields:
            values[fields[flag.name]] = (not value) if flag.name == _INVERTED else value
        else:
            options[flag.name] = _shown(flag.name, value)
    mode = str(said.get("disaggregation_mode") or "")
    names = [*values, *options, "version"]
    return replace(
        config,
        **of_their_types(values),
        role={"prefill": Role.PREFILL, "decode": Role.DECODE}.get(mode, role),
        ep=int(said.get("ep_size") or 1) > 1,
        options=dict(sorted(options.items())),
        places={**config.places, **dict.fromkeys(names, place)},
    )


def _shown(name: str, value: Any) -> Any:
    if is_secret(name):
        return HIDDEN
    return hidden(name, value) if isinstance(value, str) else hidden_inside(value)


def _bootstrap(target: Server, said: Mapping[str, Any], notes: Notes) -> RoleConfig:
    """What a prefill's bootstrap server tells every decode before the first transfer."""
    config = _blank(target, Engine.SGLANG, Role.PREFILL, "")
    fields = {"attn_tp_size": "tp", "attn_cp_size": "pcp", "dp_size": "dp", "pp_size": "pp", "page_size": "block_size"}
    values: dict[str, Any] = {setting: said[name] for name, setting in fields.items() if said.get(name) is not None}
    if said.get("kv_cache_dtype"):
        values["kv_cache_dtype"] = said["kv_cache_dtype"]
    options: dict[str, Any] = {"disaggregation-mode": "prefill", "disaggregation-bootstrap-port": target.port}
    if said.get("decode_allocation_policy"):
        options["disaggregation-decode-allocation-policy"] = str(said["decode_allocation_policy"])
    notes.not_known(target.base, "a bootstrap server does not say its model", "the server itself")
    port = said.get("prefill_http_port")
    return replace(
        config,
        **of_their_types(values),
        port=port if isinstance(port, int) else None,
        options=options,
        places={**config.places, **dict.fromkeys([*values, *options], target.place("/route"))},
    )
