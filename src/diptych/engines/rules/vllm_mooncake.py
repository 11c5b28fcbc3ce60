"""vLLM's Mooncake connector: it compares the length of regions and nothing of what they mean (VM1 to VM5)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from diptych.boundary.descriptor import Layout
from diptych.engines.resolve import Joint
from diptych.engines.resolve_stored import same_bytes
from diptych.engines.resolve_vllm import MOONCAKE, handoff
from diptych.engines.role import RoleConfig
from diptych.engines.rule import Clash, Severity
from diptych.engines.rules.names import different_models
from diptych.engines.rules.vllm_pair import (
    both,
    extra,
    has_latent,
    is_mooncake,
    kv_heads,
    kv_role,
    one_sided,
    rank_heads,
    uses_hybrid,
    vllm_rule,
)

_SOURCE = "vLLM 0.33 kv_connector/v1/mooncake/mooncake_connector.py"
BOOTSTRAP_PORT = 8998


def region_tokens(joint: Joint) -> tuple[float, float] | None:
    """Bytes of a block on one rank, as multiples of one head's bytes per token and bit, on each side; None when not known.

    It is what the connector registers and compares, up to factors that one model has on both sides.
    """
    found = []
    for role, stored in ((joint.prefill, joint.prefill_stored), (joint.decode, joint.decode_stored)):
        if stored.moved_tokens is None or stored.element is None:
            return None
        heads = 1 if has_latent(joint) else _share(role.tp, kv_heads(joint))
        found.append(stored.moved_tokens * stored.element.bits * heads)
    return found[0], found[1]


def _share(tp: int, heads: int | None) -> float:
    """Heads on one rank; of an unknown number, the share that is not repeated."""
    return rank_heads(tp, heads) if heads else 1 / tp


def fits(joint: Joint) -> bool | None:
    """Whether the lengths agree as `_validate_asymmetric_region_lengths` wants them; None when a length is not known."""
    lengths = region_tokens(joint)
    if lengths is None:
        return None
    if has_latent(joint):
        return lengths[0] == lengths[1] or joint.prefill.tp != joint.decode.tp
    heads = kv_heads(joint)
    tps = [min(role.tp, heads) if heads else role.tp for role in (joint.prefill, joint.decode)]
    return lengths[0] * tps[0] == lengths[1] * tps[1]


def _lengths(joint: Joint) -> Iterator[Clash]:
    """VM2."""
    if not is_mooncake(joint) or fits(joint) is not False:
        return
    settings = ("kv_cache_dtype", "block_size") if joint.prefill.tp == joint.decode.tp else ("block_size", "tp")
    yield Clash(
        _block(joint.prefill, joint),
        _block(joint.decode, joint),
        "set the same --kv-cache-dtype and --block-size on both roles",
        tuple(each for setting in settings for each in both(joint, setting)),
    )


def _block(role: RoleConfig, joint: Joint) -> str:
    stored = joint.prefill_stored if role is joint.prefill else joint.decode_stored
    return f"blocks of {stored.moved_tokens} tokens in {stored.element}, TP {role.tp}"


def _groups(joint: Joint) -> Iterator[Clash]:
    """VM3: as many groups of layers on both sides, and as many blocks on prefill as decode asks for."""
    if not is_mooncake(joint):
        return
    if joint.prefill_stored.hybrid is not None and uses_hybrid(joint.prefill, joint) != uses_hybrid(
        joint.decode, joint
    ):
        change = "set --disable-hybrid-kv-cache-manager on both roles or on neither"
        said = [
            f"hybrid KV cache manager {'on' if uses_hybrid(role, joint) else 'off'}"
            for role in (joint.prefill, joint.decode)
        ]
        yield Clash(said[0], said[1], change, both(joint, "hybrid_kv_manager"), "KV group count mismatch")
    if not fits(joint):
        return
    prefill, decode = joint.prefill_stored.moved_tokens, joint.decode_stored.moved_tokens
    if prefill and decode and prefill > decode:
        change = "set the same --block-size on both roles"
        yield Clash(_block(joint.prefill, joint), _block(joint.decode, joint), change, both(joint, "block_size"))


def _unchecked(joint: Joint) -> Iterator[Clash]:
    """VM1: everything that must agree and that nothing compares, where lengths and counts let the pair through."""
    if not is_mooncake(joint) or fits(joint) is False:
        return
    ours, theirs = joint.prefill_stored, joint.decode_stored
    if ours.moved_tokens and theirs.moved_tokens and ours.moved_tokens > theirs.moved_tokens:
        return
    if different_models(joint.prefill.model, joint.decode.model):
        change = "serve one model on both roles"
        yield Clash(joint.prefill.model, joint.decode.model, change, both(joint, "model"))
    if same_bytes(ours, theirs) is False:
        change = "set the same --dtype and --kv-cache-dtype on both roles"
        places = (*both(joint, "kv_cache_dtype"), *(both(joint, "dtype") if ours.word == theirs.word else ()))
        yield Clash(_block(joint.prefill, joint), _block(joint.decode, joint), change, places, _taken(joint))
    elif ours.moved_tokens and theirs.moved_tokens and ours.moved_tokens != theirs.moved_tokens:
        change = "set the same --block-size on both roles"
        yield Clash(_block(joint.prefill, joint), _block(joint.decode, joint), change, both(joint, "block_size"))
    if (
        not has_latent(joint)
        and Layout.UNKNOWN not in (ours.layout, theirs.layout)
        and ours.layout is not theirs.layout
    ):
        change = "set one VLLM_KV_CACHE_LAYOUT on both roles"
        yield Clash(ours.layout, theirs.layout, change, both(joint, "VLLM_KV_CACHE_LAYOUT"))


def _taken(joint: Joint) -> str:
    if joint.prefill_stored.moved_tokens == joint.decode_stored.moved_tokens:
        return "blocks have equal lengths, and nothing else is compared"
    return "blocks have equal lengths, and decode takes the last of prefill's as if its prefix were cached"


def _bootstrap(joint: Joint) -> Iterator[Clash]:
    """VM4: prefill's bootstrap server is where decode and the proxy look for it, and alone on its port."""
    if not is_mooncake(joint):
        return
    prefill, name = joint.prefill, "VLLM_MOONCAKE_BOOTSTRAP_PORT"
    address = str(extra(prefill).get("bootstrap_server_address") or "")
    if (
        address.partition(":")[0].removeprefix("http://").startswith(("localhost", "127."))
        and prefill.node != joint.decode.node
    ):
        change = "set bootstrap_server_address to an address that decode reaches"
        yield Clash(f"bootstrap server at {address}", "", change, (prefill.place("connector"),))
    producers = [role for role in joint.deployment.roles if role.node and _is_producer(role)]
    for first, second in combinations(producers, 2):
        if first.node == second.node and _port(first) == _port(second):
            change = f"set {name} to another port on {second.name or second.role}"
            said = (f"{first.name}: bootstrap port {_port(first)}", f"{second.name}: bootstrap port {_port(second)}")
            yield Clash(*said, change, (first.place(name), second.place(name)), f"both on {first.node}")
    yield from _told(joint, name)


