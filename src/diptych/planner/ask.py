"""What is asked: the inputs of a plan, checked together so that one round of corrections is enough."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Model
from diptych.catalog.offer import Offer, PriceBook
from diptych.design.axes import Parallelism, Precision
from diptych.design.boundary import Overlap, Ownership, Placement
from diptych.design.constraints import Quality
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.metrics.slo import SLO
from diptych.perf.model import PerfModel
from diptych.planner.plan import Goal
from diptych.workload.compress import compress
from diptych.workload.lengths import Lengths
from diptych.workload.workload import Workload

POINTS = 48
"""Length points that stand for a trace: its means exactly, its tails nearly."""
MOST_TOKENS = 1e8
OWNED = "owned"


@dataclass(frozen=True, slots=True)
class Pins:
    """Choices the user has made. None leaves an axis free; texts are what a flag takes.

    `prefill` and `decode` name accelerators, several separated by commas. Precisions are a format ('fp8' for weights and
    activations) or 'w=fp8 a=fp8 kv=bf16'; parallelisms are 'tp4' or 'tp4·pp2' ('tp4,pp2', 'tp4 pp2').
    """

    prefill: str | None = None
    decode: str | None = None
    interconnect: str | None = None
    placement: str | None = None
    prefill_precision: str | None = None
    decode_precision: str | None = None
    prefill_parallelism: str | None = None
    decode_parallelism: str | None = None
    wire: str | None = None
    ownership: str | None = None
    overlap: str | None = None
    engine: str | None = None
    provider: str | None = None
    region: str | None = None

    def given(self) -> dict[str, str]:
        """The pins that are set, by name."""
        return {field.name: str(value) for field in fields(self) if (value := getattr(self, field.name)) is not None}


@dataclass(frozen=True, slots=True)
class RolePins:
    """One role's pins, resolved; empty tuples leave the axis free."""

    accelerators: tuple[Accelerator, ...] = ()
    precision: Mapping[str, Dtype] | None = None
    parallelism: Parallelism | None = None

    def allows_precision(self, precision: Precision) -> bool:
        return all(getattr(precision, name) is dtype for name, dtype in (self.precision or {}).items())


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """A checked question. `lengths` is the workload compressed; `offers` what may be rented, or what is owned."""

    model: Model
    workload: Workload
    lengths: Lengths
    slo: SLO
    goal: Goal
    rate: float | None
    budget: float | None
    inventory: Mapping[str, int] | None
    catalog: Catalog
    book: PriceBook | None
    offers: tuple[Offer, ...]
    pins: Pins
    prefill: RolePins
    decode: RolePins
    placement: Placement | None
    ownership: Ownership | None
    overlap: Overlap | None
    wire: Dtype | None
    quality: Quality
    perf: PerfModel

    @property
    def cv2(self) -> float:
        """Squared variation of the arrival gaps; batch work waits for nobody."""
        return max(self.workload.arrivals.cv, 0.0) ** 2

    @property
    def pinned_apart(self) -> bool:
        """Whether the user named an accelerator per role: then colocation is a baseline, not an answer."""
        return bool(self.pins.prefill and self.pins.decode)


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
        parts = dict(part.split("=", 1) for part in re.split(r"[\s,]+", text.strip()) if "=" in part)
        if not parts:
            dtype = self.member(where, text, Dtype)
            return {"weights": dtype, "activations": dtype} if dtype else None
        names = {"w": "weights", "a": "activations", "kv": "kv", "weights": "weights", "activations": "activations"}
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
        if min(sizes.values()) < 1:
            self.say(where, f"a size of 0 in {text!r}", "sizes from 1")
            return None
        return Parallelism(**sizes)

    def role(self, role: str, pins: Pins) -> RolePins:
        return RolePins(
            self.accelerators(f"--{role}", getattr(pins, role)),
            self.precision(f"--{role}-precision", getattr(pins, f"{role}_precision")),
            self.parallelism(f"--{role}-parallelism", getattr(pins, f"{role}_parallelism")),
        )

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

    def context(self, model: Model, lengths: Lengths) -> None:
        longest = lengths.max_context
        if longest > model.max_context:
            self.say(
                "--workload",
                f"the longest request has {longest:.0f} tokens, {model.name} takes {model.max_context}",
                "requests within the model's context",
            )


