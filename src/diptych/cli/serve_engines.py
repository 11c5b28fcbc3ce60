"""`diptych serve --engine vllm|sglang`: a gateway over workers that run already, once no rule forbids their pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from diptych.catalog.catalog import Catalog
from diptych.cli.check import known_gpu
from diptych.cli.plan_inputs import Reader, flag
from diptych.cli.serve_access import read_workers
from diptych.cli.serve_listen import listening
from diptych.cli.serve_prices import Prices, read_prices
from diptych.cli.serve_words import parse_policy
from diptych.deploy.fetch import Access
from diptych.deploy.folders import with_folders
from diptych.deploy.live import probe
from diptych.design.axes import Role
from diptych.engines.check import Report
from diptych.engines.check import check as check_deployment
from diptych.engines.deployment import Deployment
from diptych.engines.engine import Engine
from diptych.engines.resolve_vllm import MOONCAKE, handoff
from diptych.engines.rule import Severity
from diptych.errors import DiptychError, Finding, InvalidInput, did_you_mean
from diptych.runtime.gateway.settings import OnLoss
from diptych.runtime.launch.fleet import gateway
from diptych.runtime.launch.program import Program, answers
from diptych.runtime.remote.halves import Protocol
from diptych.runtime.remote.settings import Foreign, Prefill

CONNECTORS = {
    "nixl": Protocol.VLLM_NIXL,
    "diptych": Protocol.VLLM_NIXL,
    "lmcache": Protocol.VLLM_NIXL,
    "mooncake": Protocol.VLLM_MOONCAKE,
}
"""How a request is driven over each of vLLM's connectors: ours takes tickets as NIXL's does."""
ENGINES = ("vllm", "sglang")
BOOTSTRAP_PORT = 8998
OURS = ("model", "prefill", "decode", "colocated", "transport", "residency", "slo", "lease", "short_prompt")
"""Flags that say how our own workers are run."""


class Incompatible(DiptychError):
    """Workers that may not be paired: the rules that say so."""

    def __init__(self, report: Report) -> None:
        self.report = report
        told = (
            f"\n  • {each.rule.id} ({each.severity}): {each.rule.sentence} "
            f"{' against '.join(filter(None, (each.clash.prefill, each.clash.decode)))}; {each.clash.change}"
            for each in report.broken
            if each.severity is not Severity.SLOW
        )
        super().__init__("these workers may not be paired; `diptych check --live` says more" + "".join(told))


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, without mistakes. `connector` is '' where the workers are to say it; `gpus` what roles run on."""

    foreign: Foreign
    connector: str
    bootstrap_port: int
    gpus: Mapping[Role, str]
    access: Access
    notes: tuple[str, ...] = ()


def read_engines(given: Mapping[str, Any], say: Callable[[str], None]) -> Asked:
    """The workers, how they are spoken to, and where to listen. Raises InvalidInput with all findings."""
    reader = Reader(given, say, None)
    engine = reader.value("engine", _one_of(ENGINES)) or "vllm"
    connector = reader.value("connector", _one_of(tuple(CONNECTORS))) or ""
    if connector and engine != "vllm":
        reader.findings.append(Finding("--connector", f"is given for {engine}", "leave it out: it is vLLM's"))
    for name in OURS:
        if reader.given.get(name):
            reader.findings.append(Finding(flag(name), "is given beside --engine", "flags of workers that run already"))
    urls = {role: list(_urls(reader, f"{role}_url")) for role in ("prefill", "decode")}
    ports = dict(_ports(reader))
    if set(urls["prefill"]) & set(urls["decode"]):
        reader.findings.append(Finding("--decode-url", "is a prefill worker too", "workers of one role each"))
    protocol = _protocol(reader, engine, connector)
    policy = (reader.value("policy", parse_policy) or {}).get("prefill", OnLoss.FAIL)
    if policy is not OnLoss.FAIL and not protocol.is_sequential:
        problem = f"prefill={policy.name.casefold()} is given, and {protocol} asks both halves at once"
        reader.findings.append(Finding("--policy", problem, "prefill=fail: a half that is alone is stopped"))
    prices = read_prices(reader, given.get("run"))
    workers = read_workers(reader, [*urls["prefill"], *urls["decode"]])
    gpus = dict(_gpus(reader))
    settings = listening(reader, "remote", "toy")
    if reader.findings:
        raise InvalidInput(dict.fromkeys(reader.findings))
    assert settings is not None
    listen = msgspec.structs.replace(
        settings, **workers.settings, alternative_usd=prices.alternative_usd, alternative_name=prices.alternative
    )
    port = int(given.get("bootstrap_port") or BOOTSTRAP_PORT)
    foreign = Foreign(
        listen=listen,
        protocol=Protocol.VLLM_NIXL,
        prefills=tuple(Prefill(url, bootstrap_port=ports.get(url, 0)) for url in urls["prefill"]),
        decodes=tuple(urls["decode"]),
        retries=0 if policy is OnLoss.FAIL else min(len(urls["prefill"]), 3),
        recompute=policy in (OnLoss.RECOMPUTE, OnLoss.COLOCATE),
        prefill_usd=prices.usd.get("prefill"),
        decode_usd=prices.usd.get("decode"),
    ).over(protocol, port)
    return Asked(foreign, connector, port, gpus, workers.access, (*workers.notes, *_prices_told(prices)))


