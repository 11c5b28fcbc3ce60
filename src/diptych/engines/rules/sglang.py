"""SGLang's rules: what its bootstrap compares at decode's first contact, what it does not, and what then goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diptych.boundary.element import Element
from diptych.engines.engine import Engine, Version
from diptych.engines.resolve import Joint
from diptych.engines.resolve_sglang import attention_tp, page_size
from diptych.engines.resolve_stored import same_bytes
from diptych.engines.role import RoleConfig, whole
from diptych.engines.rule import Clash, Rule, Severity
from diptych.engines.rules.names import different_models

BOOTSTRAP_PORT = 8998
RESERVED_TOKENS = 512
ROUTERS = ("sglang-router", "sglang_router", "smg")
ROUTER_RETRIES = 5
"""`--retry-max-retries` of sglang_router 0.3.2; `--disable-retries` makes it 1."""

_SWA_SLICED = Version((0, 5, 23))
"""Read in 0.5.23, which slices sliding-window pages by head over Mooncake and NIXL; 0.5.16 refused (llm-d#2433)."""

_PAGES = (64, 128, 32, 16, 1)
"""Pages to advise, the most widely taken first."""

_BACKENDS_OF_ROLE_SWITCH = ("mooncake", "mori")
_STAGING = "SGLANG_DISAGG_STAGING_BUFFER"
_CONN = "SGLang 0.5.23 disaggregation/common/conn.py"
_HOOK = "SGLang 0.5.23 arg_groups/pd_disaggregation_hook.py"


def transfer_backend(role: RoleConfig) -> str:
    """`--disaggregation-transfer-backend` as it runs: mooncake_tcp is Mooncake over TCP."""
    named = str(role.options.get("disaggregation-transfer-backend") or "mooncake")
    return "mooncake" if named == "mooncake_tcp" else named


def allocation_policy(role: RoleConfig) -> str:
    return str(role.options.get("disaggregation-decode-allocation-policy") or "early")


def bootstrap_port(role: RoleConfig) -> int:
    return whole(role.options.get("disaggregation-bootstrap-port"), BOOTSTRAP_PORT)


def _same_page(joint: Joint) -> Iterator[Clash]:
    prefill, decode = joint.prefill, joint.decode
    sizes = (joint.prefill_stored.block_tokens, joint.decode_stored.block_tokens)
    is_unset = prefill.block_size is None and decode.block_size is None
    is_guess = is_unset and (joint.prefill_gpu is None or joint.decode_gpu is None)
    if None in sizes or sizes[0] == sizes[1] or is_guess:
        return
    common = next((size for size in _PAGES if _is_common(joint, size)), None)
    yield Clash(
        _pages(sizes[0]),
        _pages(sizes[1]),
        f"set --page-size {common} on both roles" if common else "choose accelerators whose attention takes one page",
        (prefill.place("block_size"), decode.place("block_size")),
        "an unset page follows the default attention backend: 64 on sm100, 1 elsewhere" if is_unset else "",
    )


def _is_common(joint: Joint, size: int) -> bool:
    """Whether both roles keep pages of `size` when told to: some backends and models have their own will."""
    decode_model = joint.decode_model or joint.model
    told = [replace(role, block_size=size) for role in (joint.prefill, joint.decode)]
    kept = (page_size(told[0], joint.model, joint.prefill_gpu), page_size(told[1], decode_model, joint.decode_gpu))
    return kept[0] == kept[1] is not None


def _pages(size: int | None) -> str:
    return "pages of 1 token" if size == 1 else f"pages of {size} tokens"


def _same_kv(joint: Joint) -> Iterator[Clash]:
    """What is compared is a word, what counts is the element: both ways it can go wrong."""
    mine, theirs = joint.prefill_stored, joint.decode_stored
    words, stored = (mine.word, theirs.word), (mine.element, theirs.element)
    if words[0] == words[1] and (stored[0] == stored[1] or None in stored):
        return
    setting = "kv_cache_dtype" if words[0] != words[1] or words[0] != "auto" else "dtype"
    yield Clash(
        mine.says,
        theirs.says,
        _kv_change(words, stored),
        (joint.prefill.place(setting), joint.decode.place(setting)),
        _kv_detail(words, stored),
        Severity.SILENT if words[0] == words[1] else Severity.REQUEST,
        is_spurious=words[0] != words[1] and same_bytes(mine, theirs) is True,
    )


def _kv_change(words: tuple[str, str], stored: tuple[Element | None, Element | None]) -> str:
    if words[0] == words[1] == "auto":
        return "set the same --dtype on both roles, or --kv-cache-dtype bfloat16 on both"
    if words[0] == words[1]:
        return "store bfloat16 on both roles, or translate e4m3fnuz at the boundary: SGLang does not"
    if stored[0] == stored[1] and words[1] != "auto":
        return f"write --kv-cache-dtype {words[1]} on both roles"
    if stored[0] == stored[1]:
        return f"write --kv-cache-dtype {words[0]} on both roles"
    return "set the same --kv-cache-dtype on both roles: SGLang does not convert"


def _kv_detail(words: tuple[str, str], stored: tuple[Element | None, Element | None]) -> str:
    if words[0] == words[1]:
        return "the words agree, so the bootstrap accepts the pair and decode reads the bytes as another format"
    return "the bytes are the same, only the spelling differs" if stored[0] == stored[1] else ""


def _same_weights(joint: Joint) -> Iterator[Clash]:
    prefill, decode = joint.prefill, joint.decode
    if different_models(prefill.model, decode.model):
        yield Clash(
            prefill.model,
            decode.model,
            "serve one model on both roles",
            (prefill.place("model"), decode.place("model")),
            "the bootstrap does not name the model",
        )
    elif prefill.revision and decode.revision and prefill.revision != decode.revision:
        yield Clash(
            f"revision {prefill.revision}",
            f"revision {decode.revision}",
            "pin one --revision on both roles",
            (prefill.place("revision"), decode.place("revision")),
        )


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
    if not refused and _uses_staging(prefill) and _uses_staging(decode):
        return
    yield Clash(
        f"attention TP {ranks[0]}",
        f"attention TP {ranks[1]}",
        f"set the same --tp on both roles{'' if refused else f', or {_STAGING}=1 on both'}",
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


def _uses_staging(role: RoleConfig) -> bool:
    return role.env_text(_STAGING).casefold() in ("1", "true", "yes", "y")


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


def _one_transport(joint: Joint) -> Iterator[Clash]:
    prefill, decode = joint.prefill, joint.decode
    flag = "disaggregation-transfer-backend"
    backends = (transfer_backend(prefill), transfer_backend(decode))
    if backends[0] == "fake":
        change = f"choose a real --{flag} on prefill: fake is decode's alone"
        yield Clash("fake", backends[1], change, (prefill.place(flag),), severity=Severity.STARTUP)
    elif backends[0] != backends[1] and backends[1] != "fake":
        places = (prefill.place(flag), decode.place(flag))
        yield Clash(backends[0], backends[1], f"set the same --{flag} on both roles", places)
    yield from _bootstrap(joint)


def _bootstrap(joint: Joint) -> Iterator[Clash]:
    """The port that requests carry against the one that prefill listens on; without a router's, decode's own flag stands in."""
    router = joint.deployment.router
    if router is None or router.kind not in ROUTERS:
        return
    listens = bootstrap_port(joint.prefill)
    for told in _told_ports(router.settings.get("prefill"), joint.prefill):
        asked = bootstrap_port(joint.decode) if told is None else told
        if asked != listens:
            yield Clash(
                f"listens on {listens}",
                f"asked at {asked}",
                f"give the router --prefill URL {listens}",
                (
                    joint.prefill.place("disaggregation-bootstrap-port"),
                    router.places.get("prefill", "router --prefill"),
                ),
                "a decode that finds no bootstrap server fails the request; prefill holds its half for 300 s",
            )


def _told_ports(entries: object, prefill: RoleConfig) -> Iterator[int | None]:
    """The bootstrap port of each `--prefill URL [PORT]` that names this prefill; None where it is left out."""
    for entry in entries if isinstance(entries, list | tuple) else ():
        url, *rest = entry if isinstance(entry, list | tuple) and entry else str(entry).split() or [""]
        if prefill.port is not None and not str(url).rstrip("/").endswith(f":{prefill.port}"):
            continue
        told = whole(rest[0], 0) if rest else 0
        yield told or None


def _reservation(joint: Joint) -> Iterator[Clash]:
    output = joint.deployment.expected.output_p50
    flag = "num-reserved-decode-tokens"
    reserved = whole(joint.decode.options.get(flag), RESERVED_TOKENS)
    if output is not None and reserved > output:
        yield Clash(
            "",
            f"{reserved} tokens reserved for each running request, {output:g} used at the median",
            f"set --{flag} {max(1, round(output))} on decode",
            (joint.decode.place(flag),),
        )


def _retries(joint: Joint) -> Iterator[Clash]:
    router = joint.deployment.router
    if router is None or router.kind not in ROUTERS:
        return
    settings = router.settings
    attempts = 1 if settings.get("disable-retries") else whole(settings.get("retry-max-retries"), ROUTER_RETRIES)
    if attempts > 1:
        yield Clash(
            "",
            f"up to {attempts} attempts of a request, each with a prefill and a decode half",
            "start the router with --disable-retries, and retry where both halves can be aborted",
            (router.places.get("retry-max-retries", "router --retry-max-retries (not set)"),),
        )


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
    if _uses_staging(role):
        yield "role switch with the staging buffer", Severity.REQUEST


RULES = (
    Rule(
        "SG1",
        Engine.SGLANG,
        Severity.REQUEST,
        "Both roles keep pages of one size.",
        f"{_CONN} (try_ensure_parallel_info); the default by accelerator: arg_groups/overrides.py",
        _same_page,
        message="Page size mismatch: prefill server has page_size=",
    ),
    Rule(
        "SG2",
        Engine.SGLANG,
        Severity.REQUEST,
        "Both roles write --kv-cache-dtype alike and store the same element.",
        f"{_CONN}, mem_cache/kv_cache_dtype.py: only the word is compared; the wrong output that follows is derived, not run",
        _same_kv,
        message="KV cache dtype mismatch: prefill server has kv_cache_dtype=",
    ),
    Rule(
        "SG3",
        Engine.SGLANG,
        Severity.SILENT,
        "Both roles serve the same weights at the same revision.",
        f"{_CONN}: PrefillServerInfo has no model field; derived, not run",
        _same_weights,
    ),
    Rule(
        "SG4",
        Engine.SGLANG,
        Severity.REQUEST,
        "Decode has attention CP 1 and PP 1 or prefill's, and prefill DCP 1 or decode's.",
        f"{_CONN} (_resolve_rank_mapping, requires_dcp_relayout)",
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
        f"{_CONN}, {_HOOK} (_validate_prefill_complete)",
        _allocation,
        message="Disaggregation decode allocation policy mismatch: ",
    ),
    Rule(
        "SG7",
        Engine.SGLANG,
        Severity.REQUEST,
        "Both roles use one transfer backend, and requests carry the bootstrap port that prefill listens on.",
        f"{_CONN}, {_HOOK}, managers/scheduler.py (a request without a port takes the server's own flag)",
        _one_transport,
        message="Error fetching prefill server info from bootstrap: ",
    ),
    Rule(
        "SG8",
        Engine.SGLANG,
        Severity.SLOW,
        "Decode reserves no more tokens for a running request than the median output.",
        "https://github.com/sgl-project/sglang/issues/6860 (20,163 to 8,810 token/s with 1,024 reserved)",
        _reservation,
    ),
    Rule(
        "SG9",
        Engine.SGLANG,
        Severity.LEAK,
        "The router does not retry a request whose other half it cannot abort.",
        f"{_CONN} (CommonKVSender.abort tells decode nothing); https://github.com/sgl-project/sglang/issues/9726, "
        "https://github.com/sgl-project/sglang/pull/28651; the compiled router 0.3.2 was not read, and "
        "https://github.com/sgl-project/sglang/pull/29017 makes it cancel decode when prefill fails",
        _retries,
        message="Some requests fail to receive KV Cache transfer done signal after bootstrapping",
    ),
    Rule(
        "SG10",
        Engine.SGLANG,
        Severity.STARTUP,
        "Roles switch over Mooncake or MoRI only, without EP, PP, DCP, speculation or the staging buffer.",
        f"{_HOOK}, disaggregation/role_switch.py",
        _role_switch,
        message="--enable-pd-role-switch does not rebuild role-specific state",
    ),
)
