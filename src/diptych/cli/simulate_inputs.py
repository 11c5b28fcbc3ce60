"""From the words of `diptych simulate` to a design, its demand and its faults: every mistake found before any work is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diptych.catalog.catalog import Catalog
from diptych.catalog.offer import PriceBook
from diptych.cli.plan_inputs import Reader, command_line, flag, parse_share, recorded
from diptych.cli.target_inputs import Target, read_target
from diptych.errors import Finding, InvalidInput
from diptych.metrics.slo import SLO
from diptych.perf.calibration import Calibration, read_calibration
from diptych.perf.model import PerfModel
from diptych.perf.roofline import default_perf
from diptych.planner.demand import Asked, Demand, LongDemand, Rate, demand, long_demand
from diptych.planner.policy_text import parse_policy, shared
from diptych.report.folder import refusal
from diptych.report.simulation_folder import MARK
from diptych.simulator.faults import Change, parse_changes
from diptych.simulator.policy import Policy
from diptych.units import parse_count, parse_seconds
from diptych.workload.formats import parse_columns


@dataclass(frozen=True, slots=True)
class Setup:
    """A simulation without mistakes, ready to run."""

    target: Target
    demand: Demand | LongDemand
    slo: SLO
    catalog: Catalog
    faults: tuple[Change, ...]
    policy: Policy
    policy_words: Mapping[str, str]
    perf: PerfModel
    seed: int
    concurrency: int | None
    out: Path | None
    command: str
    inputs: Mapping[str, Any] = field(default_factory=dict)


def read_setup(given: Mapping[str, Any], say: Callable[[str], None], progress: Any = None) -> Setup:
    """Check every word, read every file, resolve every name.

    Raises:
        InvalidInput: all findings at once.
    """
    reader = Reader(given, say, progress)
    catalog = reader.attempt("--catalog", Catalog.load, *(given.get("catalog") or ())) or Catalog.load()
    model = reader.value("model", catalog.model)
    book = reader.value("prices", catalog.book)
    calibration = _calibration(reader)
    if calibration is not None:
        catalog = with_calibrated(catalog, calibration)
        target: Target | None = Target(calibration.design())
    else:
        asked = reader.given.get("calibration") is None
        target = read_target(reader, reader.given.get("target"), catalog, model, book) if asked else None
    slo = _slo(reader, target)
    faults = reader.attempt("--fault", parse_changes, given.get("fault") or ()) or ()
    policy = reader.attempt("--policy", parse_policy, given.get("policy") or (), catalog, slo)
    if policy is not None and target is not None:
        rules = reader.attempt("--policy", shared, *policy, _sizes(target, book)) or policy[0]
        if calibration is not None:
            rules = as_probed(rules, calibration, policy[1])
    concurrency = reader.value("concurrency", _positive)
    asks = _asked(reader, target, concurrency)
    keeps = bool(given.get("out_folder")) or concurrency is not None
    wanted = _demand(reader, given, target, asks, keeps)
    out = Path(given["out_folder"]) if given.get("out_folder") else None
    if out is not None and (finding := refusal(out, MARK)):
        reader.findings.append(finding)
    if reader.findings:
        raise InvalidInput(dict.fromkeys(reader.findings))
    assert target is not None
    assert wanted is not None
    assert policy is not None
    named = {name: value for name, value in given.items() if name != "target"}
    words = ("simulate", given["target"]) if given.get("target") else ("simulate",)
    inputs = {"target": given.get("target"), **recorded(named)}
    return Setup(
        target, wanted, slo or SLO(), catalog, faults, rules, policy[1],
        default_perf() if calibration is None else calibration.perf(), asks.seed, concurrency, out,
        command_line(named, *words), inputs,
    )  # fmt: skip


def _calibration(reader: Reader) -> Calibration | None:
    """What --calibration names; nothing beside it may say what is simulated."""
    found = reader.value("calibration", lambda text: read_calibration(Path(text).expanduser()))
    for name in ("target", "design", "model", "prices") if reader.given.get("calibration") is not None else ():
        if reader.given.get(name) is not None:
            where = "RUN" if name == "target" else flag(name)
            reader.findings.append(
                Finding(where, "is given beside --calibration", "the fleet that was calibrated, or this")
            )
    return found


def with_calibrated(catalog: Catalog, calibration: Calibration) -> Catalog:
    """The catalog with the devices, the link and the model that a calibration is of."""
    design = calibration.design()
    devices = {m.worker.accelerator.name: m.worker.accelerator for pool in design.pools for m in pool.members}
    model = design.pools[0].members[0].worker.model
    links = {design.boundary.link.name: design.boundary.link} if design.boundary is not None else {}
    return replace(
        catalog,
        accelerators={**catalog.accelerators, **devices},
        links={**catalog.links, **links},
        models={**catalog.models, model.name: model},
    )


def as_probed(policy: Policy, calibration: Calibration, words: Mapping[str, str]) -> Policy:
    """The policy with what the probe saw of the fleet, as far as no word says otherwise."""
    slowed = {role.role: role.slowed for role in calibration.roles if role.slowed > 1}
    return replace(
        policy,
        block=policy.block if "block" in words else calibration.block_tokens,
        role_blocks={role.role: role.blocks for role in calibration.roles},
        entry=calibration.gateway_seconds,
        slowed=slowed,
    )


def _sizes(target: Target, book: PriceBook | None) -> dict[str, int]:
    """Accelerators of an instance, by offer: as the plan rents them, or as the book offers them."""
    if target.option is not None:
        members = [member for pool in target.option.pools for member in pool.members if member.instances]
        return {m.offer: (m.accelerators + m.idle_accelerators) // m.instances for m in members}
    named = {member.offer for pool in target.design.pools for member in pool.members if member.offer}
    return {offer.instance: offer.gpus for offer in book or () if offer.instance in named}


def _slo(reader: Reader, target: Target | None) -> SLO | None:
    text = reader.given.get("slo") or (target.slo if target is not None else "")
    return reader.attempt("--slo", SLO.parse, text) if text and text != "none" else None


def _asked(reader: Reader, target: Target | None, concurrency: int | None) -> Asked:
    given = reader.given
    if concurrency is not None and given.get("rate"):
        reader.findings.append(Finding("--rate", "is given beside --concurrency", "an open loop or a closed one"))
    if concurrency is not None and given.get("duration"):
        reader.findings.append(Finding("--duration", "ends arrivals, and a closed loop has none", "--requests N"))
    base = target.option.rate if target is not None and target.option is not None else None
    return Asked(
        rate=reader.value("rate", Rate.parse) or (Rate(1.0) if concurrency is not None else None),
        base=base,
        duration=reader.value("duration", _duration),
        requests=reader.value("requests", _positive),
        resample=bool(given.get("resample")),
        seed=int(given.get("seed") or 0),
        columns=reader.value("columns", parse_columns) or None,
        prefix_hit=reader.value("prefix_hit", parse_share),
        sort=bool(given.get("sort")),
        drop_empty=bool(given.get("drop_empty")),
    )


def _demand(
    reader: Reader, given: Mapping[str, Any], target: Target | None, asks: Asked, keeps: bool
) -> Demand | LongDemand | None:
    """What is asked of the fleet; `keeps` where every request is wanted afterwards or follows from another one's end."""
    spec = given.get("workload") or (target.workload if target is not None else None)
    if spec is None:
        if target is not None:
            reader.findings.append(
                Finding("--workload", "is missing", "a trace, a bundled trace or a preset, such as preset:chat")
            )
        return None
    long = None if keeps else reader.attempt("--workload", long_demand, spec, asks, reader.say)
    if long is not None or reader.findings:
        return long
    return reader.attempt("--workload", demand, spec, asks, reader.say, reader.progress)


def _duration(text: str) -> float:
    value = parse_seconds(text)
    if not value > 0:
        raise ValueError(f"{text} is not above zero")
    return value


def _positive(text: str) -> int:
    value = parse_count(text)
    if value != int(value) or value < 1:
        raise ValueError(f"{text} is not a whole number from 1")
    return int(value)