def _protocol(reader: Reader, engine: str, connector: str) -> Protocol:
    """How a request is driven. Only our connector leaves a choice of who moves KV to the request; the others' is their own."""
    ownership = reader.value("ownership", _one_of(("push", "pull")))
    if ownership and connector != "diptych":
        reader.findings.append(Finding("--ownership", "is given beside --engine", "it, beside --connector diptych"))
    if engine == "sglang":
        return Protocol.SGLANG
    return Protocol.VLLM_PUSH if ownership == "push" else CONNECTORS[connector or "nixl"]


def _prices_told(prices: Prices) -> tuple[str, ...]:
    one_sided = bool(prices.usd) and not {"prefill", "decode"} <= set(prices.usd)
    return (*prices.notes, *(("a role without a price: no cost is shown",) if one_sided else ()))


def check_pairs(asked: Asked) -> tuple[Foreign, Report]:
    """What the workers say of themselves, held against every rule; the gateway's settings with the connector they use.

    Raises:
        InvalidInput: an address that is no such server, or another than was said.
        Incompatible: a pair that a rule forbids, by its id.
    """
    foreign = asked.foreign
    urls = [*(each.url for each in foreign.prefills), *foreign.decodes]
    found = probe(urls, access=asked.access, prefills=len(foreign.prefills))
    _check_kinds(asked, found)
    roles = tuple(replace(each, gpu=asked.gpus.get(each.role, each.gpu)) for each in found.roles)
    report = check_deployment(with_folders(replace(found, roles=roles), loopback_only=True), Catalog.load())
    if any(each.severity is not Severity.SLOW for each in report.broken):
        raise Incompatible(report)
    foreign = _with_connector(asked, found)
    name = next((each.served_name for each in found.of(Role.DECODE) if each.served_name), foreign.listen.model)
    return msgspec.structs.replace(foreign, listen=msgspec.structs.replace(foreign.listen, model=name[:128])), report


def _check_kinds(asked: Asked, found: Deployment) -> None:
    """Raises InvalidInput: another engine than was named, or a worker started in the other role."""
    foreign = asked.foreign
    engine = Engine.SGLANG if foreign.protocol is Protocol.SGLANG else Engine.VLLM
    told = [*(("--prefill-url", each.url, Role.PREFILL) for each in foreign.prefills),
            *(("--decode-url", url, Role.DECODE) for url in foreign.decodes)]  # fmt: skip
    findings = []
    if len(found.roles) < len(told):
        findings.append(Finding("--prefill-url", "a frontend answers there", "the workers themselves"))
    for (where, url, role), config in zip(told, found.roles, strict=False):
        if config.engine is not engine:
            findings.append(Finding(where, f"{url} runs {config.engine}, not {engine}", f"--engine {config.engine}"))
        elif config.role is not role:
            findings.append(Finding(where, f"{url} was started for {config.role}", f"a worker started for {role}"))
    if findings:
        raise InvalidInput(findings)


