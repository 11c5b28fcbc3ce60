"""From the words of `diptych simulate` to a design, its demand and its faults: every mistake found before any work is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diptych.catalog.catalog import Catalog
from diptych.catalog.model import Model
from diptych.catalog.offer import PriceBook
from diptych.cli.plan_inputs import Reader, command_line, parse_share, recorded
from diptych.design.design import Design
from diptych.design.file import read_design
from diptych.design.text import EXAMPLE, parse_design
from diptych.errors import Finding, InvalidInput
from diptych.metrics.slo import SLO
from diptych.planner.demand import Asked, Demand, Rate, demand
from diptych.planner.fleet import fleet_of_option, priced
from diptych.planner.plan import Option, Plan
from diptych.planner.policy_text import parse_policy
from diptych.planner.simulated import Simulated
from diptych.planner.soundness import soundness
from diptych.report.folder import refusal
from diptych.report.simulation_folder import MARK
from diptych.simulator.faults import Change, parse_changes
from diptych.simulator.policy import Policy
from diptych.units import parse_count, parse_seconds
from diptych.workload.formats import parse_columns

_TARGETS = "a folder of diptych plan or simulate, a plan.json, a design file (YAML or JSON), or --design TEXT"


@dataclass(frozen=True, slots=True)
class Target:
    """What is simulated, and what its source says of how: the option of a plan, its rate, SLO and workload."""

    design: Design
    notes: tuple[str, ...] = ()
    option: Option | None = None
    slo: str = ""
    workload: str | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """A simulation without mistakes, ready to run."""

    target: Target
    demand: Demand
    slo: SLO
    catalog: Catalog
    faults: tuple[Change, ...]
    policy: Policy
    policy_words: Mapping[str, str]
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
    target = _target(reader, catalog, model, book)
    slo = _slo(reader, target)
    faults = reader.attempt("--fault", parse_changes, given.get("fault") or ()) or ()
    policy = reader.attempt("--policy", parse_policy, given.get("policy") or (), catalog, slo)
    concurrency = reader.value("concurrency", _positive)
    asks = _asked(reader, target, concurrency)
    wanted = _demand(reader, given, target, asks)
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
        target, wanted, slo or SLO(), catalog, faults, policy[0], policy[1], asks.seed, concurrency, out,
        command_line(named, *words), inputs,
    )  # fmt: skip


# --- what is simulated ------------------------------------------------------------------------------------------------


def _target(reader: Reader, catalog: Catalog, model: Model | None, book: PriceBook | None) -> Target | None:
    given = reader.given
    named, text = given.get("target"), given.get("design")
    if bool(named) == (text is not None):
        problem = "is given beside --design" if named else "nothing to simulate"
        reader.findings.append(Finding("RUN", problem, f"one of {_TARGETS}, such as {EXAMPLE}"))
        return None
    if text is not None:
        reader.need("model", "a name from `diptych catalog models`, a folder or a Hugging Face config.json")
        found = reader.attempt("--design", _from_text, text, catalog, model)
    else:
        found = reader.attempt("RUN", _from_path, Path(str(named)).expanduser(), catalog, model, book)
    if found is None or book is None or found.option is not None:
        return found
    design = reader.attempt("--prices", priced, found.design, book)
    return Target(design or found.design, found.notes, None, found.slo, found.workload)


def _from_text(text: str, catalog: Catalog, model: Model | None) -> Target:
    design = parse_design(text, catalog, model or next(iter(catalog.models.values())))
    return Target(design, soundness(design) if model is not None else ())


def _from_path(path: Path, catalog: Catalog, model: Model | None, book: PriceBook | None) -> Target:
    """The target in a file or a folder, by what is in it."""
    if path.is_dir():
        for name, read in (("plan.json", _from_plan), ("summary.json", _from_run)):
            if (path / name).is_file():
                return read(path / name, catalog, model, book)
        raise InvalidInput(Finding(str(path), "neither a plan nor a simulation in it", _TARGETS))
    if not path.is_file():
        raise InvalidInput(Finding(str(path), "there is no such file", _TARGETS))
    kind = _kind(path)
    if kind == "plan":
        return _from_plan(path, catalog, model, book)
    if kind == "simulation":
        return _from_run(path, catalog, model, book)
    design = read_design(path, catalog, model)
    return Target(design, soundness(design, str(path)))


def _kind(path: Path) -> str:
    """`plan`, `simulation` or `design`."""
    if path.suffix != ".json":
        return "design"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "design"
    if isinstance(fields, dict) and {"verdict", "best"} <= set(fields):
        return "plan"
    return "simulation" if isinstance(fields, dict) and fields.get("kind") == "simulation" else "design"


def _from_plan(path: Path, catalog: Catalog, model: Model | None, book: PriceBook | None) -> Target:
    plan, flags = Plan.load(path), _flags(path)
    notes = []
    if model is None:
        model = catalog.model(flags.get("model") or plan.question.model)
    if book is None and plan.question.prices:
        try:
            book = catalog.book(flags.get("prices") or plan.question.prices)
        except InvalidInput:
            notes.append(f"the price book {plan.question.prices} is not at hand: NICs are the accelerators' own")
    fleet = fleet_of_option(plan.best, catalog, model, book)
    return Target(fleet.design, (*notes, *fleet.notes), plan.best, plan.question.slo, flags.get("workload"))


def _from_run(path: Path, catalog: Catalog, model: Model | None, book: PriceBook | None) -> Target:
    run, flags = Simulated.load(path), _flags(path)
    design = parse_design(run.design, catalog, model or catalog.model(flags.get("model") or run.model), str(path))
    return Target(design, (), None, run.slo, flags.get("workload"))


def _flags(path: Path) -> dict[str, Any]:
    """The flags that made a folder, where it tells them."""
    try:
        inputs = json.loads((path.parent / "inputs.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    flags = inputs.get("flags") if isinstance(inputs, dict) else None
    return flags if isinstance(flags, dict) else {}


# --- what is asked of it ----------------------------------------------------------------------------------------------


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


def _demand(reader: Reader, given: Mapping[str, Any], target: Target | None, asks: Asked) -> Demand | None:
    spec = given.get("workload") or (target.workload if target is not None else None)
    if spec is None:
        if target is not None:
            reader.findings.append(
                Finding("--workload", "is missing", "a trace, a bundled trace or a preset, such as preset:chat")
            )
        return None
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
