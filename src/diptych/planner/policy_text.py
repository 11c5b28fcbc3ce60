"""How a fleet is run, as words: `prefill_routing=prefix-aware, reserve=yes, tiers=dram+nvme, early_rejection=yes`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from diptych.catalog.catalog import Catalog
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.metrics.slo import SLO
from diptych.serving.admission import Admission
from diptych.serving.fallback import Fallback
from diptych.serving.ownership import Heartbeats
from diptych.serving.residency import Retention
from diptych.serving.router import Routing
from diptych.simulator.policy import Policy
from diptych.units import parse_count, parse_seconds

_YES = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_SECONDS = ("round_trip", "lease", "heartbeat", "handoff_timeout", "detection", "start_up")
_SWITCHES = ("shortest_first", "chunked", "reserve", "prefix_cache", "per_chunk", "cancel_twin", "shared_nics")
_FALLBACK = ("colocate", "hold", "retries", "resends")
_APART = ("routing", "early_rejection", "shared_nics", *_FALLBACK)
WORDS = (
    "routing", "prefill_routing", "decode_routing", *_SWITCHES, "block", "kv_blocks", "tiers", "retention", *_SECONDS,
    "heartbeat_from", "early_rejection", *_FALLBACK,
)  # fmt: skip
"""Everything that may be set; docs/simulate.md says what each does."""


def parse_policy(
    texts: Iterable[str], catalog: Catalog, slo: SLO | None = None, where: str = "--policy"
) -> tuple[Policy, Mapping[str, str]]:
    """The policy that `NAME=VALUE` pairs, separated by commas, describe, and the pairs.

    `shared_nics` is the caller's to carry out, who knows the offers (`shared`). `early_rejection`
    refuses what would miss the tightest TTFT and TPOT limits of `slo`.

    Raises:
        InvalidInput: every mistake in all of them.
    """
    findings: list[Finding] = []
    given: dict[str, str] = {}
    for term in (part.strip() for text in texts for part in text.split(",") if part.strip()):
        name, sign, value = (part.strip() for part in term.partition("="))
        name = name.replace("-", "_").casefold()
        if name not in WORDS:
            hint = did_you_mean(name, WORDS)
            known = ", ".join(WORDS)
            findings.append(Finding(where, f"unknown word {name!r}", known, hint if hint.endswith("?") else ""))
        elif not sign or name in given:
            findings.append(
                Finding(where, f"cannot read {term!r}" if not sign else f"{name} is given twice", "NAME=VALUE")
            )
        else:
            given[name] = value
    values = {name: _read(name, text, catalog, findings, where) for name, text in given.items()}
    if findings:
        raise InvalidInput(findings)
    return _policy(values, slo or SLO()), given


def shared(policy: Policy, words: Mapping[str, str], sizes: Mapping[str, int], where: str = "--policy") -> Policy:
    """The policy with the accelerators per instance of each offer, if `shared_nics` was asked for.

    Raises:
        InvalidInput: nothing says how large the instances are.
    """
    if not _YES.get(words.get("shared_nics", "no").casefold(), False):
        return policy
    if not sizes:
        problem = "shared_nics: nothing says how large the instances are"
        raise InvalidInput(Finding(where, problem, "a plan, or --prices BOOK with the workers' offers"))
    return replace(policy, instances=dict(sizes))


def _read(name: str, text: str, catalog: Catalog, findings: list[Finding], where: str) -> Any:
    try:
        return _reader(name, catalog)(text)
    except InvalidInput as error:
        findings += [Finding(where, f"{name}: {f.problem}", f.expected, f.hint) for f in error.findings]
    except ValueError as error:
        findings.append(Finding(where, f"{name}: {error}"))
    return None


def _reader(name: str, catalog: Catalog) -> Callable[[str], Any]:
    if name.endswith("routing"):
        return lambda text: _choice(text, Routing)
    if name == "retention":
        return lambda text: _choice(text, Retention)
    if name == "heartbeat_from":
        return lambda text: _choice(text, Heartbeats)
    if name == "tiers":
        return lambda text: tuple(catalog.tier(tier.strip()) for tier in text.split("+"))
    if name in _SECONDS:
        return _duration
    return _whole if name in ("block", "kv_blocks", "retries", "resends") else _switch


def _choice(text: str, kind: Any) -> Any:
    values = [str(value) for value in kind]
    if text.casefold() not in values:
        raise ValueError(f"{text!r} is none of {', '.join(values)}")
    return kind(text.casefold())


def _switch(text: str) -> bool:
    if text.casefold() not in _YES:
        raise ValueError(f"{text!r} is neither yes nor no")
    return _YES[text.casefold()]


def _whole(text: str) -> int:
    value = parse_count(text)
    if value != int(value) or value < 0:
        raise ValueError(f"{text!r} is not a whole number from 0")
    return int(value)


def _duration(text: str) -> float:
    value = parse_seconds(text)
    if value < 0:
        raise ValueError(f"{text!r} is below 0")
    return value


def _policy(values: Mapping[str, Any], slo: SLO) -> Policy:
    fields = {name: value for name, value in values.items() if name not in _APART}
    if "routing" in values:
        fields = {"prefill_routing": values["routing"], "decode_routing": values["routing"]} | fields
    fallback = replace(Fallback(), **{name: values[name] for name in _FALLBACK if name in values})
    admission = _admission(slo) if values.get("early_rejection") else None
    return Policy(fallback=fallback, admission=admission, **fields)


def _admission(slo: SLO) -> Admission:
    limits = {metric: min((o.limit for o in slo.of(metric)), default=float("inf")) for metric in ("ttft", "tpot")}
    return Admission(ttft=limits["ttft"], tpot=limits["tpot"])
