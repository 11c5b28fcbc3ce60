"""`diptych serve --engine vllm|sglang`: a gateway over workers that run already, once no rule forbids their pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from diptych.catalog.catalog import Catalog
from diptych.cli.plan_inputs import Reader
from diptych.cli.serve_inputs import Subject, listening, parse_policy
from diptych.deploy.live import probe
from diptych.engines.check import Report
from diptych.engines.check import check as check_deployment
from diptych.engines.rule import Severity
from diptych.errors import DiptychError, Finding, InvalidInput
from diptych.runtime.gateway.settings import OnLoss
from diptych.runtime.launch.foreign import Foreign, Prefill
from diptych.runtime.launch.program import Program, Turn, answers
from diptych.runtime.launch.run_dir import write_secretly
from diptych.runtime.remote.halves import Protocol

PROTOCOLS = {"vllm": Protocol.VLLM_NIXL, "sglang": Protocol.SGLANG}
BOOTSTRAP_PORT = 8998
OURS = ("run", "model", "prefill", "decode", "colocated", "ownership", "residency", "slo", "lease", "short_prompt")
"""Flags that say how our own workers are run."""


class Incompatible(DiptychError):
    """Workers that may not be paired: the rules that say so."""

    def __init__(self, report: Report) -> None:
        self.report = report
        told = (
            f"\n  • {each.rule.id} ({each.severity}): {each.rule.sentence}"
            for each in report.broken
            if each.severity is not Severity.SLOW
        )
        super().__init__("these workers may not be paired; `diptych check --live` says more" + "".join(told))


def read_engines(given: Mapping[str, Any], say: Callable[[str], None]) -> Foreign:
    """The workers and where to listen. Raises InvalidInput with all findings."""
    reader = Reader(given, say, None)
    protocol = reader.value("engine", _protocol)
    findings = reader.findings
    for name in OURS:
        if reader.given.get(name):
            flag = name.upper() if name == "run" else "--" + name.replace("_", "-")
            findings.append(Finding(flag, "is given beside --engine", "flags of workers that run already"))
    prefills, decodes = (_urls(reader, name) for name in ("prefill_url", "decode_url"))
    policy = (reader.value("policy", parse_policy) or {}).get("prefill", OnLoss.FAIL)
    settings = listening(reader, Subject("remote"), "toy")
    if findings:
        raise InvalidInput(dict.fromkeys(findings))
    assert settings is not None
    assert protocol is not None
    port = int(given.get("bootstrap_port") or BOOTSTRAP_PORT) if protocol is Protocol.SGLANG else 0
    return Foreign(
        listen=settings,
        protocol=protocol,
        prefills=tuple(Prefill(url, urlsplit(url).hostname or "" if port else "", port) for url in prefills),
        decodes=tuple(decodes),
        retries=0 if policy is OnLoss.FAIL else min(len(prefills), 3),
        recompute=policy in (OnLoss.RECOMPUTE, OnLoss.COLOCATE),
    )


def check_pairs(foreign: Foreign) -> Report:
    """What the workers say of themselves, held against every rule.

    Raises:
        InvalidInput: an address that is no such server.
        Incompatible: a pair that a rule forbids, by its id.
    """
    report = check_deployment(probe([*(each.url for each in foreign.prefills), *foreign.decodes]), Catalog.load())
    if any(each.severity is not Severity.SLOW for each in report.broken):
        raise Incompatible(report)
    return report


def program(foreign: Foreign, folder: Path, admin_token: str) -> Program:
    """The gateway's process."""
    settings = msgspec.structs.replace(foreign.listen, admin_token=admin_token)
    file = write_secretly(
        folder / "gateway.json", msgspec.json.encode(msgspec.structs.replace(foreign, listen=settings))
    )
    write_secretly(folder / "admin.token", admin_token + "\n")
    ready = folder / "gateway.port"

    def serves() -> bool:
        return ready.is_file() and answers(settings.reached, settings.port, "/health", bool(settings.tls_key))[0] > 0

    arguments = (str(file), str(ready))
    return Program("gateway", Turn.GATEWAY, "diptych.runtime.launch.foreign", arguments, serves, (ready,), spare=True)


def _protocol(text: str) -> Protocol:
    if text not in PROTOCOLS:
        raise ValueError(f"is {text[:40]!r}; expected {' or '.join(PROTOCOLS)}")
    return PROTOCOLS[text]


def _urls(reader: Reader, name: str) -> list[str]:
    """Addresses without a path. Plain HTTP is how these engines' workers speak; only the user knows the network between."""
    flag = "--" + name.replace("_", "-")
    told: Sequence[str] = reader.given.get(name) or ()
    if not told:
        reader.findings.append(Finding(flag, "is missing", "http://HOST:PORT of a worker that runs"))
    found = []
    for text in told:
        url = text.rstrip("/")
        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.path
            or parts.query
            or "@" in parts.netloc
        ):
            reader.findings.append(Finding(flag, f"{text[:120]!r} is no worker's address", "http://HOST:PORT"))
        else:
            found.append(url)
    if len(set(found)) < len(found):
        reader.findings.append(Finding(flag, "an address is given twice", "each worker once"))
    return found
