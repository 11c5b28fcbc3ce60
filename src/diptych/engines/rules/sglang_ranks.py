"""Ranks that SGLang can bring together, when decode's KV is reserved, and roles that switch (SG4 to SG6, SG10)."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.engines.engine import Engine, Version
from diptych.engines.resolve import Joint
from diptych.engines.resolve_sglang import attention_tp
from diptych.engines.role import RoleConfig, whole
from diptych.engines.rule import Clash, Rule, Severity
from diptych.engines.rules.sglang_pair import CONN, HOOK, STAGING, allocation_policy, transfer_backend, uses_staging

_SWA_SLICED = Version((0, 5, 23))
"""Read in 0.5.23, which slices sliding-window pages by head over Mooncake and NIXL; 0.5.16 refused (llm-d#2433)."""
_BACKENDS_OF_ROLE_SWITCH = ("mooncake", "mori")


def _decode_topology(joint: Joint) -> Iterator[Clash]:
    prefill, decode = joint.prefill, joint.decode
    if decode.pcp > 1:
        yield Clash(
            f"attention CP {prefill.pcp}",
            f"attention CP {decode.pcp}",
            "leave --attn-cp-size at 1 on decode",
            (decode.place("pcp"),),
        )
    if decode.pp not in (1, prefill.pp):
        yield Clash(
            f"PP {prefill.pp}",
            f"PP {decode.pp}",
            f"set --pp-size 1 or {prefill.pp} on decode",
            (prefill.place("pp"), decode.place("pp")),
        )
    if prefill.dcp not in (1, decode.dcp):
        yield Clash(
            f"DCP {prefill.dcp}",
            f"DCP {decode.dcp}",
            f"set --dcp-size 1 on prefill, or {prefill.dcp} on decode",
            (prefill.place("dcp"), decode.place("dcp")),
        )


def _head_sharding(joint: Joint) -> Iterator[Clash]:
    """MHA and GQA with unlike attention TP; MLA keeps one latent on every rank and is exempt."""
    prefill, decode, model = joint.prefill, joint.decode, joint.model
    ranks = (attention_tp(prefill), attention_tp(decode))
    if ranks[0] == ranks[1] or model is None or any(attention.is_mla for _, attention in model.attention_groups()):
        return
    refused = _refused_sharding(joint)
    if not refused and uses_staging(prefill) and uses_staging(decode):
        return
    yield Clash(
        f"attention TP {ranks[0]}",
        f"attention TP {ranks[1]}",
        f"set the same --tp on both roles{'' if refused else f', or {STAGING}=1 on both'}",
        (prefill.place("tp"), decode.place("tp")),
        refused
        or "heads are cut out of each page: about 30,000 small RDMA writes for a request without the staging buffer",
        Severity.REQUEST if refused else Severity.SLOW,
    )


def _refused_sharding(joint: Joint) -> str:
    """Why the transfer itself raises on unlike attention TP; empty where it only is slow."""
    prefill, model = joint.prefill, joint.model
    if "mxfp8" in (prefill.kv_cache_dtype, joint.decode.kv_cache_dtype):
        return "the block scales of MXFP8 KV are not cut by head"
    if model is not None and any(attention.window for _, attention in model.attention_groups()):
        if transfer_backend(prefill) not in ("mooncake", "nixl"):
            return f"{transfer_backend(prefill)} does not cut sliding-window pages by head"
        if prefill.release < _SWA_SLICED:
            return "this release does not cut sliding-window pages by head"
        if prefill.pp > 1:
            return "sliding-window pages of a pipeline stage are not cut by head"
    return ""


def _allocation(joint: Joint) -> Iterator[Clash]:
    prefill, decode = joint.prefill, joint.decode
    flag = "disaggregation-decode-allocation-policy"
    policies = (allocation_policy(prefill), allocation_policy(decode))
    if policies[0] != policies[1]:
        places = (prefill.place(flag), decode.place(flag))
        yield Clash(policies[0], policies[1], f"set the same --{flag} on both roles", places)
    for role in (prefill, decode):
        if allocation_policy(role) == "prefill_complete" and (why := _without_deferral(role)):
            yield Clash(
                "" if role is decode else why,
                why if role is decode else "",
                f"use Mooncake with attention TP 1 and PP 1, or --{flag} early",
                (role.place(flag),),
                severity=Severity.STARTUP,
            )


def _without_deferral(role: RoleConfig) -> str:
    """Why prefill_complete is refused at start-up (`_validate_prefill_complete`); empty where it is not."""
    if transfer_backend(role) != "mooncake":
        return f"prefill_complete over {transfer_backend(role)}"
    if attention_tp(role) != 1:
        return f"prefill_complete with attention TP {attention_tp(role)}"
    return f"prefill_complete with PP {role.pp}" if role.pp > 1 else ""


def _role_switch(joint: Joint) -> Iterator[Clash]:
    for role in (joint.prefill, joint.decode):
        if not role.options.get("enable-pd-role-switch"):
            continue
        for why, severity in _no_switch(role):
            yield Clash(
                "" if role is joint.decode else why,
                why if role is joint.decode else "",
                "drop --enable-pd-role-switch, or what it does not go with",
                (role.place("enable-pd-role-switch"),),
                severity=severity,
            )


def _no_switch(role: RoleConfig) -> Iterator[tuple[str, Severity]]:
    """What a role switch does not go with: refused at start-up, or when the switch is asked for."""
    for name, is_on in (
        ("expert parallelism", role.ep or whole(role.options.get("ep-size"), 1) > 1),
        (f"PP {role.pp}", role.pp > 1),
        (f"DCP {role.dcp}", role.dcp > 1),
        ("speculative decoding", bool(role.speculative or role.options.get("speculative-algorithm"))),
    ):
        if is_on:
            yield f"role switch with {name}", Severity.STARTUP
    if transfer_backend(role) not in _BACKENDS_OF_ROLE_SWITCH:
        yield f"role switch over {transfer_backend(role)}", Severity.REQUEST
    if uses_staging(role):
        yield "role switch with the staging buffer", Severity.REQUEST


RULES = (
    Rule(
        "SG4",
        Engine.SGLANG,
        Severity.REQUEST,
        "Decode has attention CP 1 and PP 1 or prefill's, and prefill DCP 1 or decode's.",
        f"{CONN} (_resolve_rank_mapping, requires_dcp_relayout)",
        _decode_topology,
        message="should be equal to",
    ),
    Rule(
        "SG5",
        Engine.SGLANG,
        Severity.REQUEST,
        "Heads are sharded alike on both roles, unless the staging buffer gathers them (MLA is exempt).",
        "SGLang 0.5.23 disaggregation/{nixl,mooncake,mori}/conn.py; https://github.com/sgl-project/sglang/pull/19890, "
        "https://github.com/llm-d/llm-d/issues/2433",
        _head_sharding,
        message="PD Disaggregation does NOT support",
    ),
    Rule(
        "SG6",
        Engine.SGLANG,
        Severity.REQUEST,
        "Both roles reserve decode's KV by one policy, and prefill_complete goes with Mooncake at attention TP 1 and PP 1.",
        f"{CONN}, {HOOK} (_validate_prefill_complete)",
        _allocation,
        message="Disaggregation decode allocation policy mismatch: ",
    ),
    Rule(
        "SG10",
        Engine.SGLANG,
        Severity.STARTUP,
        "Roles switch over Mooncake or MoRI only, without EP, PP, DCP, speculation or the staging buffer.",
        f"{HOOK}, disaggregation/role_switch.py",
        _role_switch,
        message="--enable-pd-role-switch does not rebuild role-specific state",
    ),
)
