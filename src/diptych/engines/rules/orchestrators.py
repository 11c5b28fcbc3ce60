"""What routers and operators add: rules of the whole deployment, found at each of its pairs alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diptych.engines.deployment import Deployment
from diptych.engines.engine import Engine, Launcher, Version, Versions
from diptych.engines.resolve import Joint
from diptych.engines.role import RoleConfig, whole
from diptych.engines.rule import Clash, Rule, Severity
from diptych.engines.rules.names import base_name
from diptych.engines.rules.sglang_pair import transfer_backend

DYNAMO_FRONTEND = "dynamo.frontend"
PREFIX_DECIDER = "prefix-based-pd-decider"

_POOLED = (Launcher.KSERVE, Launcher.LLM_D)
_DOCS = "https://github.com/llm-d/llm-d/blob/main/docs/architecture/advanced/disaggregation"
_COMPARED = ("engine", "version", "model", "kv_cache_dtype", "dtype", "block_size", "attention_backend")


def _one_class(joint: Joint) -> Iterator[Clash]:
    """Roles of one kind in one pool that cannot all read, or all be read by, the other side."""
    if not _is_pooled(joint.deployment):
        return
    for mine in (joint.prefill, joint.decode):
        alike = joint.deployment.of(mine.role)
        for other in alike[alike.index(mine) + 1 :]:
            unlike = [name for name in _COMPARED if _compared(mine, name) != _compared(other, name)]
            if unlike:
                words = " and ".join(f"{role.name or role.role}: {_spelled(role, unlike)}" for role in (mine, other))
                yield Clash(
                    words if mine is joint.prefill else "",
                    words if mine is joint.decode else "",
                    "put each into a pool (InferencePool) of its own and route between pools",
                    tuple(role.place(unlike[0]) for role in (mine, other)),
                )


def _is_pooled(deployment: Deployment) -> bool:
    """Whether an endpoint picker pairs any prefill of the pool with any decode."""
    router = deployment.router
    return deployment.launcher in _POOLED or (router is not None and router.kind == "epp")


def _compared(role: RoleConfig, name: str) -> object:
    return base_name(role.model) if name == "model" else getattr(role, name)


def _spelled(role: RoleConfig, names: list[str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {getattr(role, name) or 'not set'}" for name in names)


def _has_connectors(joint: Joint) -> Iterator[Clash]:
    """A vLLM role without a connector computes the prompt again and says so in one warning."""
    missing = [role for role in (joint.prefill, joint.decode) if role.engine is Engine.VLLM and role.connector is None]
    if not missing:
        return
    refuses = joint.deployment.launcher is Launcher.DYNAMO and joint.prefill in missing
    yield Clash(
        _connector(joint.prefill),
        _connector(joint.decode),
        "give --kv-transfer-config to both roles",
        tuple(role.place("connector") for role in missing),
        "Dynamo refuses such a prefill worker" if refuses else "the prompt is prefilled twice, with HTTP 200",
        Severity.STARTUP if refuses else None,
    )


def _connector(role: RoleConfig) -> str:
    return role.connector.name if role.connector is not None else "no connector"


def _decider(joint: Joint) -> Iterator[Clash]:
    """The thresholds of llm-d's decider against zero, which turns disaggregation off, and against the longest prompt."""
    router = joint.deployment.router
    if router is None:
        return
    longest = joint.deployment.expected.prompt_max
    for parameters in _deciders(router.settings):
        fresh = whole(parameters.get("nonCachedTokens"), 0)
        place = (router.places.get("nonCachedTokens", f"{PREFIX_DECIDER} nonCachedTokens"),)
        if not fresh:
            change = "set nonCachedTokens above 0, or use always-disagg-pd-decider"
            yield Clash("", "nonCachedTokens 0: no request is ever disaggregated", change, place)
        for name in ("nonCachedTokens", "promptTokens"):
            if longest is not None and whole(parameters.get(name), 0) > longest:
                yield Clash(
                    "",
                    f"{name} {parameters[name]} above the longest prompt, {longest:g} tokens",
                    f"set {name} below {longest:g}",
                    (router.places.get(name, f"{PREFIX_DECIDER} {name}"),),
                )


