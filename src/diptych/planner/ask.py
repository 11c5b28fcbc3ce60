"""What is asked: the inputs of a plan, checked together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Model
from diptych.catalog.offer import Offer, PriceBook
from diptych.design.boundary import Codec, Overlap, Ownership, Placement, Side
from diptych.design.ruling import Quality
from diptych.errors import InvalidInput
from diptych.metrics.slo import SLO
from diptych.perf.model import PerfModel
from diptych.planner.asking import Asking
from diptych.planner.offers import offers_of
from diptych.planner.pin_conflicts import contradictions, senseless, unplanned, unpriced
from diptych.planner.pins import Pins, RolePins
from diptych.planner.plan import Goal
from diptych.planner.rushes import Sizing
from diptych.planner.stock import Stock
from diptych.workload.compress import compress
from diptych.workload.lengths import Lengths
from diptych.workload.workload import Workload

POINTS = 48
"""Length points that stand for a trace: its means exactly, its tails nearly."""

MOST_OWNED = 100_000


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
    asking.findings.extend(contradictions(pins, prefill, decode, placement, ownership, overlap, inventory))
    asking.findings.extend(unplanned(pins, placement, budget, inventory))
    asking.findings.extend(senseless(pins, placement, codec, converts_at, workload))
    asking.findings.extend(unpriced(book, offers, prefill, decode, inventory, pins))
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
