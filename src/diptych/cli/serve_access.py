"""How workers that run elsewhere are reached: the key that they ask for, who signs their certificates, what they are shown."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from diptych.cli.plan_inputs import Reader
from diptych.cli.serve_listen import file_of, read_token
from diptych.cli.serve_prices import Prices
from diptych.deploy.fetch import OPEN, Access
from diptych.errors import Finding, InvalidInput
from diptych.hosts import is_loopback
from diptych.runtime.gateway.settings import Endpoint
from diptych.runtime.peer.address import Address


@dataclass(frozen=True, slots=True)
class Workers:
    """`settings` are fields of the gateway's Settings; `access` the same for a first look."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    access: Access = OPEN
    notes: tuple[str, ...] = ()


def read_workers(reader: Reader, urls: Sequence[str]) -> Workers:
    """`--worker-token-file`, `--tls-ca`, `--worker-cert` and `--worker-key`. What is wrong is noted in the reader."""
    token = reader.attempt(
        "--worker-token-file", _token, reader.given.get("worker_token_file")
    ) if reader.given.get("worker_token_file") else ""  # fmt: skip
    files = {name: file_of(reader, name) for name in ("tls_ca", "worker_cert", "worker_key")}
    if bool(files["worker_cert"]) != bool(files["worker_key"]):
        reader.findings.append(
            Finding("--worker-cert", "one of --worker-cert and --worker-key is missing", "both, or none")
        )
    clear = [url for url in urls if url.startswith("http:") and not is_here(url)]
    if token and clear:
        told = f"would be sent in clear to {clear[0]}"
        reader.findings.append(Finding("--worker-token-file", told, "https://HOST:PORT of workers on other machines"))
    if files["tls_ca"] and not any(url.startswith(("https:", "tcp:")) for url in urls):
        reader.findings.append(Finding("--tls-ca", "no worker is reached by TLS", "https://HOST:PORT"))
    tls = None if reader.findings else reader.attempt("--tls-ca", context, *files.values())
    settings = {"worker_token": token or "", "worker_ca": files["tls_ca"],
                "worker_certificate": files["worker_cert"], "worker_key": files["worker_key"]}  # fmt: skip
    notes = (f"{clear[0]} is another machine without TLS: prompts and answers cross in clear",) if clear else ()
    return Workers(settings, Access(token or "", tls), notes)


def context(authority: str, certificate: str, key: str) -> ssl.SSLContext | None:
    """Whom to believe and what to show; None for what every program believes. Raises InvalidInput."""
    if not (authority or certificate):
        return None
    try:
        made = ssl.create_default_context(cafile=authority or None)
    except (ssl.SSLError, OSError):
        raise InvalidInput(Finding("--tls-ca", f"{authority} has no certificates in it", "a PEM file")) from None
    try:
        if certificate:
            made.load_cert_chain(certificate, key or None)
    except (ssl.SSLError, OSError):
        told = f"{certificate} and {key} are no certificate and its key"
        raise InvalidInput(Finding("--worker-cert", told, "PEM files")) from None
    return made


def _token(name: str) -> str:
    return read_token(name, "--worker-token-file")


def read_endpoints(reader: Reader, prices: Prices) -> tuple[Endpoint, ...]:
    """Our own workers that run already: `tcp:HOST:PORT` or `unix:/PATH`, their control sockets. What is wrong is noted."""
    found: list[Endpoint] = []
    for role in ("prefill", "decode"):
        where = f"--{role}-url"
        for number, text in enumerate(reader.given.get(f"{role}_url") or ()):
            address = reader.attempt(where, Address.of, text.strip())
            if address is not None and str(address) in {each.address for each in found}:
                reader.findings.append(Finding(where, f"{address} is given twice", "each worker once"))
            elif address is not None:
                found.append(Endpoint(f"{role}-{number}", role, str(address), prices.usd.get(role)))
    if not any(each.role == "decode" for each in found):
        reader.findings.append(Finding("--decode-url", "is missing", "tcp:HOST:PORT of a worker that runs"))
    away = [each.address for each in found if not Address.of(each.address).is_local]
    for flag, given in (("--worker-token-file", "worker_token_file"), ("--tls-ca", "tls_ca")):
        if away and not reader.given.get(given):
            reader.findings.append(Finding(flag, f"is missing, and {away[0]} is another machine", "a file"))
    return tuple(found)


def is_here(url: str) -> bool:
    """Whether an address is this machine's alone."""
    host = urlsplit(url.replace("tcp:", "tcp://", 1) if url.startswith("tcp:") else url).hostname or ""
    return is_loopback(host)
