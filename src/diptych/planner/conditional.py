"""Conditional placement: short prompts are prefilled where they decode, long ones are handed over.

Tried on the pairs that the search kept, at a few thresholds: the decode workers then also prefill the short prompts in chunks,
the prefill pool sees the long ones only. A handed-over prompt arrives with its KV, so for the decode workers it is a prompt of
which one token is new.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.catalog.interconnect import Link
from diptych.design.axes import Role
from diptych.design.boundary import Placement
from diptych.perf.pools import ColocatedState
from diptych.planner.ask import Ask
from diptych.planner.assemble import busiest, make_option
from diptych.planner.delay import Delay, no_wait
from diptych.planner.enumerate import Candidate
from diptych.planner.found import Found
from diptych.planner.goodput import Fleet, most
from diptych.planner.handed import boundary_plan
from diptych.planner.meeting import FULL, Meeting, Sized
from diptych.planner.plan import Latency, MemberPlan, Option, PoolPlan, Trust
from diptych.planner.rented import Held, member_plan, pool_plan, power, short
from diptych.planner.rushes import PROMPTS
from diptych.planner.size import MOST_WORKERS, fewest, fluid
from diptych.planner.stages import (
    ColocatedStage,
    DecodeStage,
    Load,
    Margins,
    PrefillStage,
    answer_seconds,
    kept,
    statistic,
)
from diptych.planner.trust import decode_trust, prefill_trust, tpot_floor, ttft_floor, worse
from diptych.planner.ways import PERCENTILES, Way, seen
from diptych.workload.lengths import Lengths

QUANTILES = (0.25, 0.5, 0.75, 0.9)
"""Prompt lengths tried as thresholds, as shares of the requests below them."""


@dataclass(frozen=True, eq=False)
class Conditional:
    """A pair with a threshold: `meeting` carries the long prompts (a `share` of all), `local` decodes all and prefills the rest.

    `near` marks the length points that stay local.
    """

    meeting: Meeting
    local: ColocatedStage
    share: float
    near: NDArray[np.bool_]

    def delays(self, rate: float, prefill_workers: Any, decode_workers: Any) -> tuple[Delay, Delay]:
        """TTFT of the long and of the short prompts, over all steps of the rate."""
        rates = self.local.rates(rate, prefill_workers, decode_workers)
        far = self.meeting.delay(rate * self.share, prefill_workers, decode_workers)
        return far, self._near(self.local.state(rates, decode_workers))

    def _near(self, state: ColocatedState) -> Delay:
        latency, load = state.ttft, self.local.load
        weight = load.lengths.weight[self.near]
        sure = latency.sure[..., self.near]
        return Delay(sure, weight / weight.sum(), latency.wait, no_wait(), load.steps)

    def margins(self, rate: float, prefill_workers: Any, decode_workers: Any) -> Margins:
        """How far inside every promise and capacity this fleet is."""
        load, meeting = self.local.load, self.meeting
        rates = self.local.rates(rate, prefill_workers, decode_workers)
        sent = load.steps.at(PROMPTS, rate * self.share, prefill_workers, decode_workers)
        state = self.local.state(rates, decode_workers)
        far, near = meeting.delay(rate * self.share, prefill_workers, decode_workers), self._near(state)
        link = meeting.link(sent, prefill_workers, decode_workers)
        waiting = np.where(np.isfinite(link.wait.mean), link.wait.mean, 1e9)
        held = state.kv_bytes_p99 + meeting.reserved(sent, decode_workers, waiting)
        room = (self.local.kv_capacity - held) / max(self.local.kv_capacity, 1.0)
        room = np.where(state.feasible, room, -1.0)
        before = meeting.prefill_room(sent, prefill_workers, waiting)
        margins: Margins = {
            "link": FULL - link.utilisation[0],
            "prefill compute": FULL - meeting.prefill_utilisation(sent, prefill_workers)[0],
            "prefill memory": before[0],
            "decode memory": room[0],
        }
        fits = (room >= 0) & (before >= 0)
        for goal in load.slo.of("ttft"):
            parts = (far.keeps(goal.quantile, goal.limit, fits), near.keeps(goal.quantile, goal.limit, fits))
            margins[f"ttft_{statistic(goal.quantile)}"] = self.share * parts[0] + (1 - self.share) * parts[1]
        for goal in load.slo.of("tpot"):
            margins[f"tpot_{statistic(goal.quantile)}"] = self.local.tpot_margin(
                state, rates, decode_workers, goal, fits
            )
        return {name: np.where(np.isnan(margin), -1.0, margin) for name, margin in margins.items()}


def conditional(ask: Ask, load: Load, sized: Sized, rate: float, below: float) -> tuple[Conditional, Sized] | None:
    """The cheapest threshold and counts for a pair that the search sized, if it costs less than `below` USD/h."""
    best: tuple[Conditional, Sized] | None = None
    for split in _splits(ask, load, sized.meeting):
        found = _size(split, rate, best[1].usd_per_hour if best else below)
        best = (split, found) if found is not None else best
    return best


def conditional_options(ask: Ask, load: Load, found: Found, rate: float, count: int = 3) -> list[Option]:
    """Options for the cheapest pairs of a search: those cheaper than the pair without a threshold, or any when one is pinned."""
    pairs = sorted((s for s in found.apart.values() if not s.nodes), key=lambda s: s.usd_per_hour)[:count]
    pinned = ask.placement is Placement.CONDITIONAL
    options = []
    for sized in pairs if not load.slo.of("e2e") else ():
        better = conditional(ask, load, sized, rate, math.inf if pinned else sized.usd_per_hour * (1 - 1e-9))
        if better is not None:
            options.append(_option(ask, *better, rate))
    return options


def _splits(ask: Ask, load: Load, meeting: Meeting) -> Iterator[Conditional]:
    lengths = load.lengths
    tried = (ask.pins.local_below,) if ask.pins.local_below else _thresholds(lengths)
    for threshold in tried:
        near = lengths.isl < threshold
        if not near.any() or near.all():
            continue
        share = float(lengths.weight[~near].sum())
        far = ~near
        part = Lengths(lengths.isl[far], lengths.osl[far], lengths.cached[far], lengths.weight[far] / share)
        arrived = np.where(near, lengths.cached, np.maximum(lengths.isl - 1.0, 0.0))
        whole = Lengths(lengths.isl, lengths.osl, arrived, lengths.weight)
        long = replace(load, lengths=part)
        worker = meeting.decode.worker
        boundary = replace(meeting.boundary, placement=Placement.CONDITIONAL, local_below=threshold)
        yield Conditional(
            replace(
                meeting, first=PrefillStage(ask.perf, meeting.prefill.worker, long), boundary=boundary,
                second=DecodeStage(ask.perf, worker, long),
            ),
            ColocatedStage(ask.perf, worker, replace(load, lengths=whole)), share, near,
        )  # fmt: skip


def _thresholds(lengths: Lengths) -> tuple[int, ...]:
    """Prompt lengths at `QUANTILES`, each once."""
    return tuple(dict.fromkeys(math.ceil(lengths.quantile(lengths.isl, q)) for q in QUANTILES))


def _size(split: Conditional, rate: float, below: float) -> Sized | None:
    """The cheapest counts, walked like `meeting.cheapest`."""
    meeting, best = split.meeting, None
    n_d = fluid(rate, split.local.capacity)
    least = fluid(rate * split.share, meeting.first.capacity)
    while meeting.usd_per_hour(least, n_d) < below and n_d < MOST_WORKERS:
        if bool(np.all(kept(split.margins(rate, 4.0 * least + 64, float(n_d))))):
            n_p = fewest(lambda n, n_d=n_d: kept(split.margins(rate, n, float(n_d))), least, 4 * least + 64)  # type: ignore[misc]
            if n_p is not None and (cost := meeting.usd_per_hour(n_p, n_d)) < below:
                best, below = Sized(meeting, n_p, n_d, cost), cost
                if n_p == least:
                    break
        n_d += 1
    return best


def _option(ask: Ask, split: Conditional, sized: Sized, rate: float) -> Option:
    meeting, n_p, n_d = split.meeting, float(sized.prefill_workers), float(sized.decode_workers)
    far, near = split.delays(rate, n_p, n_d)
    state = split.local.state(split.local.rates(rate), n_d)
    trust = worse(prefill_trust(ask, meeting.prefill.worker), decode_trust(ask, meeting.decode.worker))
    floor = min(ttft_floor(ask, meeting.prefill.worker), ttft_floor(ask, meeting.decode.worker))
    lowest = tpot_floor(ask, meeting.decode.worker, ask.lengths.mean_isl)
    answer = answer_seconds(split.local.load, state.tpot_mean)
    ways = (
        Way.handed(split.share, far, meeting, state.step, answer_seconds(meeting.first.load, state.tpot_mean)),
        Way(1 - split.share, near, answer[..., split.near]),
    )
    mean, p50, p90, p99 = (split.local.tpot(rate, n_d, q) for q in (None, *PERCENTILES))
    sides = short(meeting.prefill, sized.prefill_workers), short(meeting.decode, sized.decode_workers)

    def keeps(route: Link) -> bool:
        return bool(np.all(kept(replace(split, meeting=replace(meeting, route=route)).margins(rate, n_p, n_d))))

    return make_option(
        ask, Fleet(sized.usd_per_hour, lambda r: split.margins(r, n_p, n_d)), rate,
        tuple(_pools(ask, split, sized, rate, trust)),
        label=f"{' → '.join(sides)}, local below {meeting.boundary.local_below}",
        placement=Placement.CONDITIONAL,
        seen=seen(ways, floor, lowest, trust, trust),
        tpot=Latency(mean, p50, p90, p99, lowest, trust),
        boundary=boundary_plan(meeting, meeting.link(rate * split.share, n_p, n_d), keeps),
    )  # fmt: skip


def _pools(ask: Ask, split: Conditional, sized: Sized, rate: float, trust: Trust) -> Iterator[PoolPlan]:
    meeting, sent = split.meeting, rate * split.share
    n_p, n_d = float(sized.prefill_workers), float(sized.decode_workers)
    first, local = meeting.first, split.local
    peak = (1 - float(meeting.prefill_room(sent, n_p, 0.0))) * first.kv_capacity
    busy = float(meeting.prefill_utilisation(sent, n_p))
    yield pool_plan(
        Role.PREFILL, meeting.prefill.worker, [_member(meeting.prefill, sized.prefill_workers, 0.0)],
        Held(busy, first.pool.mean_service, first.kv_capacity, peak, peak), rate=sent, capacity=sent / busy,
        watts=power(meeting.prefill.worker, sized.prefill_workers), usd=meeting.prefill.usd_per_hour(sized.prefill_workers),
        trust=trust,
    )  # fmt: skip
    state = local.state(rate, n_d)
    whole = most(lambda r: bool(np.all(kept(split.margins(r, math.inf, n_d)))), rate)
    held = Held(
        float(state.batch), float(state.step), local.kv_capacity, float(state.kv_bytes), float(state.kv_bytes_p99)
    )
    seats = local.seats(rate * busiest(ask), n_d)
    yield pool_plan(
        Role.DECODE, meeting.decode.worker, [_member(meeting.decode, sized.decode_workers, seats)], held, rate=rate,
        capacity=max(whole, rate), watts=power(meeting.decode.worker, sized.decode_workers),
        usd=meeting.decode.usd_per_hour(sized.decode_workers), trust=trust,
    )  # fmt: skip


def _member(candidate: Candidate, workers: int, seats: float) -> MemberPlan:
    return member_plan(candidate, workers, candidate.instances(workers), candidate.usd_per_hour(workers), seats)
