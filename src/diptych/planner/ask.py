"""What is asked: the inputs of a plan, checked together so that one round of corrections is enough."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.catalog.model import Model
from diptych.catalog.offer import Offer, PriceBook
from diptych.design.axes import Parallelism, Precision
from diptych.design.boundary import Codec, Overlap, Ownership, Placement, Side
from diptych.design.capability import engine_names
from diptych.design.ruling import Quality
from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.metrics.slo import SLO
from diptych.perf.model import PerfModel
from diptych.planner.plan import Goal
from diptych.planner.rushes import Sizing
from diptych.planner.stock import Stock
from diptych.workload.compress import compress
from diptych.workload.lengths import Lengths
from diptych.workload.workload import Workload

POINTS = 48
"""Length points that stand for a trace: its means exactly, its tails nearly."""
MOST_TOKENS = 1e8
MOST_OWNED = 100_000
MOST_TOO_LONG = 0.1
"""Share of requests beyond the model's context that a plan may leave out; more of them are another workload."""
OWNED = "owned"


@dataclass(frozen=True, slots=True)
class Pins:
    """Choices the user has made. None leaves an axis free; texts are what a flag takes.

    `prefill` and `decode` name accelerators, several separated by commas. Precisions are a format ('fp8' for weights and
    activations) or 'w=fp8 a=fp8 kv=bf16'; parallelisms are 'tp4' or 'tp4·pp2' ('tp4,pp2', 'tp4 pp2'). Residency is where KV lives
    (hbm, dram, nvme, remote): of prefill, the prefixes it reuses; of decode, the KV it reads. Batches are sequences, batched
    tokens the prompt tokens of one step. `wire` is the format and `codec` the kind of KV on the wire, `converts_at` the side that
    converts; prompts shorter than `local_below` tokens stay on the decode side. `engine` is both roles', unless one has its own;
    with a release ('vllm@0.33') only what that stock engine can be told is planned.
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
    codec: str | None = None
    converts_at: str | None = None
    local_below: int | None = None
    prefill_engine: str | None = None
    decode_engine: str | None = None
    prefill_residency: str | None = None
    decode_residency: str | None = None
    prefill_max_batch: int | None = None
    decode_max_batch: int | None = None
    prefill_max_batched_tokens: int | None = None
    decode_max_batched_tokens: int | None = None

    def given(self) -> dict[str, str]:
        """The pins that are set, by name."""
        return {field.name: str(value) for field in fields(self) if (value := getattr(self, field.name)) is not None}


@dataclass(frozen=True, slots=True)
class RolePins:
    """One role's pins, resolved; empty tuples, None and 0 leave the axis free."""

    accelerators: tuple[Accelerator, ...] = ()
    precision: Mapping[str, Dtype] | None = None
    parallelism: Parallelism | None = None
    engine: str | None = None
    residency: TierKind | None = None
    max_batch: int = 0
    max_batched_tokens: int = 0

    def allows_precision(self, precision: Precision) -> bool:
        return all(getattr(precision, name) is dtype for name, dtype in (self.precision or {}).items())

    def differs(self, other: RolePins) -> bool:
        """Whether no one worker keeps the formats and sizes of both."""
        mine, theirs = self.precision or {}, other.precision or {}
        sizes = {self.parallelism, other.parallelism} - {None}
        return len(sizes) > 1 or any(mine[name] is not theirs[name] for name in mine.keys() & theirs.keys())


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
    codec: Codec | None = None
    converts_at: Side | None = None
    size_for: Sizing = Sizing.TRACE
    stock: Stock | None = None

    @property
    def pinned_apart(self) -> bool:
        """Whether the pins ask for two pools, an accelerator for each or what differs: then colocation is a baseline only."""
        if self.placement is Placement.COLOCATED:
            return False
        return bool(self.pins.prefill and self.pins.decode) or self.prefill.differs(self.decode)


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


