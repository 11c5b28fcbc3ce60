"""What a gateway is told: where it listens, whom it serves, its limits and its policy. One JSON file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from diptych.errors import Finding, InvalidInput
from diptych.hosts import is_loopback
from diptych.runtime.peer.address import Address

_Positive = Annotated[float, Meta(gt=0)]
_Natural = Annotated[int, Meta(ge=0)]


class OnLoss(StrEnum):
    """What becomes of a request whose worker of one role is lost."""

    FAIL = "fail"  # an error to the client
    OTHER = "other worker"  # the same way with other workers; wait for one if none is up
    RECOMPUTE = "recompute"  # the whole of it on a decode worker
    COLOCATE = "colocate"  # other workers, and one pool alone while the other is gone


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One worker: its control socket, and what an hour of it costs in USD where that is known."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    role: Annotated[str, Meta(pattern="^(prefill|decode|colocated)$")]
    address: str
    usd_per_hour: Annotated[float, Meta(ge=0)] | None = None


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds in bytes, seconds and requests."""

    body_bytes: Annotated[int, Meta(ge=1024)] = 8 << 20
    header_bytes: Annotated[int, Meta(ge=1024)] = 32 << 10
    header_seconds: _Positive = 10.0
    body_seconds: _Positive = 30.0
    idle_seconds: _Positive = 75.0
    request_seconds: _Positive = 600.0
    hold_seconds: _Positive = 10.0
    connections: Annotated[int, Meta(ge=1)] = 16_384
    requests: Annotated[int, Meta(ge=1)] = 2048
    held: _Natural = 256
    unread_tokens: Annotated[int, Meta(ge=1)] = 4096
    write_seconds: _Positive = 60.0


class Objectives(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds that admission keeps; None leaves a latency unjudged."""

    ttft: _Positive | None = None
    tpot: _Positive | None = None


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything. Off loopback `api_key` and both TLS files are required.

    `short_prompt`: prompts with fewer tokens left to compute stay whole on a decode worker. `alternative_usd` is what a million
    tokens cost in the plan's homogeneous design, to be shown beside what they cost here.
    """

    model: Annotated[str, Meta(min_length=1, max_length=128)]
    tokenizer: str = "toy"
    workers: Annotated[tuple[Endpoint, ...], Meta(min_length=1, max_length=4096)]
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    unix: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    api_key: str = ""
    admin_token: str = ""
    worker_token: Annotated[str, Meta(max_length=256)] = ""
    worker_ca: str = ""
    worker_certificate: str = ""
    worker_key: str = ""
    ownership: Annotated[str, Meta(pattern="^(push|pull)$")] = "push"
    wire: Annotated[str, Meta(max_length=32)] = ""
    short_prompt: _Natural = 0
    heartbeat_seconds: _Positive = 0.5
    missing: Annotated[int, Meta(ge=1)] = 3
    stuck_seconds: _Positive = 10.0
    lease_seconds: _Positive = 30.0
    retries: _Natural = 3
    prefill_loss: OnLoss = OnLoss.COLOCATE
    decode_loss: OnLoss = OnLoss.COLOCATE
    objectives: Objectives = Objectives()
    limits: Limits = Limits()
    alternative_usd: Annotated[float, Meta(ge=0)] | None = None
    alternative_name: Annotated[str, Meta(max_length=200)] = ""

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read a file. Raises InvalidInput."""
        try:
            found = msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            raise InvalidInput(Finding(str(path), str(error)[:300], "a gateway's settings")) from None
        found.check()
        return found

    def check(self) -> None:
        """Every mistake that single fields do not show. Raises InvalidInput."""
        findings = [*self._listening(), *self._workers()]
        if findings:
            raise InvalidInput(findings)

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return bool(self.unix) or is_loopback(self.host)

    @property
    def reached(self) -> str:
        """The host by which this machine reaches it."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared

    @property
    def url(self) -> str:
        """Where this machine finds it."""
        host = f"[{self.reached}]" if ":" in self.reached else self.reached
        return f"{'https' if self.tls_certificate else 'http'}://{host}:{self.port}"

    def _listening(self) -> list[Finding]:
        found = []
        if bool(self.tls_certificate) != bool(self.tls_key):
            found.append(Finding("tls", "one of certificate and key is missing", "both or none"))
        if self.is_local:
            return found
        if not self.api_key:
            found.append(Finding("api_key", f"missing, and {self.host} is not loopback", "a key that clients send"))
        if not self.tls_certificate:
            found.append(
                Finding("tls_certificate", f"missing, and {self.host} is not loopback", "a PEM file, with tls_key")
            )
        return found

    def _workers(self) -> list[Finding]:
        found = []
        names: set[str] = set()
        for place, worker in enumerate(self.workers):
            where = f"workers[{place}]"
            if worker.name in names:
                found.append(Finding(where, f"a second worker named {worker.name!r}", "names that differ"))
            names.add(worker.name)
            try:
                address = Address.of(worker.address)
            except InvalidInput as error:
                found += [Finding(f"{where}.address", each.problem, each.expected) for each in error.findings]
                continue
            if not address.is_local and not (self.worker_token and self.worker_ca):
                expected = "worker_token and worker_ca, with a certificate of ours"
                found.append(Finding(f"{where}.address", f"{address} is another machine", expected))
        return found
