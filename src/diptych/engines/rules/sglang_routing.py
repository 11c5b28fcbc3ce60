"""How two halves of a request meet, what decode reserves for it, and what a router may try again (SG7 to SG9)."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.engines.engine import Engine
from diptych.engines.resolve import Joint
from diptych.engines.role import RoleConfig, whole
from diptych.engines.rule import Clash, Rule, Severity
from diptych.engines.rules.sglang_pair import CONN, HOOK, ROUTERS, bootstrap_port, transfer_backend

RESERVED_TOKENS = 512
ROUTER_RETRIES = 5
"""`--retry-max-retries` of sglang_router 0.3.2; `--disable-retries` makes it 1."""


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
    is_asked = settings.get("retry-max-retries") is not None
    if attempts > 1:
        yield Clash(
            "",
            f"up to {attempts} attempts of a request, each with a prefill and a decode half",
            "start the router with --disable-retries, and retry where both halves can be aborted",
            (router.places.get("retry-max-retries", "router --retry-max-retries (not set)"),),
            "" if is_asked else "the router's own default, with which SGLang's examples run: seen under faults alone",
            None if is_asked else Severity.SLOW,
        )


RULES = (
    Rule(
        "SG7",
        Engine.SGLANG,
        Severity.REQUEST,
        "Both roles use one transfer backend, and requests carry the bootstrap port that prefill listens on.",
        f"{CONN}, {HOOK}, managers/scheduler.py (a request without a port takes the server's own flag)",
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
        f"{CONN} (CommonKVSender.abort tells decode nothing); https://github.com/sgl-project/sglang/issues/9726, "
        "https://github.com/sgl-project/sglang/pull/28651; the compiled router 0.3.2 was not read, and "
        "https://github.com/sgl-project/sglang/pull/29017 makes it cancel decode when prefill fails",
        _retries,
        message="Some requests fail to receive KV Cache transfer done signal after bootstrapping",
    ),
)
