"""The inputs of a plan resolved one by one; what is wrong is collected, so that one round of corrections is enough."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.catalog.model import Model
from diptych.design.axes import Parallelism
from diptych.design.capability import engine_names
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.planner.pins import Pins, RolePins
from diptych.workload.lengths import Lengths
from diptych.workload.workload import Workload

MOST_TOKENS = 1e8

MOST_TOO_LONG = 0.1
"""Share of requests beyond the model's context that a plan may leave out; more of them are another workload."""


class Asking:
    """Collects findings while the inputs are resolved; `ask` raises them all at once."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.findings: list[Finding] = []

    def say(self, where: str, problem: str, expected: str = "", hint: str = "") -> None:
        self.findings.append(Finding(where, problem, expected, hint))

    def attempt(self, where: str, action: Any, *arguments: Any) -> Any:
        """The result of `action`, or None after noting what it complained about."""
        try:
            return action(*arguments)
        except InvalidInput as error:
            self.findings.extend(Finding(f.where or where, f.problem, f.expected, f.hint) for f in error.findings)
        except ValueError as error:
            self.say(where, str(error))
        return None

    def positive(self, where: str, value: float | None, what: str) -> None:
        if value is not None and not (math.isfinite(value) and value > 0):
            self.say(where, f"{what} is {value}", f"a finite {what} above zero")

    def member(self, where: str, text: str | None, kind: Any) -> Any:
        """The enum member that `text` names."""
        if text is None:
            return None
        values = [str(member) for member in kind]
        if text.strip().lower() in values:
            return kind(text.strip().lower())
        self.say(where, f"unknown {where.strip('-')} {text!r}", ", ".join(values), did_you_mean(text, values))
        return None

    def accelerators(self, where: str, text: str | None) -> tuple[Accelerator, ...]:
        names = [name.strip() for name in (text or "").split(",") if name.strip()]
        found = (self.attempt(where, self.catalog.accelerator, name) for name in names)
        return tuple(accelerator for accelerator in found if accelerator is not None)

    def precision(self, where: str, text: str | None) -> Mapping[str, Dtype] | None:
        """'fp8' or 'w=fp8 a=bf16 kv=fp8', any part left out stays free."""
        if text is None:
            return None
        pairs = [part.split("=", 1) for part in re.split(r"[\s,]+", text.strip()) if "=" in part]
        parts = dict(pairs)
        if not parts:
            dtype = self.member(where, text, Dtype)
            return {"weights": dtype, "activations": dtype} if dtype else None
        names = {"w": "weights", "a": "activations", "kv": "kv", "weights": "weights", "activations": "activations"}
        given = [names[key] for key, _ in pairs if key in names]
        for name in dict.fromkeys(given):
            if given.count(name) > 1:
                self.say(
                    where,
                    f"{name} are given {given.count(name)} times in {text!r}",
                    "one format for each of w, a and kv",
                )
        unknown = [key for key in parts if key not in names]
        if unknown:
            self.say(where, f"unknown part {', '.join(unknown)!r} in {text!r}", "w=, a= and kv=")
        dtypes = {names[key]: self.member(where, value, Dtype) for key, value in parts.items() if key in names}
        return {name: dtype for name, dtype in dtypes.items() if dtype is not None}

    def parallelism(self, where: str, text: str | None) -> Parallelism | None:
        if text is None:
            return None
        parts = re.findall(r"(tp|pp|ep|dp)\s*=?\s*(\d+)", text.lower())
        if not parts or re.sub(r"(tp|pp|ep|dp)\s*=?\s*\d+|[\s,·]", "", text.lower()):
            self.say(where, f"cannot read {text!r}", "a text such as tp4 or tp4·pp2")
            return None
        sizes = {name: int(size) for name, size in parts}
        if len(sizes) < len(parts):
            self.say(where, f"a size is given twice in {text!r}", "each of tp, pp, ep and dp once")
            return None
        if min(sizes.values()) < 1:
            self.say(where, f"a size of 0 in {text!r}", "sizes from 1")
            return None
        return Parallelism(**sizes)

    def role(self, role: str, pins: Pins) -> RolePins:
        def pinned(axis: str) -> tuple[str, Any]:
            return f"--{role}-{axis.replace('_', '-')}", getattr(pins, f"{role}_{axis}")

        return RolePins(
            self.accelerators(f"--{role}", getattr(pins, role)),
            self.precision(*pinned("precision")),
            self.parallelism(*pinned("parallelism")),
            self.engine(*pinned("engine")) or self.engine("--engine", pins.engine),
            self.residency(*pinned("residency")),
            self.count(*pinned("max_batch"), "sequences"),
            self.count(*pinned("max_batched_tokens"), "tokens"),
        )

    def residency(self, where: str, text: str | None) -> TierKind | None:
        """A tier that the catalog describes; HBM is every accelerator's own."""
        kind: TierKind | None = self.member(where, text, TierKind)
        if kind in (None, TierKind.HBM) or any(tier.kind is kind for tier in self.catalog.tiers.values()):
            return kind
        self.say(where, f"the catalog has no {kind} tier", "hbm, or a catalog that describes it")
        return None

    def count(self, where: str, value: Any, what: str) -> int:
        """A whole number from 1; 0 when it is not given."""
        if value is None:
            return 0
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self.say(where, f"{value!r} {what}", "a whole number from 1")
        return 0

    def workload(self, workload: Workload) -> None:
        """Lengths that arithmetic can trust."""
        lengths = workload.lengths
        for name in ("isl", "osl", "cached", "weight"):
            values = getattr(lengths, name)
            if len(values) == 0:
                self.say("--workload", f"{workload.name} holds no request", "at least one request")
                return
            if not np.all(np.isfinite(values)) or np.min(values) < 0:
                self.say("--workload", f"{name} of {workload.name} holds negative or non-finite values")
        longest = float(np.max(lengths.isl + lengths.osl))
        if longest > MOST_TOKENS:
            self.say("--workload", f"a request of {longest:.3g} tokens", f"at most {MOST_TOKENS:.0g}")
        if lengths.mean_isl <= 0 or lengths.mean_osl <= 0:
            self.say("--workload", f"{workload.name} has no prompt or no answer on average", "both above zero")

    def context(self, model: Model, workload: Workload) -> Workload:
        """The requests that the model takes: engines refuse the others one by one. Too many of those are a finding."""
        lengths = workload.lengths
        fits = lengths.isl + lengths.osl <= model.max_context
        beyond = 1 - float(lengths.weight[fits].sum() / lengths.weight.sum())
        if fits.all():
            return workload
        limit = f"{model.name} takes {model.max_context:,}, the longest request has {lengths.max_context:,.0f}"
        if beyond > MOST_TOO_LONG:
            problem = f"{beyond * 100:.2g} % of the requests are too long for the model: {limit} tokens"
            self.say("--workload", problem, f"requests within the model's context, but for {MOST_TOO_LONG:.0%} at most")
            return workload
        kept = (values[fits] for values in (lengths.isl, lengths.osl, lengths.cached, lengths.weight / (1 - beyond)))
        note = f"{beyond * 100:.2g} % of the requests are left out as too long for the model: {limit} tokens"
        return replace(workload, lengths=Lengths(*kept), notes=(*workload.notes, note))

    def engine(self, where: str, name: str | None) -> str | None:
        """An engine of the capability table; the first part of a plugin's name stands for all of them."""
        if name is None:
            return None
        if "@" in name:
            if where != "--engine":
                self.say(where, f"a release in {name!r}", "--engine ENGINE@RELEASE, for both roles")
            return name.partition("@")[0].strip().lower()
        known = tuple(dict.fromkeys(n for engine in engine_names() for n in (engine.partition("-")[0], engine)))
        if name.strip().lower() in known:
            return name.strip().lower()
        self.say(where, f"unknown engine {name!r}", ", ".join(known), did_you_mean(name, known))
        return None
