"""vLLM over diptych's own connector, which converts: what it needs, and what it refuses (VD1 to VD9).

What it takes of `kv_connector_extra_config` is in `engines/data/diptych_settings.csv`; a test holds the table and the connector
together.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf

from diptych.boundary.element import ScaleSource
from diptych.boundary.format import element_named
from diptych.boundary.messages import MAX_LEASE_MS
from diptych.design.axes import Role
from diptych.engines.engine import Version, Versions
from diptych.engines.resolve import Joint
from diptych.engines.resolve_vllm import DIPTYCH, handoff
from diptych.engines.role import RoleConfig
from diptych.engines.rule import Clash, Severity
from diptych.engines.rules.vllm_pair import (
    are_apart,
    both,
    extra,
    field,
    has_latent,
    has_state,
    is_diptych,
    kv_heads,
    kv_role,
    number,
    one_sided,
    place,
    roles,
    vllm_rule,
)
from diptych.errors import InvalidInput, did_you_mean
from diptych.hosts import is_loopback

MODULE = "diptych.integrations.vllm"
SERVED = Versions(Version((0, 32, 0)), Version((0, 34, 0)))
"""Releases whose connector API it was written for."""
KV_WORDS = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")
SHORT_LEASE = 2.0
"""Seconds within which a router has surely brought a ticket to decode, whose renewals begin there."""
_TLS = ("certificate", "key", "authority")
_SOURCE = "diptych.integrations.vllm"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the connector's dictionary: a number with bounds, a text, or one of some words."""

    key: str
    kind: str
    low: float
    high: float

    def wrong(self, value: object) -> str:
        """What is expected instead of `value`; '' where it is right, or a variable of a script that decides it when it runs."""
        if isinstance(value, str) and value.startswith("$"):
            return ""
        if self.kind in ("number", "whole"):
            kinds = int if self.kind == "whole" else int | float
            is_right = isinstance(value, kinds) and not isinstance(value, bool) and self.low <= value <= self.high
            return "" if is_right else f"a number from {self.low:g} to {self.high:g}"
        if not isinstance(value, str):
            return "a string"
        if self.kind == "wire":
            return "" if _is_wire(value) else "raw, fp8, int8 or a float format"
        return "" if self.kind == "text" or value in self.kind.split("|") else self.kind.replace("|", " or ")


@cache
def settings() -> dict[str, Setting]:
    """Every key that the connector reads."""
    text = (files("diptych.engines") / "data" / "diptych_settings.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {
        row["key"]: Setting(row["key"], row["kind"], float(row["low"] or 0), _high(row["key"], row["high"]))
        for row in rows
    }


def _high(key: str, text: str) -> float:
    return MAX_LEASE_MS / 1000 if key == "lease_s" else float(text or inf)


def _is_wire(name: str) -> bool:
    if name.strip().casefold() in ("", "raw", "fp8"):
        return True
    try:
        element_named(name.strip().casefold())
    except InvalidInput:
        return False
    return True


def _ours(joint: Joint) -> Iterator[RoleConfig]:
    for role in roles(joint):
        connector = handoff(role)
        if connector is not None and connector.name == DIPTYCH:
            yield role


def _module(joint: Joint) -> Iterator[Clash]:
    """VD1."""
    for role in _ours(joint):
        said = field(role, "kv_connector_module_path")
        if said != MODULE:
            problem = f"kv_connector_module_path {said!r}" if said else "no kv_connector_module_path"
            yield Clash(*one_sided(role, problem), f"set kv_connector_module_path to {MODULE}", place(role))


def _settings(joint: Joint) -> Iterator[Clash]:
    """VD2."""
    known = settings()
    for role in _ours(joint):
        for key, value in extra(role).items():
            if key not in known:
                change = f"rename or remove it ({did_you_mean(key, list(known))})"
                yield Clash(*one_sided(role, f"the connector knows no {key!r}"), change, place(role))
            elif expected := known[key].wrong(value):
                yield Clash(*one_sided(role, f"{key} {value!r:.40}"), f"set {key} to {expected}", place(role))
        named = [name for name in _TLS if extra(role).get(name)]
        if named and len(named) < len(_TLS):
            missing = ", ".join(name for name in _TLS if name not in named)
            yield Clash(*one_sided(role, f"{named[0]} without {missing}"), "give all three, or none", place(role))
        if role.role is Role.PREFILL and extra(role).get("ownership") == "push" and not extra(role).get("port"):
            change = "set port: under push decode asks before there is a ticket"
            yield Clash(*one_sided(role, "ownership push without port"), change, place(role))


def _versions(joint: Joint) -> Iterator[Clash]:
    """VD3."""
    for role in _ours(joint):
        if role.version is not None and role.version not in SERVED:
            change = f"run vLLM {SERVED.first} or a later one before {SERVED.end}"
            yield Clash(*one_sided(role, f"vLLM {role.version}"), change, place(role, "version"))


def _role_words(joint: Joint) -> Iterator[Clash]:
    """VD4."""
    for role in _ours(joint):
        wanted = "kv_producer" if role.role is Role.PREFILL else "kv_consumer"
        told = kv_role(role)
        if told and told != wanted:
            problem = f"kv_role {told} on {role.role}"
            yield Clash(*one_sided(role, problem), f"set kv_role to {wanted} on {role.role}", place(role))


def _without_effect(joint: Joint) -> Iterator[Clash]:
    """VD5."""
    for role in _ours(joint):
        for name in ("wire", "ownership", "lease_s"):
            if role.role is Role.DECODE and name in extra(role):
                change = f"set {name} on prefill: it keeps, converts and sends"
                yield Clash(*one_sided(role, f"{name} on decode"), change, place(role))


