"""What may be chosen for one role: every worker that keeps the rules, every offer that can hold it, and the count of the rest.

The product of a role's axes is never built. A rule of a group looks only at the axes the group names, so what it drops is
counted by multiplying the sizes of the axes it does not look at; the counts are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.catalog.offer import Offer
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.capability import engines, named_engine
from diptych.design.constraints import (
    ENGINE_WORKER_RULES,
    FIT_RULES,
    OFFER_RULES,
    PRECISION_RULES,
    RESIDENCY_RULES,
    SHAPE_RULES,
    first_broken,
    sentence,
)
from diptych.design.ruling import Setting, Violation, WorkerRule
from diptych.design.worker_rules import live_kv_is_in_hbm, pinned_engine_executes_precision
from diptych.perf.memory import kv_capacity, memory_plan
from diptych.planner.ask import Ask
from diptych.planner.pins import RolePins

WEIGHTS = (Dtype.BF16, Dtype.FP16, Dtype.FP8, Dtype.INT8, Dtype.FP4, Dtype.INT4)
ACTIVATIONS = (Dtype.BF16, Dtype.FP16, Dtype.FP8, Dtype.INT8, Dtype.FP4)
CACHES = (Dtype.BF16, Dtype.FP16, Dtype.FP8, Dtype.FP8_FNUZ, Dtype.INT8)
TENSOR = (1, 2, 4, 8, 16, 32)
PIPELINE = (1, 2, 4)
DATA = (1, 2, 4, 8, 16, 32)
BATCH_LIMITS = (0, 8, 16, 32, 64, 128, 256, 512)
RESIDENCIES = tuple(TierKind)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker and the offer it is rented from."""

    worker: Worker
    offer: Offer

    @property
    def site(self) -> tuple[str, str]:
        """Where its network is: provider and region."""
        return (self.offer.provider, self.offer.region)

    def instances(self, workers: int) -> int:
        """Instances that hold `workers` of these, rented whole; a worker larger than an instance takes several."""
        size, gpus = self.worker.accelerators, self.offer.gpus
        if size > gpus:
            return workers * -(-size // gpus)
        return -(-workers // (gpus // size))

    def usd_per_hour(self, workers: int) -> float:
        """The bill of `workers` of these on instances of their own."""
        return self.instances(workers) * self.offer.usd_per_hour

    def share_per_hour(self, workers: int) -> float:
        """Their share of the bill of full instances: no packing costs less."""
        return workers * self.worker.accelerators * self.offer.usd_per_gpu_hour

    @property
    def nic(self) -> float:
        """Bytes/s of one accelerator's share of the NIC; 0 when nobody says."""
        return self.offer.nic_bandwidth or self.worker.accelerator.nic_bandwidth


def shared_instances(one: Candidate, workers: int, other: Candidate, others: int) -> int | None:
    """Instances that hold both pools side by side; None when they cannot share.

    Workers of one offer whose sizes are powers of two that divide the instance pack without a gap, largest first.
    """
    gpus = one.offer.gpus
    if one.offer != other.offer or any(gpus % side.worker.accelerators for side in (one, other)):
        return None
    if max(one.worker.accelerators, other.worker.accelerators) % min(
        one.worker.accelerators, other.worker.accelerators
    ):
        return None
    return -(-(workers * one.worker.accelerators + others * other.worker.accelerators) // gpus)


@dataclass
class Dropped:
    """Designs of a role by the first rule they break, with one example of each."""

    counts: Counter[str] = field(default_factory=Counter)
    sentences: dict[str, str] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    nearest: tuple[float, Worker] | None = None

    def miss(self, short: float, worker: Worker) -> None:
        """Remember the worker that lacks the least memory."""
        if self.nearest is None or short < self.nearest[0]:
            self.nearest = (short, worker)

    def add(self, violation: Violation, count: int) -> None:
        if count:
            self.counts[violation.rule] += count
            self.sentences.setdefault(violation.rule, violation.sentence)
            self.examples.setdefault(violation.rule, violation.detail)

    def merge(self, other: Dropped, times: int) -> None:
        for rule, count in other.counts.items():
            self.add(Violation(rule, other.sentences[rule], other.examples[rule]), count * times)
        if other.nearest is not None:
            self.miss(*other.nearest)


@dataclass(frozen=True)
class RoleSpace:
    """The choices of one role. `raw` counts the product of its axes; `each` the designs one candidate stands for
    (its batch limits and `tiers` residencies, which are not built), `nearest` the worker that fell least short of memory."""

    role: Role
    candidates: tuple[Candidate, ...]
    raw: int
    each: int
    dropped: Dropped
    nearest: Worker | None = None
    tiers: int = 1

    @property
    def valid(self) -> int:
        return len(self.candidates) * self.each

    @cached_property
    def workers(self) -> tuple[Worker, ...]:
        """The distinct workers, in order."""
        return tuple(dict.fromkeys(candidate.worker for candidate in self.candidates))


def setting_of(ask: Ask) -> Setting:
    """What the rules judge designs against."""
    return Setting(
        max_context=ask.lengths.max_context,
        memory=memory_of,
        quality=ask.quality,
        stock_only=ask.prefill.engine is not None and ask.prefill.engine == ask.decode.engine,
        link_is_given=ask.pins.interconnect is not None,
        tiers={tier.kind: tier for tier in ask.catalog.tiers.values()},
        engine=ask.stock,
    )


def memory_of(worker: Worker) -> tuple[float, float]:
    """(weights, left for KV) of a whole worker in bytes; the second is negative by what is short."""
    plan = memory_plan(worker)
    left = kv_capacity(worker) if plan.fits else plan.kv * worker.accelerators
    return plan.weights * worker.accelerators, left


def role_spaces(ask: Ask, setting: Setting) -> dict[Role, RoleSpace]:
    """The choices of every role; roles whose axes are pinned alike share their workers."""
    known: dict[tuple[object, ...], tuple[list[Worker], Dropped]] = {}
    return {role: _role_space(ask, role, setting, known) for role in Role}


def _role_space(
    ask: Ask, role: Role, setting: Setting, known: dict[tuple[object, ...], tuple[list[Worker], Dropped]]
) -> RoleSpace:
    """Every candidate of `role`, and exactly how many designs each rule dropped."""
    pins = pins_of(ask, role)
    dropped, candidates, raw = Dropped(), list[Candidate](), 0
    precisions, shapes = tuple(_precisions(pins)), tuple(_shapes(pins))
    each = 1 if pins.max_batch else len(BATCH_LIMITS)
    tiers = 1 if pins.residency else len(RESIDENCIES)
    for accelerator in accelerators_of(ask, role):
        offers = useful_offers(ask, accelerator)
        per_cell = max(len(offers), 1) * each * tiers
        raw += len(precisions) * len(shapes) * per_cell
        if not offers:
            book = ask.book.name if ask.book else "the inventory"
            missing = Violation("is_offered", _UNPRICED, f"{accelerator.name} is not in {book}")
            dropped.add(missing, len(precisions) * len(shapes) * per_cell)
            continue
        key = (accelerator.name, str(pins.precision), replace(pins, accelerators=(), precision=None))
        if key not in known:
            mine = Dropped()
            known[key] = (list(_kept(ask, pins, accelerator, precisions, shapes, setting, mine)), mine)
        good, mine = known[key]
        dropped.merge(mine, per_cell)
        for worker in good:
            candidates.extend(
                Candidate(worker, offer) for offer in offers if _holds(worker, offer, dropped, each * tiers)
            )
    if role is not Role.PREFILL:
        kept = tuple(c for c in candidates if _passes(RESIDENCY_RULES, c.worker, setting, dropped, each))
        dropped.add(_LIVE, len(kept) * each * (tiers - 1))
        candidates, tiers = list(kept), 1
    if role is Role.COLOCATED and ask.prefill.residency not in (None, TierKind.HBM):
        dropped.add(_FETCHED, len(candidates) * each)
        candidates = []
    nearest = dropped.nearest[1] if dropped.nearest else None
    return RoleSpace(role, tuple(candidates), raw, each * tiers, dropped, nearest, tiers)


_UNPRICED = "An accelerator without an offer has no price"
_LIVE = Violation("live_kv_is_in_hbm", sentence(live_kv_is_in_hbm), "live KV in dram")
_FETCHED = Violation(
    "prefixes_are_fetched_by_prefill_pools",
    "Only a prefill pool is charged for fetching prefixes from a slower tier, so a pool that does both keeps them in HBM",
    "colocated",
)


def pins_of(ask: Ask, role: Role) -> RolePins:
    """The pins a role's workers keep. A colocated pool keeps both roles'; where they differ it is shaped as prefill is, and what
    it decodes with is decode's."""
    if role is not Role.COLOCATED:
        return ask.decode if role is Role.DECODE else ask.prefill
    batch = ask.decode.max_batch or ask.prefill.max_batch
    precision = {**(ask.decode.precision or {}), **(ask.prefill.precision or {})}
    return replace(
        ask.prefill, residency=ask.decode.residency, max_batch=batch, precision=precision or None,
        parallelism=ask.prefill.parallelism or ask.decode.parallelism, engine=ask.prefill.engine or ask.decode.engine,
    )  # fmt: skip


def accelerators_of(ask: Ask, role: Role) -> tuple[Accelerator, ...]:
    """The accelerators a role may use: pinned, or the whole catalog; a colocated pool may use what either role may."""
    if role is not Role.COLOCATED:
        return (ask.decode if role is Role.DECODE else ask.prefill).accelerators or tuple(
            ask.catalog.accelerators.values()
        )
    both = (*ask.prefill.accelerators, *ask.decode.accelerators)
    return tuple(dict.fromkeys(both)) or tuple(ask.catalog.accelerators.values())


def useful_offers(ask: Ask, accelerator: Accelerator) -> tuple[Offer, ...]:
    """The accelerator's offers without those that another of the same place beats in price, size and network at once.

    Dominance: a fleet on the dropped offer, moved to the one that beats it, rents no more instance-accelerators (its sizes
    divide at least as finely), pays no more for each, and has no slower a path, so it costs no more and keeps the SLO.
    """
    offers = [offer for offer in ask.offers if offer.accelerator == accelerator.name]
    kept: list[Offer] = []
    for offer in sorted(offers, key=lambda o: (o.usd_per_gpu_hour, o.gpus, -o.nic_bandwidth, o.instance, o.region)):
        if not any(_beats(other, offer) for other in kept):
            kept.append(offer)
    return tuple(kept)


def _beats(one: Offer, other: Offer) -> bool:
    """Same place, same size, no dearer, no slower network."""
    place = (one.provider, one.region, one.gpus) == (other.provider, other.region, other.gpus)
    return place and one.usd_per_hour <= other.usd_per_hour and one.nic_bandwidth >= other.nic_bandwidth


def _precisions(pins: RolePins) -> Iterator[Precision]:
    for weights, activations, kv in product(WEIGHTS, ACTIVATIONS, CACHES):
        precision = Precision(weights, activations, kv)
        if pins.allows_precision(precision):
            yield precision


def _shapes(pins: RolePins) -> Iterator[Parallelism]:
    if pins.parallelism is not None:
        yield pins.parallelism
        return
    for tp, pp, dp in product(TENSOR, PIPELINE, DATA):
        for ep in dict.fromkeys((1, tp * dp)):
            yield Parallelism(tp, pp, ep, dp)


def _kept(
    ask: Ask,
    pins: RolePins,
    accelerator: Accelerator,
    precisions: tuple[Precision, ...],
    shapes: tuple[Parallelism, ...],
    setting: Setting,
    dropped: Dropped,
) -> Iterator[Worker]:
    """Workers that keep the precision, shape and fit rules, each group applied before the next product is formed."""
    plain, sixteen = Parallelism(), Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16)
    tier = pins.residency or TierKind.HBM
    rules = (*PRECISION_RULES, pinned_engine_executes_precision) if pins.engine else PRECISION_RULES
    rules += ENGINE_WORKER_RULES if setting.engine else ()
    engine = pins.engine or "vllm"
    good_precisions = [
        precision
        for precision in precisions
        if _passes(
            rules,
            Worker(ask.model, accelerator, precision, plain, engine, residency=tier),
            setting,
            dropped,
            len(shapes),
        )
    ]
    good_shapes = [
        shape
        for shape in shapes
        if _passes(
            SHAPE_RULES,
            Worker(ask.model, accelerator, sixteen, shape),
            setting,
            dropped,
            len(good_precisions),
        )
    ]
    for precision, shape in product(good_precisions, good_shapes):
        worker = Worker(
            ask.model, accelerator, precision, shape, engine_for(pins, accelerator, precision), pins.max_batch,
            pins.max_batched_tokens, tier,
        )  # fmt: skip
        if _passes(FIT_RULES, worker, setting, dropped, 1):
            yield worker
            continue
        _, left = setting.memory(worker)
        need = float(worker.model.kv_bytes(setting.max_context, worker.precision.kv)) * shape.dp
        if need > left:  # not one that is merely larger than needed
            dropped.miss(need - left, worker)


def engine_for(pins: RolePins, accelerator: Accelerator, precision: Precision) -> str:
    """The engine that runs a worker: the pinned one, else the first that executes the precision."""
    able = engines(accelerator, precision)
    return named_engine(pins.engine, able) or (able[0] if able else "vllm")


def _passes(rules: tuple[WorkerRule, ...], worker: Worker, setting: Setting, dropped: Dropped, count: int) -> bool:
    broken = first_broken(rules, worker, setting)
    if broken is not None:
        dropped.add(broken, count)
    return broken is None


def _holds(worker: Worker, offer: Offer, dropped: Dropped, count: int) -> bool:
    for rule in OFFER_RULES:
        detail = rule(worker, offer)
        if detail is not None:
            dropped.add(Violation(rule.__name__, sentence(rule), detail), count)
            return False
    return True
