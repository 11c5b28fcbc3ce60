"""What `kv_connector_extra_config` may say, checked at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from diptych.boundary.format import element_named
from diptych.boundary.messages import MAX_LEASE_MS
from diptych.design.boundary import Ownership
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.peers import Tls

WIRES = {"raw": "", "fp8": "e4m3fn"}
"""Names for what crosses beside those of element formats."""
NUMBERS = {
    "lease_s": (0.01, MAX_LEASE_MS / 1000),
    "wait_s": (0.01, 3600.0),
    "staging_gib": (0.001, 1024.0),
    "port": (0, 65535 - 64),
}
TLS = ("certificate", "key", "authority")
WHERE = "kv_connector_extra_config"


@dataclass(frozen=True, slots=True)
class Settings:
    """`ownership`: pull, prefill computes before decode reserves; push, the other way round, for requests that name a meeting.

    `wire`: the form that crosses, "" as prefill keeps it. `lease_s`: how long prefill keeps a prompt that nobody has asked for,
    or whose reader is silent. `wait_s`: how long decode waits for a prompt, and prefill for room. `host`: where this worker
    listens, "" for socket files of its own; `port`: where its first rank is asked, the next ones behind it. `certificate`, `key`
    and `authority`: files for mutual TLS, on every TCP connection. `staging_gib`: host memory for what arrives in another form.
    `model`, `weights`: what the KV is of, where the checkpoint's own name or digest does not say it.
    """

    ownership: Ownership = Ownership.PULL
    wire: str = ""
    lease_s: float = 30.0
    wait_s: float = 30.0
    host: str = ""
    port: int = 0
    certificate: str = ""
    key: str = ""
    authority: str = ""
    staging_gib: float = 1.0
    model: str = ""
    weights: str = ""

    @property
    def tls(self) -> Tls | None:
        """Both sides' certificates, where they are given."""
        return Tls(self.certificate, self.key, self.authority) if self.certificate else None

    @classmethod
    def of(cls, given: Mapping[str, Any], is_prefill: bool = False) -> Settings:
        """Read them. Raises InvalidInput with every finding."""
        findings = list(_findings(given))
        if is_prefill and given.get("ownership") == Ownership.PUSH and not given.get("port"):
            findings.append(
                Finding(f"{WHERE}.port", "is missing", "a port: under push decode asks before there is a ticket")
            )
        if findings:
            raise InvalidInput(findings)
        said = dict(given)
        if "wire" in said:
            said["wire"] = _wire(said["wire"])
        if "ownership" in said:
            said["ownership"] = Ownership(said["ownership"])
        return cls(**said)


def _wire(name: str) -> str:
    key = name.strip().casefold()
    return WIRES[key] if key in WIRES else str(element_named(key)) if key else ""


def _findings(given: Mapping[str, Any]) -> Iterator[Finding]:
    known = [each.name for each in fields(Settings)]
    for name, value in given.items():
        at = f"{WHERE}.{name}"
        if name not in known:
            yield Finding(at, "is not known", ", ".join(known), did_you_mean(name, known))
        elif name in NUMBERS:
            low, high = NUMBERS[name]
            kinds = int if name == "port" else int | float
            if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
                yield Finding(at, f"is {value!r:.40}", f"a number from {low:g} to {high:g}")
        elif not isinstance(value, str):
            yield Finding(at, f"is {value!r:.40}", "a string")
        elif name == "ownership" and value not in set(Ownership):
            yield Finding(at, f"is {value!r:.40}", ", ".join(Ownership))
        elif name == "wire":
            yield from _wire_findings(at, value)
    yield from _tls_findings({name: value for name, value in given.items() if isinstance(value, str)})


def _tls_findings(given: Mapping[str, str]) -> Iterator[Finding]:
    """Off this host nobody listens without certificates, and these are there and can be read."""
    named = [name for name in TLS if given.get(name)]
    host = given.get("host", "")
    if named and len(named) < len(TLS):
        missing = ", ".join(name for name in TLS if name not in named)
        yield Finding(f"{WHERE}.{named[0]}", f"is given without {missing}", "all three, or none")
    elif named:
        tls = Tls(*(given[name] for name in TLS))
        for server in (True, False):
            try:
                tls.context(server)
            except OSError as error:
                yield Finding(
                    f"{WHERE}.certificate", f"cannot be used: {error}"[:200], "PEM files that belong together"
                )
                break
    if host in ("0.0.0.0", "::"):  # noqa: S104 (it is refused)
        yield Finding(f"{WHERE}.host", f"{host!r:.60} names no host", "an address at which others reach this one")
    elif not named and host and not Address(host=host, port=1).is_local:
        yield Finding(
            f"{WHERE}.host", f"{host!r:.60} leaves this host", "certificate, key and authority for mutual TLS"
        )


def _wire_findings(at: str, value: str) -> Iterator[Finding]:
    try:
        _wire(value)
    except InvalidInput as error:
        for each in error.findings:
            yield Finding(at, each.problem, f"raw, fp8, int8 or an element format ({each.expected})", each.hint)