def _role_words(joint: Joint) -> Iterator[Clash]:
    """VM5. A consumer keeps nothing for others, and a producer asserts when it is asked to fetch."""
    if not is_mooncake(joint):
        return
    for role, wrong, right in (
        (joint.prefill, "kv_consumer", "kv_producer"),
        (joint.decode, "kv_producer", "kv_consumer"),
    ):
        if kv_role(role) == wrong:
            said = f"kv_role {wrong} on {role.role}"
            yield Clash(*one_sided(role, said), f"set kv_role to {right} on {role.role}", (role.place("connector"),))


def _told(joint: Joint, name: str) -> Iterator[Clash]:
    """`--prefill URL [PORT]` of vllm-router against the port that prefill listens on."""
    router = joint.deployment.router
    entries = router.settings.get("prefill") if router else None
    for entry in entries if isinstance(entries, list | tuple) else ():
        url, *rest = entry if isinstance(entry, list | tuple) else str(entry).split()
        told = str(rest[0]) if rest else ""
        is_this = joint.prefill.port is None or str(url).rstrip("/").endswith(f":{joint.prefill.port}")
        if router and is_this and told.isdigit() and int(told) != _port(joint.prefill):
            change = f"give the router --prefill URL {_port(joint.prefill)}"
            places = (joint.prefill.place(name), router.places.get("prefill", "router --prefill"))
            yield Clash(f"listens on {_port(joint.prefill)}", f"asked at {told}", change, places)


def _is_producer(role: RoleConfig) -> bool:
    connector = handoff(role)
    return connector is not None and connector.name in MOONCAKE and kv_role(role) != "kv_consumer"


def _port(role: RoleConfig) -> int:
    text = role.env_text("VLLM_MOONCAKE_BOOTSTRAP_PORT", str(BOOTSTRAP_PORT))
    return int(text) if text.isdigit() else BOOTSTRAP_PORT


RULES = (
    vllm_rule(
        "VM1",
        Severity.SILENT,
        "Model, KV format, block size and layout agree: the connector compares none of them.",
        _unchecked,
        f"{_SOURCE} (_validate_asymmetric_region_lengths)",
    ),
    vllm_rule(
        "VM2",
        Severity.REQUEST,
        "A block has as many bytes on both sides, or as many times more as there are fewer ranks.",
        _lengths,
        f"{_SOURCE} (_validate_asymmetric_region_lengths)",
        "KV region length",
    ),
    vllm_rule(
        "VM3",
        Severity.REQUEST,
        "Both sides have the same groups of layers, and prefill no fewer blocks than decode.",
        _groups,
        f"{_SOURCE} (_build_transfer_params)",
        "P num blocks less than D",
    ),
    vllm_rule(
        "VM4",
        Severity.REQUEST,
        "Prefill's bootstrap server can be reached from decode and the proxy.",
        _bootstrap,
        "vLLM docs/features/mooncake_connector_usage.md",
        "Failed to connect to bootstrap server",
    ),
    vllm_rule(
        "VM5",
        Severity.REQUEST,
        "Prefill is a producer and decode a consumer.",
        _role_words,
        f"{_SOURCE} (update_state_after_alloc asserts it)",
        "AssertionError",
    ),
)
