"""What to sweep, in a YAML or JSON file: checked as a whole before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from diptych.catalog.catalog import Catalog
from diptych.catalog.model import Model
from diptych.catalog.offer import PriceBook
from diptych.catalog.yaml_lines import Node, read_yaml
from diptych.design.text import format_design, parse_design
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.metrics.slo import SLO
from diptych.planner.demand import Asked, Rate, demand
from diptych.planner.fleet import fleet_of_option, priced
from diptych.planner.plan import Plan
from diptych.planner.policy_text import parse_policy
from diptych.planner.soundness import soundness
from diptych.planner.sweep import Point
from diptych.simulator.faults import parse_changes
from diptych.units import parse_seconds

_LISTS = ("designs", "rates", "seeds", "concurrencies", "faults", "catalog")
_KEYS = ("model", "workload", "slo", "prices", "policy", "requests", "duration", *_LISTS)


def read_points(path: Path) -> tuple[Point, ...]:
    """The points of a sweep file: every design at every rate (or concurrency) with every seed.

    ```yaml
    model: Qwen3-32B
    workload: preset:chat
    slo: ttft_p90<2s, tpot_p90<50ms
    designs: ["3xH100:tp2 -> 5xH20:tp4, link=rdma-400g", "4xH100:tp2", runs/conv]
    rates: [10, 20, x1.5]
    seeds: [0, 1, 2]
    requests: 5000
    ```

    A design is a line of text or a folder that `diptych plan` wrote. Optional: prices, faults, policy, duration, catalog,
    concurrencies (closed loops) in place of rates.

    Raises:
        InvalidInput: every finding at once.
    """
    findings: list[Finding] = []
    document = read_yaml(path, findings)
    if document is None or findings:
        raise InvalidInput(findings)
    if not document.is_mapping:
        raise InvalidInput(Finding(document.where, "not a mapping", f"keys {', '.join(_KEYS)}"))
    reading = _File(document, findings)
    points = tuple(reading.points())
    if findings:
        raise InvalidInput(dict.fromkeys(findings))
    return points


class _File:
    """A sweep file being read; findings are collected with their lines."""

    def __init__(self, document: Node, findings: list[Finding]) -> None:
        self.fields: dict[str, Node] = document.value
        self.where, self.findings = document.where, findings
        for name, node in self.fields.items():
            if name not in _KEYS:
                self.say(node.where, f"unknown key {name!r}", ", ".join(_KEYS), did_you_mean(name, _KEYS))
        for name in ("model", "workload", "designs"):
            if name not in self.fields:
                self.say(self.where, f"no {name}", f"{name}: in the file")

    def say(self, where: str, problem: str, expected: str = "", hint: str = "") -> None:
        self.findings.append(Finding(where, problem, expected, hint if hint.endswith("?") else ""))

    def items(self, name: str, default: Sequence[Any] = ()) -> list[Node]:
        node = self.fields.get(name)
        if node is None:
            return [Node(value, self.where) for value in default]
        listed = node.value if isinstance(node.value, list) else [node]
        plain = [item for item in listed if not isinstance(item.plain, dict | list)]
        if len(plain) < len(listed) or not listed:
            self.say(node.where, f"{name} is not a list of values")
        return plain

    def text(self, name: str) -> str:
        node = self.fields.get(name)
        return "" if node is None else str(node.plain)

    def number(self, node: Node, name: str, least: int) -> int:
        value = node.plain
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.say(node.where, f"{name}: {value!r}", f"a whole number from {least}")
            return least
        return value

    def read(self, where: str, action: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except InvalidInput as error:
            for f in error.findings:  # flags are not what a file has
                inside = f"{where}: {f.where}" if f.where and not f.where.startswith("--") else where
                self.findings.append(Finding(inside, f.problem, f.expected, f.hint))
        except ValueError as error:
            self.say(where, str(error))
        return None

    def place(self, name: str) -> str:
        return self.fields[name].where if name in self.fields else self.where

    def points(self) -> Iterator[Point]:
        catalog = tuple(str(node.plain) for node in self.items("catalog"))
        loaded = self.read(self.place("catalog"), Catalog.load, *catalog) or Catalog.load()
        base = self.base(catalog, loaded)
        designs = self.designs(loaded)
        rates = [str(node.plain) for node in self.items("rates", ("",)) if self.rate(node)]
        seeds = [self.number(node, "seeds", 0) for node in self.items("seeds", (0,))]
        loops = [self.number(node, "concurrencies", 1) for node in self.items("concurrencies")]
        if loops and "rates" in self.fields:
            self.say(self.place("rates"), "rates beside concurrencies", "open loops or closed ones")
        if base is None:
            return
        paces = [("", loop) for loop in loops] or [(rate, 0) for rate in rates]
        for design, (rate, loop), seed in product(designs, paces, seeds):
            yield replace(base, design=design, rate=rate, concurrency=loop, seed=seed)

    def rate(self, node: Node) -> bool:
        return node.plain == "" or self.read(node.where, Rate.parse, str(node.plain)) is not None

    def base(self, catalog: tuple[str, ...], loaded: Catalog) -> Point | None:
        """What all points share; None when it cannot be read."""
        before = len(self.findings)
        slo = self.read(self.place("slo"), SLO.parse, self.text("slo")) if self.text("slo") else None
        policy = self.text("policy")
        if policy:
            self.read(self.place("policy"), parse_policy, [policy], loaded, slo)
        faults = tuple(str(node.plain) for node in self.items("faults"))
        self.read(self.place("faults"), parse_changes, faults)
        if self.text("model"):
            self.read(self.place("model"), loaded.model, self.text("model"))
        if self.text("prices"):
            self.read(self.place("prices"), loaded.book, self.text("prices"))
        requests = self.number(self.fields["requests"], "requests", 1) if "requests" in self.fields else 0
        duration = (
            self.read(self.place("duration"), parse_seconds, self.text("duration")) if self.text("duration") else 0.0
        )
        point = Point(
            model=self.text("model"),
            design="",
            workload=self.text("workload"),
            requests=requests,
            duration=duration or 0.0,
            slo=self.text("slo"),
            prices=self.text("prices"),
            faults=faults,
            policy=policy,
            catalog=catalog,
        )
        if self.text("workload"):
            paced = "rates" in self.fields or "concurrencies" in self.fields
            asked = Asked(base=1.0 if paced else None, requests=min(requests or 10, 10))
            self.read(self.place("workload"), demand, self.text("workload"), asked)
        return point if len(self.findings) == before and point.model else None

    def designs(self, catalog: Catalog) -> list[str]:
        """Lines of designs, checked; with any model when the one named is unknown, since that is told already."""
        model = catalog.find_model(self.text("model"))
        if model is None and self.text("model"):
            with suppress(InvalidInput):
                model = catalog.model(self.text("model"))
        book = catalog.books.get(self.text("prices"))
        model = model or next(iter(catalog.models.values()))
        found = (
            self.read(node.where, _design, str(node.plain), catalog, model, book) for node in self.items("designs")
        )
        return [design for design in found if design is not None]


def _design(text: str, catalog: Catalog, model: Model, book: PriceBook | None) -> str:
    """The line of a design: as it is, once it is known to be sound, or that of a plan's folder."""
    folder = Path(text).expanduser()
    if (folder / "plan.json").is_file():
        plan = Plan.load(folder)
        planned = catalog.books.get(plan.question.prices)
        return format_design(fleet_of_option(plan.best, catalog, model, planned).design, catalog)
    design = parse_design(text, catalog, model, "design")
    soundness(design, "design")
    if book is not None:
        priced(design, book, "prices")
    return text