def _stock(
    asking: Asking, pins: Pins, prefill: RolePins, decode: RolePins, placement: Placement | None
) -> Stock | None:
    """The stock engine that `--engine` names with a release."""
    if pins.engine is None or "@" not in pins.engine:
        return None
    stock: Stock | None = asking.attempt("--engine", Stock.parse, pins.engine)
    if stock is not None and {prefill.engine, decode.engine} != {str(stock.engine)}:
        asking.say("--engine", f"{pins.engine} for one role, another engine for the other", "one engine for both")
    if stock is not None and placement is Placement.CONDITIONAL:
        where = "--placement" if pins.placement else "--local-below"
        asking.say(where, f"no router of {stock.engine} alone decides by prompt length", "--engine without a release")
    return stock


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
    owned, spelled = [], dict[str, str]()
    for name in inventory:
        accelerator = asking.attempt("--inventory", asking.catalog.accelerator, name)
        if accelerator is not None and (other := spelled.setdefault(accelerator.name, name)) != name:
            asking.say(
                "--inventory", f"{other} and {name} are both {accelerator.name}", "one count for each accelerator"
            )
        elif accelerator is not None:
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
    size_for: str = Sizing.TRACE,
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
    _check_goal(asking, rate, budget, inventory, prices)
    prefill, decode = asking.role("prefill", pins), asking.role("decode", pins)
    if pins.interconnect is not None:
        asking.attempt("--interconnect", catalog.link, pins.interconnect)
    asking.count("--local-below", pins.local_below, "tokens")
    placement = asking.member("--placement", pins.placement, Placement)
    if pins.local_below is not None and pins.placement is None:
        placement = Placement.CONDITIONAL
    codec = asking.member("--codec", pins.codec, Codec)
    converts_at = asking.member("--converts-at", pins.converts_at, Side)
    ownership = asking.member("--ownership", pins.ownership, Ownership)
    overlap = asking.member("--overlap", pins.overlap, Overlap)
    wire = asking.member("--wire", pins.wire, Dtype)
    floor = asking.member("--quality", str(quality), Quality) or Quality.EIGHT_BIT
    sizing = asking.member("--size-for", str(size_for), Sizing) or Sizing.TRACE
    offers = offers_of(asking, book, inventory, pins)
    stock = _stock(asking, pins, prefill, decode, placement)
    asking.findings.extend(_contradictions(pins, prefill, decode, placement, ownership, overlap, inventory))
    asking.findings.extend(_unplanned(pins, placement, budget, inventory))
    asking.findings.extend(_senseless(pins, placement, codec, converts_at, workload))
    asking.findings.extend(_unpriced(book, offers, prefill, decode, inventory, pins))
    asking.findings[:] = dict.fromkeys(asking.findings)
    if found_model is not None and not asking.findings:
        workload = asking.context(found_model, workload)
    if asking.findings:
        raise InvalidInput(asking.findings)
    goal = Goal.INVENTORY if inventory is not None else Goal.BUDGET if budget is not None else Goal.RATE
    demand = rate if rate is not None else workload.arrivals.rate if goal is Goal.RATE else None
    return Ask(
        found_model, workload, compress(workload.lengths, points), found_slo, goal, demand, budget, inventory, catalog, book,
        offers, pins, prefill, decode, placement, ownership, overlap, wire, floor, perf,
        codec, converts_at, sizing, stock,
    )  # fmt: skip


def _check_goal(
    asking: Asking,
    rate: float | None,
    budget: float | None,
    inventory: Mapping[str, int] | None,
    prices: PriceBook | str | None,
) -> None:
    asking.positive("--rate", rate, "rate")
    asking.positive("--budget", budget, "budget")
    if sum(value is not None for value in (budget, inventory)) + (rate is not None) > 1:
        asking.say("--rate", "more than one of rate, budget and inventory is given", "exactly one of the three")
    if inventory is None and prices is None:
        asking.say("--prices", "there is no price book", f"one of {', '.join(asking.catalog.books)}")
    for name, count in (inventory or {}).items():
        if not isinstance(count, int) or not 1 <= count <= MOST_OWNED:
            asking.say("--inventory", f"{count} of {name}", f"whole counts from 1 to {MOST_OWNED:,}")
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
    handoff = (pins.interconnect, ownership, overlap, pins.wire, pins.codec, pins.converts_at)
    if placement is Placement.COLOCATED and any(handoff):
        yield Finding("--placement", "colocated has no handoff to pin", "a disaggregated placement, or no boundary pin")
    if ownership is Ownership.PULL and overlap is Overlap.LAYERWISE:
        yield Finding("--overlap", "a pull starts after prefill, so it cannot overlap layer by layer", "push")
    for role, where in ((prefill, "--prefill"), (decode, "--decode")):
        for accelerator in role.accelerators:
            if inventory is not None and accelerator.name not in inventory and not _owned(accelerator, inventory):
                yield Finding(where, f"{accelerator.name} is not in the inventory", ", ".join(inventory))


def _unplanned(
    pins: Pins, placement: Placement | None, budget: float | None, inventory: Mapping[str, int] | None
) -> Iterator[Finding]:
    """Placements that are planned for some goals only."""
    where = "--placement" if pins.placement else "--local-below"
    if placement is Placement.CONDITIONAL and (budget is not None or inventory is not None):
        yield Finding(where, "conditional placement is planned for a rate", "--rate, or another placement")
    if placement is Placement.SAME_NODE and inventory is not None:
        yield Finding(where, "what is owned is not known server by server", "disaggregated, colocated, or --prices")


def _senseless(
    pins: Pins, placement: Placement | None, codec: Codec | None, converts_at: Side | None, workload: Workload
) -> Iterator[Finding]:
    """Pins that say nothing where they stand."""
    if codec is Codec.RAW and converts_at is not None:
        yield Finding("--converts-at", "raw KV is converted nowhere", "another --codec, or none")
    if not isinstance(pins.local_below, int) or not len(workload.lengths.isl):
        return
    if placement is not Placement.CONDITIONAL:
        yield Finding("--local-below", f"{placement} placement has no threshold", "--placement conditional")
    shortest, longest = float(np.min(workload.lengths.isl)), float(np.max(workload.lengths.isl))
    if not shortest < pins.local_below <= longest:
        problem = f"{pins.local_below} tokens part no prompts of {workload.name}"
        apart = f"above {shortest:.0f}, up to {longest:.0f}" if shortest < longest else "prompts of several lengths"
        yield Finding("--local-below", problem, apart)


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