def _deciders(settings: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parameters of each prefix-based decider of an EndpointPickerConfig."""
    plugins = settings.get("plugins")
    for plugin in plugins if isinstance(plugins, list | tuple) else ():
        if isinstance(plugin, Mapping) and plugin.get("type") == PREFIX_DECIDER:
            parameters = plugin.get("parameters")
            yield parameters if isinstance(parameters, Mapping) else {}


def _conditional(joint: Joint) -> Iterator[Clash]:
    router, decode = joint.deployment.router, joint.decode
    if router is None or not router.settings.get("router-conditional-disagg"):
        return
    place = router.places.get("router-conditional-disagg", f"{DYNAMO_FRONTEND} --router-conditional-disagg")
    if decode.engine is Engine.SGLANG:
        yield Clash(
            "",
            "a SGLang decode answers 400 to the prompts that are to stay on it",
            "drop --router-conditional-disagg, or serve vLLM or TensorRT-LLM",
            (place,),
            severity=Severity.REQUEST,
        )
    elif not _publishes(decode):
        flag = (
            "--publish-kv-events"
            if decode.engine is Engine.TRTLLM
            else "--kv-events-config with enable_kv_cache_events"
        )
        yield Clash(
            "",
            "decode publishes no KV events, so the router cannot see what it has cached",
            f"give decode {flag}",
            (decode.place("kv-events-config"), place),
        )


def _publishes(role: RoleConfig) -> bool:
    """Whether a worker says that it publishes KV events; a configuration that could not be read is not doubted."""
    if role.engine is Engine.TRTLLM:
        return bool(role.options.get("publish-kv-events"))
    events = role.options.get("kv-events-config")
    return bool(events.get("enable_kv_cache_events")) if isinstance(events, Mapping) else bool(events)


def _stranded(joint: Joint) -> Iterator[Clash]:
    """SGLang over NIXL behind llm-d: prefill has no timeout of its own for KV that decode never fetched."""
    prefill = joint.prefill
    if joint.deployment.launcher is not Launcher.LLM_D or prefill.engine is not Engine.SGLANG:
        return
    if transfer_backend(prefill) == "nixl":
        yield Clash(
            "KV of a lost decode is held until the pod restarts",
            "",
            "upgrade to SGLang 0.5.23, or use Mooncake or MoRI, whose bootstrap timeout is 300 s",
            (prefill.place("disaggregation-transfer-backend"),),
        )


RULES = (
    Rule(
        "OR1",
        None,
        Severity.REQUEST,
        "A pool holds one compatibility class: the endpoint picker pairs any prefill with any decode.",
        f"{_DOCS}/operations-vllm.md (Rollouts)",
        _one_class,
    ),
    Rule(
        "OR2",
        Engine.VLLM,
        Severity.SLOW,
        "Both roles have a connector where the topology disaggregates.",
        "https://github.com/kserve/kserve/issues/5987, whose templates bring one since "
        "https://github.com/kserve/kserve/pull/6027; Dynamo 1.6.1 dynamo/vllm/args.py",
        _has_connectors,
        message="Got kv_transfer_params, but no KVConnector found. Disabling KVTransfer for this request.",
    ),
    Rule(
        "OR3",
        None,
        Severity.SLOW,
        "The decider's thresholds are above 0 and within the prompts.",
        "https://github.com/llm-d/llm-d-router/pull/871, https://github.com/llm-d/llm-d-router/pull/933",
        _decider,
    ),
    Rule(
        "OR4",
        None,
        Severity.SLOW,
        "Conditional disaggregation in Dynamo sees decode's KV events, and decode is not SGLang.",
        "Dynamo docs, conditional disaggregation; Dynamo 1.6.1 dynamo/vllm/args.py (create_kv_events_config), "
        "dynamo/sglang/request_handlers/llm/decode_handler.py",
        _conditional,
        message="SGLang backend does not support conditional disaggregation yet.",
    ),
    Rule(
        "OR5",
        Engine.SGLANG,
        Severity.LEAK,
        "SGLang prefill behind llm-d uses a backend that times out for a decode that is gone, which NIXL does not.",
        f"{_DOCS}/operations-sglang.md (Decode Instance Failure); SGLang 0.5.23 disaggregation/common/conn.py "
        "(_check_bootstrap_timeout) times out whatever the backend, earlier releases were not read",
        _stranded,
        Versions(end=Version((0, 5, 23))),
    ),
)
