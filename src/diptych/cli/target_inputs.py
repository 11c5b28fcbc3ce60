"""What a command is about: the design of a plan, of an earlier run, of a file, or of a line of text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diptych.catalog.catalog import Catalog
from diptych.catalog.model import Model
from diptych.catalog.offer import PriceBook
from diptych.cli.plan_inputs import Reader
from diptych.design.design import Design
from diptych.design.file import read_design
from diptych.design.text import EXAMPLE, parse_design
from diptych.errors import Finding, InvalidInput
from diptych.planner.fleet import fleet_of_option, priced
from diptych.planner.plan import Option, Plan
from diptych.planner.simulated import Simulated
from diptych.planner.soundness import soundness

_TARGETS = "a folder of diptych plan or simulate, a plan.json, a design file (YAML or JSON), or --design TEXT"


@dataclass(frozen=True, slots=True)
class Target:
    """A design, and what its source says of it: the option of a plan, its SLO and workload."""

    design: Design
    notes: tuple[str, ...] = ()
    option: Option | None = None
    slo: str = ""
    workload: str | None = None
    plan: Plan | None = None


def read_target(
    reader: Reader, named: Any, catalog: Catalog, model: Model | None, book: PriceBook | None
) -> Target | None:
    """The target of RUN or --design, priced where a book is given; None after noting what is wrong."""
    text = reader.given.get("design")
    if bool(named) == (text is not None):
        problem = "is given beside --design" if named else "nothing to work on"
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
    return Target(fleet.design, (*notes, *fleet.notes), plan.best, plan.question.slo, flags.get("workload"), plan)


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