def _with_connector(asked: Asked, found: Deployment) -> Foreign:
    """The settings for the connector that the workers have, where they tell it. Raises InvalidInput: not the one named."""
    foreign = asked.foreign
    connectors = {each.name for role in found.roles if (each := handoff(role)) and each.name}
    is_mooncake = bool(connectors & set(MOONCAKE))
    named = CONNECTORS.get(asked.connector)
    if connectors and named and is_mooncake is not (named is Protocol.VLLM_MOONCAKE):
        problem = f"is {asked.connector}, and the workers run {', '.join(sorted(connectors))}"
        raise InvalidInput(Finding("--connector", problem, "the connector that the workers run, or to leave it out"))
    if is_mooncake and foreign.protocol is Protocol.VLLM_NIXL:
        return foreign.over(Protocol.VLLM_MOONCAKE, asked.bootstrap_port)
    return foreign


def checked(report: Report) -> str:
    """What was found of pairs that may meet, in a line, and what is slow of them."""
    unknown = f"; not known: {len(report.unknown)} things, which `diptych check --live` names" if report.unknown else ""
    slow = "".join(f"\nslow: {each.rule.id}: {each.rule.sentence} {each.clash.change}" for each in report.broken)
    return f"checked: no rule forbids these pairs{unknown}; sending a canary{slow}"


def program(foreign: Foreign, folder: Path, admin_token: str, environment: Mapping[str, str]) -> Program:
    """The gateway's process."""
    settings = msgspec.structs.replace(foreign.listen, admin_token=admin_token)
    told = msgspec.json.encode(msgspec.structs.replace(foreign, listen=settings))

    def serves() -> bool:
        return answers(settings.reached, settings.port, "/health", bool(settings.tls_key))[0] > 0

    return gateway("diptych.runtime.launch.foreign", told, admin_token, folder, serves, environment)


def _one_of(known: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            hint = did_you_mean(text[:40], known)
            raise ValueError(f"is {text[:40]!r}; expected {' or '.join(known)}{'; ' + hint if hint else ''}")
        return text

    return read


def _gpus(reader: Reader) -> Iterator[tuple[Role, str]]:
    """What the roles run on, where the user says it: live servers do not."""
    catalog = Catalog.load()
    for role in (Role.PREFILL, Role.DECODE):
        name = reader.given.get(f"{role}_gpu")
        found = reader.attempt(f"--{role}-gpu", known_gpu, name, role, catalog) if name else None
        if found:
            yield role, found


def _urls(reader: Reader, name: str) -> Iterator[str]:
    """Addresses without a path, as users write them; what is wrong is noted."""
    told: Sequence[str] = reader.given.get(name) or ()
    if not told:
        reader.findings.append(Finding(flag(name), "is missing", "http://HOST:PORT of a worker that runs"))
    seen = set()
    for text in told:
        url = text.partition(",")[0].rstrip("/")
        parts = urlsplit(url)
        is_plain = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain or not _has_port(url):
            shown = "an address with a user in it" if "@" in text else repr(text[:120])
            reader.findings.append(Finding(flag(name), f"{shown} is no worker's address", "http://HOST:PORT"))
        elif url in seen:
            reader.findings.append(Finding(flag(name), "an address is given twice", "each worker once"))
        else:
            seen.add(url)
            yield url


def _ports(reader: Reader) -> Iterator[tuple[str, int]]:
    """Where decode meets each prefill worker, for those that say it: http://HOST:PORT,PORT."""
    for text in reader.given.get("prefill_url") or ():
        url, _, port = text.partition(",")
        if port and not (port.strip().isdecimal() and 0 < int(port) < 65536):
            reader.findings.append(Finding("--prefill-url", f"{port[:40]!r} is no port", "http://HOST:PORT,PORT"))
        elif port:
            yield url.rstrip("/"), int(port)


def _has_port(url: str) -> bool:
    """Whether the port, where there is one, is a number that a port can be."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False