def offers_of(
    asking: Asking, book: PriceBook | None, inventory: Mapping[str, int] | None, pins: Pins
) -> tuple[Offer, ...]:
    """What may be rented from `book` under the pins, or one offer per owned accelerator priced by the book if it can."""
    if inventory is None:
        return useful_sites(
            offer
            for offer in book or ()
            if offer.accelerator in asking.catalog.accelerators
            and (pins.provider is None or pins.provider.casefold() == offer.provider.casefold())
            and (pins.region is None or pins.region.casefold() == offer.region.casefold())
        )
    owned = []
    for name in inventory:
        accelerator = asking.attempt("--inventory", asking.catalog.accelerator, name)
        if accelerator is not None:
            size = max(min(8, accelerator.scaleup.world, inventory[name]), 1)
            priced = book.offers_of(accelerator.name) if book else ()
            hourly = priced[0].usd_per_gpu_hour if priced else 0.0
            owned.append(
                Offer(accelerator.name, OWNED, OWNED, size, hourly * size, nic_bandwidth=accelerator.nic_bandwidth)
            )
    return tuple(owned)


def useful_sites(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The offers of every place (provider and region) that no other place of the provider beats.

    Dominance: where for each offer of one place another place has one of the same accelerator and size that is no dearer and has
    no slower a network, every fleet of the first can be rented in the second, pool by pool, for no more.
    """
    sites: dict[tuple[str, str], dict[tuple[str, int], list[Offer]]] = {}
    for offer in offers:
        site = sites.setdefault((offer.provider, offer.region), {})
        site.setdefault((offer.accelerator, offer.gpus), []).append(offer)
    kept: list[tuple[str, str]] = []
    for name in sorted(sites, key=lambda key: (-len(sites[key]), key)):
        rivals = [other for other in kept if other[0] == name[0]]
        if not any(_covers(sites[other], sites[name]) for other in rivals):
            kept = [o for o in kept if o[0] != name[0] or not _covers(sites[name], sites[o])] + [name]
    return tuple(offer for name in kept for group in sites[name].values() for offer in group)


def _covers(one: dict[tuple[str, int], list[Offer]], other: dict[tuple[str, int], list[Offer]]) -> bool:
    """Whether `one` has, for every offer of `other`, one no worse."""
    return all(
        any(
            mine.usd_per_hour <= theirs.usd_per_hour and mine.nic_bandwidth >= theirs.nic_bandwidth
            for mine in one.get(key, ())
        )
        for key, group in other.items()
        for theirs in group
    )


def ask(
    model: Model | str,
    workload: Workload,
    slo: SLO | str,
    *,
    catalog: Catalog,
    perf: PerfModel,
    prices: PriceBook | str | None = None,
    rate: float | None = None,
    budget: float | None = None,
    inventory: Mapping[str, int] | None = None,
    pins: Pins | None = None,
    quality: str = Quality.EIGHT_BIT,
    points: int = POINTS,
) -> Ask:
    """Resolve and check every input.

    Raises:
        InvalidInput: all findings at once, each with its flag, what was expected, and the nearest name.
    """
    asking, pins = Asking(catalog), pins or Pins()
    found_model = asking.attempt("--model", catalog.model, model) if isinstance(model, str) else model
    found_slo = asking.attempt("--slo", SLO.parse, slo) if isinstance(slo, str) else slo
    book = asking.attempt("--prices", catalog.book, prices) if isinstance(prices, str) else prices
    asking.workload(workload)
    _check_goal(asking, rate, budget, inventory, book)
    prefill, decode = asking.role("prefill", pins), asking.role("decode", pins)
    if pins.interconnect is not None:
        asking.attempt("--interconnect", catalog.link, pins.interconnect)
    placement = asking.member("--placement", pins.placement, Placement)
    ownership = asking.member("--ownership", pins.ownership, Ownership)
    overlap = asking.member("--overlap", pins.overlap, Overlap)
    wire = asking.member("--wire", pins.wire, Dtype)
    floor = asking.member("--quality", str(quality), Quality) or Quality.EIGHT_BIT
    offers = offers_of(asking, book, inventory, pins)
    asking.findings.extend(_contradictions(pins, prefill, decode, placement, ownership, overlap, inventory))
    asking.findings.extend(_unpriced(book, offers, prefill, decode, inventory, pins))
    if found_model is not None and not asking.findings:
        asking.context(found_model, workload.lengths)
    if asking.findings:
        raise InvalidInput(asking.findings)
    goal = Goal.INVENTORY if inventory is not None else Goal.BUDGET if budget is not None else Goal.RATE
    demand = rate if rate is not None else workload.arrivals.rate if goal is Goal.RATE else None
    return Ask(
        found_model, workload, compress(workload.lengths, points), found_slo, goal, demand, budget, inventory, catalog, book,
        offers, pins, prefill, decode, placement, ownership, overlap, wire, floor, perf,
    )  # fmt: skip


def _check_goal(
    asking: Asking,
    rate: float | None,
    budget: float | None,
    inventory: Mapping[str, int] | None,
    book: PriceBook | None,
) -> None:
    asking.positive("--rate", rate, "rate")
    asking.positive("--budget", budget, "budget")
    if sum(value is not None for value in (budget, inventory)) + (rate is not None) > 1:
        asking.say("--rate", "more than one of rate, budget and inventory is given", "exactly one of the three")
    if inventory is None and book is None:
        asking.say("--prices", "there is no price book", f"one of {', '.join(asking.catalog.books)}")
    for name, count in (inventory or {}).items():
        if not isinstance(count, int) or count < 1:
            asking.say("--inventory", f"{count} of {name}", "whole counts from 1")
    if inventory is not None and not inventory:
        asking.say("--inventory", "nothing is owned", 'a text such as "A100-80:8, L40S:16"')


def _contradictions(
    pins: Pins,
    prefill: RolePins,
    decode: RolePins,
    placement: Placement | None,
    ownership: Ownership | None,
    overlap: Overlap | None,
    inventory: Mapping[str, int] | None,
) -> Iterator[Finding]:
    """Pins that no design can keep together."""
    names = [{accelerator.name for accelerator in role.accelerators} for role in (prefill, decode)]
    apart = bool(names[0] and names[1]) and not names[0] & names[1]
    if placement in (Placement.COLOCATED, Placement.SAME_NODE) and apart:
        yield Finding(
            "--placement", f"{placement} with different accelerators per role", "one accelerator for both roles"
        )
    if placement is Placement.COLOCATED and (pins.interconnect or ownership or overlap or pins.wire):
        yield Finding("--placement", "colocated has no handoff to pin", "a disaggregated placement, or no boundary pin")
    if ownership is Ownership.PULL and overlap is Overlap.LAYERWISE:
        yield Finding("--overlap", "a pull starts after prefill, so it cannot overlap layer by layer", "push")
    for role, where in ((prefill, "--prefill"), (decode, "--decode")):
        for accelerator in role.accelerators:
            if inventory is not None and accelerator.name not in inventory and not _owned(accelerator, inventory):
                yield Finding(where, f"{accelerator.name} is not in the inventory", ", ".join(inventory))


def _owned(accelerator: Accelerator, inventory: Mapping[str, int]) -> bool:
    known = {accelerator.name.casefold(), *(alias.casefold() for alias in accelerator.aliases)}
    return any(name.casefold() in known for name in inventory)


def _unpriced(
    book: PriceBook | None,
    offers: tuple[Offer, ...],
    prefill: RolePins,
    decode: RolePins,
    inventory: Mapping[str, int] | None,
    pins: Pins,
) -> Iterator[Finding]:
    if book is None or inventory is not None:
        return
    priced = sorted({offer.accelerator for offer in offers})
    if not priced:
        yield Finding("--prices", f"{book.name} offers nothing under these pins", "another provider, region or book")
    for role, where in ((prefill, "--prefill"), (decode, "--decode")):
        for accelerator in role.accelerators:
            if priced and accelerator.name not in priced:
                expected = f"one of {', '.join(priced)}" if len(priced) <= 16 else "an accelerator with an offer"
                yield Finding(where, f"the book {book.name} has no offer of {accelerator.name}", expected)
