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

WIRES = {"raw": "", "fp8": "e4m3fn"}
"""Names for what crosses beside those of element formats."""
NUMBERS = {"lease_s": (0.01, MAX_LEASE_MS / 1000), "wait_s": (0.01, 3600.0), "staging_gib": (0.001, 1024.0)}


@dataclass(frozen=True, slots=True)
class Settings:
    """`ownership`: pull, prefill computes before decode reserves. `wire`: the form that crosses, "" as prefill keeps it.

    `lease_s`: how long prefill keeps a prompt that nobody has asked for, or whose reader is silent. `wait_s`: how long decode
    waits for a prompt. `host`: where this worker listens. `staging_gib`: host memory for what arrives. `model`, `weights`: what
    the KV is of, where the checkpoint's own name or digest does not say it.
    """

    ownership: Ownership = Ownership.PULL
    wire: str = ""
    lease_s: float = 30.0
    wait_s: float = 30.0
    host: str = "127.0.0.1"
    staging_gib: float = 1.0
    model: str = ""
    weights: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """Read them. Raises InvalidInput with every finding."""
        findings = list(_findings(given))
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
    where = "kv_connector_extra_config"
    for name, value in given.items():
        at = f"{where}.{name}"
        if name not in known:
            yield Finding(at, "is not known", ", ".join(known), did_you_mean(name, known))
        elif name in NUMBERS:
            low, high = NUMBERS[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                yield Finding(at, f"is {value!r:.40}", f"a number from {low:g} to {high:g}")
        elif not isinstance(value, str):
            yield Finding(at, f"is {value!r:.40}", "a string")
        elif name == "ownership" and value != "pull":
            yield Finding(at, f"is {value!r:.40}", "pull: push is not offered inside vLLM yet")
        elif name == "wire":
            yield from _wire_findings(at, value)
        elif name == "host" and not Address(host=value, port=1).is_local:
            yield Finding(at, f"{value!r:.60} leaves this host", "a loopback address: connections have no TLS here yet")


def _wire_findings(at: str, value: str) -> Iterator[Finding]:
    try:
        _wire(value)
    except InvalidInput as error:
        for each in error.findings:
            yield Finding(at, each.problem, f"raw, fp8, int8 or an element format ({each.expected})", each.hint)
