"""Residency, policy and objectives of `diptych serve`, from their words."""

from __future__ import annotations

from pathlib import Path

from diptych.errors import Finding, InvalidInput
from diptych.metrics.slo import SLO
from diptych.runtime.gateway.settings import Objectives, OnLoss
from diptych.runtime.peer.address import Address
from diptych.runtime.worker.config import TierConfig
from diptych.units import parse_bytes, parse_seconds

LOSSES = {"fail": OnLoss.FAIL, "other": OnLoss.OTHER, "recompute": OnLoss.RECOMPUTE, "colocate": OnLoss.COLOCATE}


def parse_residency(text: str) -> tuple[tuple[TierConfig, ...], int]:
    """Tiers, nearest first, and the bytes of a store of the fleet's own: `dram:2GiB, nvme:/var/kv:20GiB, kvstore:1GiB`.

    `remote:unix:/run/kv.sock` is a `diptych kvstore` that runs already. Raises InvalidInput with every mistake.
    """
    findings: list[Finding] = []
    tiers: list[TierConfig] = []
    store = 0
    for part in (each.strip() for each in text.split(",")):
        kind, _, rest = part.partition(":")
        try:
            if kind == "dram":
                tiers.append(TierConfig("dram", _size(rest)))
            elif kind == "nvme":
                folder, _, size = rest.rpartition(":")
                tiers.append(TierConfig("nvme", _size(size), _folder(folder)))
            elif kind == "remote":
                tiers.append(TierConfig("remote", 1 << 50, str(Address.of(rest))))
            elif kind == "kvstore":
                store = _size(rest)
            else:
                raise ValueError(f"{part[:60]!r} is no tier")
        except InvalidInput as error:
            findings += [Finding("--residency", f"{part[:60]!r}: {f.problem}", f.expected) for f in error.findings]
        except ValueError as error:
            expected = "dram:SIZE, nvme:/FOLDER:SIZE, remote:ADDRESS or kvstore:SIZE"
            findings.append(Finding("--residency", str(error), expected))
    if store and any(tier.kind == "remote" for tier in tiers):
        findings.append(Finding("--residency", "both remote and kvstore", "one store"))
    if findings:
        raise InvalidInput(findings)
    return tuple(tiers), store


def _size(text: str) -> int:
    size = int(parse_bytes(text))
    if size < 1 << 20:
        raise ValueError(f"{text} is less than a MiB")
    return size


def _folder(text: str) -> str:
    path = Path(text).expanduser()
    if not text or not path.is_absolute():
        raise ValueError(f"the folder {text[:80]!r} is no absolute path")
    return str(path)


def parse_policy(text: str) -> dict[str, OnLoss]:
    """What becomes of a request whose worker is lost: `prefill=other, decode=recompute`. Raises InvalidInput."""
    found: dict[str, OnLoss] = {}
    findings = []
    for part in (each.strip() for each in text.split(",")):
        role, _, said = (each.strip() for each in part.partition("="))
        if role in ("prefill", "decode") and said in LOSSES and role not in found:
            found[role] = LOSSES[said]
        else:
            findings.append(Finding("--policy", f"{part[:60]!r}", f"prefill=… or decode=…, one of {', '.join(LOSSES)}"))
    if findings:
        raise InvalidInput(findings)
    return found


def objectives(text: str) -> Objectives:
    """The limits that admission keeps: the tightest on TTFT and on TPOT."""
    slo = SLO.parse(text)
    limits = {name: min((each.limit for each in slo.of(name)), default=None) for name in ("ttft", "tpot")}
    return Objectives(limits["ttft"], limits["tpot"])


def parse_lease(text: str) -> float:
    seconds = parse_seconds(text)
    if not 0.5 <= seconds <= 3600:
        raise ValueError(f"{text} is no lease; 0.5 s to 1 h")
    return seconds
