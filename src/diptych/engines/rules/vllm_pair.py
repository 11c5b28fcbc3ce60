"""What vLLM's rules ask of a pair again and again: how KV is moved, by whom it is checked, how ranks and blocks compare."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from math import isfinite
from typing import Any

from diptych.design.axes import Role
from diptych.engines.engine import EVERY, Engine, Launcher, Versions
from diptych.engines.resolve import Joint
from diptych.engines.resolve_vllm import DIPTYCH, MOONCAKE, handoff, is_mla, needs_hybrid, transfer_mode
from diptych.engines.resolve_vllm_releases import HASHED
from diptych.engines.role import Connector, RoleConfig
from diptych.engines.rule import Clash, Rule, Severity

METADATA = "vLLM 0.33 kv_connector/v1/nixl/metadata.py"
WORKER = "vLLM 0.33 kv_connector/v1/nixl/base_worker.py"
HASH_MESSAGE = "NIXL compatibility hash mismatch"
LEASE, TTL = 30, 480
"""Seconds that prefill holds a finished prompt where nothing is set: `kv_lease_duration`, and the time-out before leases."""


def vllm_rule(
    id: str,
    severity: Severity,
    sentence: str,
    check: Callable[[Joint], Iterable[Clash]],
    source: str,
    message: str = "",
    versions: Versions = EVERY,
) -> Rule:
    return Rule(id, Engine.VLLM, severity, sentence, source, check, versions, message)


def mode(joint: Joint) -> str:
    """'pull' or 'push' when both roles run NIXL that way, else ''."""
    modes = {transfer_mode(joint.prefill), transfer_mode(joint.decode)}
    return modes.pop() if len(modes) == 1 else ""


def is_nixl(joint: Joint) -> bool:
    """Whether both roles run NIXL, in whatever mode."""
    return bool(transfer_mode(joint.prefill) and transfer_mode(joint.decode))


def is_mooncake(joint: Joint) -> bool:
    """Whether both roles run the Mooncake connector."""
    found = [handoff(role) for role in (joint.prefill, joint.decode)]
    return all(connector is not None and connector.name in MOONCAKE for connector in found)


def is_diptych(joint: Joint) -> bool:
    """Whether both roles run our own connector, which compares meanings and converts."""
    found = [handoff(role) for role in (joint.prefill, joint.decode)]
    return all(connector is not None and connector.name == DIPTYCH for connector in found)


def is_hashed(joint: Joint) -> bool:
    """Whether a differing hash stops the pair: the role that makes the handshake enforces it.

    Decode reads from prefill in pull mode and asks it; in push mode each asks the other.
    """
    if not is_nixl(joint) or joint.decode.release not in HASHED:
        return False
    asking = (joint.prefill, joint.decode) if mode(joint) == "push" else (joint.decode,)
    return any(is_true(extra(role).get("enforce_handshake_compat", True)) for role in asking)


def is_unchecked(joint: Joint) -> bool:
    """Whether NIXL runs with its comparison switched off by hand on either side."""
    return is_nixl(joint) and any(
        not is_true(extra(role).get("enforce_handshake_compat", True)) for role in (joint.prefill, joint.decode)
    )


def extra(role: RoleConfig) -> Mapping[str, Any]:
    """`kv_connector_extra_config` of the connector that hands KV over."""
    connector = handoff(role)
    return connector.extra if connector else {}


def field(role: RoleConfig, name: str, default: Any = None) -> Any:
    """A top-level field of that connector's configuration."""
    connector = handoff(role)
    return connector.fields.get(name, default) if connector else default


def kv_role(role: RoleConfig) -> str:
    """kv_producer, kv_consumer or kv_both, as the connector was told; '' when it was not."""
    connector = handoff(role)
    return connector.role or str(connector.fields.get("kv_role") or "") if connector else ""


def is_true(value: Any) -> bool:
    """A JSON flag, also where it was written as text."""
    return value.strip().casefold() in ("1", "true", "yes") if isinstance(value, str) else bool(value)


def number(value: Any, default: float) -> float:
    """A JSON number, also where it was written as text; `default` for what is none."""
    if isinstance(value, bool) or value is None:
        return default
    try:
        found = float(value)
    except (TypeError, ValueError):
        return default
    return found if isfinite(found) else default


def lease(role: RoleConfig) -> int:
    """Seconds for which prefill keeps a finished prompt's blocks."""
    return int(number(extra(role).get("kv_lease_duration"), LEASE))


def both(joint: Joint, setting: str) -> tuple[str, str]:
    """Where a setting was written on each side."""
    return joint.prefill.place(setting), joint.decode.place(setting)


def place(role: RoleConfig, setting: str = "connector") -> tuple[str]:
    return (role.place(setting),)


def one_sided(role: RoleConfig, value: str) -> tuple[str, str]:
    """(prefill, decode) of a clash in which one role alone is at fault."""
    return (value, "") if role.role is Role.PREFILL else ("", value)


def kv_heads(joint: Joint) -> int | None:
    return joint.model.kv_heads if joint.model else None


def has_latent(joint: Joint) -> bool:
    """Whether KV is a latent that every rank holds whole: nothing is cut by heads."""
    return is_mla(joint.model)


def has_state(joint: Joint) -> bool:
    """Whether layers leave a state of fixed size (Mamba, linear attention)."""
    return joint.model is not None and joint.model.state_bytes > 0


def rank_heads(tp: int, heads: int) -> int:
    """KV heads on one rank: one is repeated over ranks beyond the head count."""
    return max(1, heads // tp)


def uses_hybrid(role: RoleConfig, joint: Joint) -> bool:
    """Whether the hybrid manager is really at work: on, and layers are of more than one kind."""
    found = joint.prefill_stored if role is joint.prefill else joint.decode_stored
    return bool(found.hybrid) and bool(needs_hybrid(joint.model))


def roles(joint: Joint) -> Iterator[RoleConfig]:
    yield joint.prefill
    yield joint.decode


def are_apart(joint: Joint) -> bool | None:
    """Whether the roles run on different hosts or pods; None when nothing tells."""
    prefill, decode = joint.prefill, joint.decode
    if prefill.launcher is not Launcher.PLAIN or decode.launcher is not Launcher.PLAIN:
        return True
    if prefill.node and decode.node:
        return prefill.node != decode.node
    gpus = (joint.prefill_gpu, joint.decode_gpu)
    return True if None not in gpus and gpus[0] != gpus[1] else None


def same_node(joint: Joint) -> bool:
    """Whether both are said to run on one host."""
    return bool(joint.prefill.node) and joint.prefill.node == joint.decode.node


_FAMILIES = {
    "nixl": ("NixlConnector", "NixlPullConnector", "NixlPushConnector"),
    "mooncake": ("MooncakeConnector",),
    "multi": ("MultiConnector",),
    "offloading": ("OffloadingConnector",),
    "simple-offload": ("SimpleCPUOffloadConnector",),
    "moriio": ("MoRIIOConnector",),
}


def known_extras(connector: Connector) -> Mapping[str, str]:
    """Keys that a connector reads of its free dictionary, and what is lost without each; empty for one that is not tabled."""
    family = next((family for family, names in _FAMILIES.items() if connector.name in names), "")
    return _extras().get(family, {})


@cache
def _extras() -> Mapping[str, Mapping[str, str]]:
    text = (files("diptych.engines") / "data" / "vllm_extra_config.csv").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(text.splitlines()):
        found.setdefault(row["connector"], {})[row["key"]] = row["lost"]
    return found
