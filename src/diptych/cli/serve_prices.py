"""What workers cost, and what the plan's homogeneous alternative costs: shown beside what is measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from diptych.catalog.catalog import Catalog
from diptych.cli.plan_inputs import Reader
from diptych.cli.serve_pools import ROLES
from diptych.cli.target_inputs import Target, read_target
from diptych.design.design import Design
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.planner.fleet import priced
from diptych.planner.plan import Option, Plan

_SAID = re.compile(r"\s*(\w+)\s*=\s*(\d{1,6}(?:\.\d{1,6})?)\s*")
EXAMPLE = "a price book beside RUN, or USD an hour of one worker: prefill=4.1, decode=1.2"


@dataclass(frozen=True, slots=True)
class Prices:
    """USD an hour of one worker of a role, and USD per million output tokens of the alternative, None where there is none."""

    usd: Mapping[str, float] = field(default_factory=dict)
    alternative_usd: float | None = None
    alternative: str = ""
    notes: tuple[str, ...] = ()


def read_prices(reader: Reader, run: Any) -> Prices:
    """Of `--prices`, or of the plan RUN. What is wrong is noted in the reader."""
    text = reader.given.get("prices")
    if text is not None and "=" in text:
        usd = reader.attempt("--prices", _said, text) or {}
        return Prices(usd, *_alternative(_target(reader, run)) if run else (None, ""))
    if not run:
        if text is not None:
            reader.findings.append(Finding("--prices", f"{text[:60]!r} without RUN says nothing of workers", EXAMPLE))
        return Prices()
    target = _target(reader, run)
    if target is None:
        return Prices()
    is_other = text is not None and not (target.plan and text == target.plan.question.prices)
    design = _repriced(reader, target.design, text) if is_other and text else target.design
    usd = {
        str(pool.role): total / pool.count
        for pool in design.pools
        if (total := sum(each.usd_per_hour * each.count for each in pool.members))
    }
    if not usd:
        return Prices()
    notes = ["prices are those of the plan's workers; what runs here may carry less or more"]
    if is_other:
        notes.append(f"the homogeneous alternative is not priced in {text}: plan with it to see both")
        return Prices(usd, notes=tuple(notes))
    return Prices(usd, *_alternative(target), tuple(notes))


def _target(reader: Reader, run: Any) -> Target | None:
    fresh = Reader({}, reader.say, None)
    found = read_target(fresh, run, Catalog.load(), None, None)
    reader.findings += fresh.findings
    return found


def _repriced(reader: Reader, design: Design, book: str) -> Design:
    """The design on the cheapest offers of another book; as it is after noting what is wrong."""
    bare = tuple(
        replace(pool, members=tuple(replace(each, usd_per_hour=0.0) for each in pool.members)) for pool in design.pools
    )
    prices = reader.attempt("--prices", Catalog.load().book, book)
    found = reader.attempt("--prices", priced, replace(design, pools=bare), prices) if prices is not None else None
    return found or design


def _said(text: str) -> dict[str, float]:
    """Raises InvalidInput with every mistake."""
    found: dict[str, float] = {}
    findings = []
    for part in text.split(","):
        said = _SAID.fullmatch(part)
        if said is None:
            findings.append(Finding("--prices", f"{part.strip()[:60]!r}", EXAMPLE))
        elif said[1] not in ROLES:
            hint = did_you_mean(said[1][:40], ROLES)
            findings.append(Finding("--prices", f"{said[1][:40]!r} is no role", ", ".join(ROLES), hint))
        else:
            found[said[1]] = float(said[2])
    if findings:
        raise InvalidInput(findings)
    return found


def _alternative(target: Target | None) -> tuple[float | None, str]:
    """The cheapest homogeneous fleet that the plan found for the same rate and SLO, unless that is its answer."""
    plan = target.plan if target is not None else None
    option = homogeneous(plan) if plan is not None else None
    if option is None or not option.usd_per_mtok_output:
        return None, ""
    return option.usd_per_mtok_output, option.label[:200]


def homogeneous(plan: Plan) -> Option | None:
    """The cheapest option of one kind of accelerator; None where the plan has none but its own answer."""
    found = [
        each
        for each in (plan.colocated, plan.disaggregated)
        if each is not None and not each.heterogeneous and each.label != plan.best.label
    ]
    return min(found, key=lambda each: each.usd_per_mtok_output, default=None)