def _lease(joint: Joint) -> Iterator[Clash]:
    """VD6. Decode renews a prompt that it waits for; nobody does on the way from prefill to decode."""
    if not is_diptych(joint):
        return
    held = number(extra(joint.prefill).get("lease_s"), 30.0)
    if held < SHORT_LEASE:
        change = f"set lease_s to {SHORT_LEASE:g} or more on prefill"
        yield Clash(
            f"lease of {held:g} s", "", change, place(joint.prefill), "it runs out before decode has the request"
        )


def _hosts(joint: Joint) -> Iterator[Clash]:
    """VD7. Without `host` a worker is asked on a socket file; off this host nobody listens without certificates."""
    for role in _ours(joint):
        host = str(extra(role).get("host") or "")
        leaves = bool(host) and not is_loopback(host)
        if leaves and not extra(role).get("certificate"):
            change = "set certificate, key and authority for mutual TLS"
            yield Clash(*one_sided(role, f"host {host} without TLS"), change, place(role), severity=Severity.STARTUP)
        if host in ("0.0.0.0", "::"):  # noqa: S104  it is refused
            change = "set host to the address at which the other role reaches this one"
            yield Clash(*one_sided(role, f"host {host}"), change, place(role), severity=Severity.STARTUP)
        elif is_diptych(joint) and are_apart(joint) and not leaves:
            problem = f"asked at {host or 'a socket file'}, with the other role elsewhere"
            change = "set host to the address at which the other role reaches this one, and the files for mutual TLS"
            yield Clash(*one_sided(role, problem), change, place(role))


def _caches(joint: Joint) -> Iterator[Clash]:
    """VD8. What is refused when a worker's cache is looked at."""
    for role, stored in ((joint.prefill, joint.prefill_stored), (joint.decode, joint.decode_stored)):
        if role not in tuple(_ours(joint)):
            continue
        if role.kv_cache_dtype and role.kv_cache_dtype not in KV_WORDS:
            change = f"set --kv-cache-dtype to one of {', '.join(KV_WORDS)}"
            yield Clash(*one_sided(role, f"KV {role.kv_cache_dtype}"), change, place(role, "kv_cache_dtype"))
        elif stored.scaling is not None and stored.scaling.source in (ScaleSource.CHECKPOINT, ScaleSource.DYNAMIC):
            change = "load a checkpoint without KV scales, or set --kv-cache-dtype bfloat16"
            yield Clash(*one_sided(role, "KV scales other than one"), change, place(role, "model"))
        if role.pp > 1:
            yield Clash(*one_sided(role, f"PP {role.pp}"), "set --pipeline-parallel-size 1", place(role, "pp"))
    if is_diptych(joint) and (what := _layers(joint)):
        change = "use NixlConnector for this model"
        yield Clash(what, what, change, both(joint, "model"))


def _layers(joint: Joint) -> str:
    """Layers of a kind that it does not hand over; '' where there are none."""
    if has_latent(joint):
        return "latent (MLA) KV"
    if has_state(joint):
        return "layers that keep a state"
    groups = joint.model.attention_groups() if joint.model else ()
    return "sliding windows" if any(attention.window for _, attention in groups) else ""


def _ranks(joint: Joint) -> Iterator[Clash]:
    """VD9. Each decode rank is sent its heads by the prefill ranks that have them."""
    heads = kv_heads(joint)
    if not is_diptych(joint) or joint.prefill.tp == joint.decode.tp:
        return
    for role in roles(joint):
        if heads and heads % role.tp and role.tp % heads:
            change = f"choose a tensor-parallel size that divides {heads}, or that it divides"
            yield Clash(*one_sided(role, f"TP {role.tp} over {heads} KV heads"), change, place(role, "tp"))


RULES = (
    vllm_rule(
        "VD1",
        Severity.STARTUP,
        "DiptychConnector is loaded from its module.",
        _module,
        "vLLM 0.33 kv_connector/factory.py (kv_connector_module_path)",
        "Unsupported connector type",
    ),
    vllm_rule(
        "VD2",
        Severity.STARTUP,
        "Its settings are known, within their bounds, and whole.",
        _settings,
        f"{_SOURCE}.settings",
        "kv_connector_extra_config",
    ),
    vllm_rule(
        "VD3",
        Severity.STARTUP,
        "It runs in a release whose connector API it was written for.",
        _versions,
        f"{_SOURCE}.connector",
    ),
    vllm_rule(
        "VD4",
        Severity.REQUEST,
        "Prefill is kv_producer and decode kv_consumer.",
        _role_words,
        f"{_SOURCE}.connector",
    ),
    vllm_rule(
        "VD5",
        Severity.SLOW,
        "What prefill alone decides is set on prefill.",
        _without_effect,
        f"{_SOURCE}.leaving",
    ),
    vllm_rule(
        "VD6",
        Severity.REQUEST,
        "Prefill keeps a prompt until decode has been asked for it.",
        _lease,
        f"{_SOURCE}.scheduling",
    ),
    vllm_rule(
        "VD7",
        Severity.REQUEST,
        "Each role is asked at an address that the other reaches, with certificates where that leaves the host.",
        _hosts,
        f"{_SOURCE}.settings",
        "leaves this host",
    ),
    vllm_rule(
        "VD8",
        Severity.STARTUP,
        "The cache is one that the connector can read: whole attention, one shape, floats or FP8 without scales, one stage.",
        _caches,
        f"{_SOURCE}.selftest, {_SOURCE}.facts",
        "is not handed over",
    ),
    vllm_rule(
        "VD9",
        Severity.REQUEST,
        "The heads can be dealt out evenly to either side's ranks.",
        _ranks,
        f"{_SOURCE}.joint",
    ),
)
