"""From the words of `diptych serve` to a fleet: every mistake found before a process starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from diptych.cli.plan_inputs import Reader
from diptych.cli.serve_access import read_endpoints, read_workers
from diptych.cli.serve_listen import listening
from diptych.cli.serve_pools import ROLES, Subject, read_pools, sized, subject_of
from diptych.cli.serve_prices import Prices, read_prices
from diptych.cli.serve_words import objectives, parse_lease, parse_policy, parse_residency
from diptych.errors import Finding, InvalidInput
from diptych.runtime.gateway.settings import Objectives, OnLoss, Settings
from diptych.runtime.launch.fleet import TRANSPORTS, Fleet, Pool
from diptych.runtime.launch.machine import Machine

MOST_TOKENS = 1 << 22
OWN = "diptych"
"""The engine whose workers are ours: with addresses, those that run already."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A fleet without mistakes, and what a person should know of it."""

    fleet: Fleet
    logs: Path | None
    notes: tuple[str, ...] = ()


def read_setup(
    given: Mapping[str, Any], say: Callable[[str], None], designed: Mapping[str, str], notes: Sequence[str] = ()
) -> Setup:
    """Check every word; `designed` are the pools of the design that is served, which flags override.

    Raises:
        InvalidInput: all findings at once.
    """
    reader = Reader(given, say, None)
    subject = reader.attempt("--model", subject_of, reader.given.get("model") or "demo", say) or Subject("unknown")
    prices = read_prices(reader, given.get("run"))
    elsewhere = read_endpoints(reader, prices) if given.get("engine") == OWN else ()
    access = read_workers(reader, [each.address for each in elsewhere])
    texts = [] if given.get("engine") == OWN else read_pools(reader, designed, subject)
    for role in ROLES if given.get("engine") == OWN else ():
        if reader.given.get(role):
            reader.findings.append(Finding(f"--{role}", "is given beside --engine diptych", "workers that run already"))
    ownership = reader.value("ownership", _one_of("push", "pull")) or "push"
    transport = reader.value("transport", _one_of(*TRANSPORTS)) or TRANSPORTS[0]
    if transport == "nixl" and find_spec("nixl") is None:
        reader.findings.append(Finding("--transport", "nixl is not installed", "the package nixl, or unix, tcp, shm"))
    tiers, store = reader.value("residency", parse_residency) or ((), 0)
    settings = _settings(reader, subject, ownership)
    logs = Path(given["logs"]).expanduser().absolute() if given.get("logs") else None
    if logs is not None and logs.exists() and not logs.is_dir():
        reader.findings.append(Finding("--logs", f"{logs} is no folder", "a folder, made if it is not there"))
    if reader.findings:
        raise InvalidInput(dict.fromkeys(reader.findings))
    assert settings is not None
    machine = Machine.here()
    workers = sum(each.count for each in texts)
    pools = tuple(_priced(sized(each, subject, machine, workers), prices) for each in texts)
    settings = msgspec.structs.replace(
        settings, alternative_usd=prices.alternative_usd, alternative_name=prices.alternative, **access.settings
    )
    environment = {"DIPTYCH_LOG": "json"} if given.get("log_json") else {}
    fleet = Fleet(pools, settings, tiers, store, environment=environment, elsewhere=elsewhere, transport=transport)
    return Setup(fleet, logs, (*notes, *prices.notes, *_crowded(machine, workers)))


def _priced(pool: Pool, prices: Prices) -> Pool:
    """With the price of its role, where the pool does not say one itself."""
    return pool if pool.usd is not None else replace(pool, usd=prices.usd.get(pool.role))


def _crowded(machine: Machine, workers: int) -> list[str]:
    few = f"{machine.cores} core{'s' if machine.cores > 1 else ''}"
    return [f"{workers} workers share {few}: they slow each other down"] if workers > machine.cores else []


def _settings(reader: Reader, subject: Subject, ownership: str) -> Settings | None:
    """The gateway of our own workers; None after noting what is wrong."""
    policy = reader.value("policy", parse_policy) or {}
    slo = reader.value("slo", objectives) or Objectives()
    lease = reader.value("lease", parse_lease) or 30.0
    short = int(reader.given.get("short_prompt") or 0)
    if not 0 <= short <= MOST_TOKENS:
        reader.findings.append(Finding("--short-prompt", f"is {short}", "a number of tokens, 0 for none"))
    settings = listening(reader, subject.name, _tokenizer(reader, subject))
    if settings is None:
        return None
    return msgspec.structs.replace(
        settings, ownership=ownership, short_prompt=short, lease_seconds=lease, objectives=slo,
        prefill_loss=policy.get("prefill", OnLoss.COLOCATE), decode_loss=policy.get("decode", OnLoss.COLOCATE),
    )  # fmt: skip


def _tokenizer(reader: Reader, subject: Subject) -> str:
    if subject.place is None:
        return "toy"
    folder = subject.place if subject.place.is_dir() else subject.place.parent
    if not (folder / "tokenizer.json").is_file():
        reader.findings.append(Finding("--model", f"there is no tokenizer.json in {folder}", "the checkpoint's own"))
    return str(folder)


def _one_of(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise ValueError(f"is {text[:40]!r}; expected {' or '.join(known)}")
        return text

    return read
