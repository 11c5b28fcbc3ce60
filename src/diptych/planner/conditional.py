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

from diptych.design.axes import Role
from diptych.design.boundary import Placement
from diptych.perf.memory import memory_plan
from diptych.planner.ask import Ask
from diptych.planner.assemble import (
    PERCENTILES,
    Fleet,
    boundary_plan,
    decode_trust,
    longer,
    make_option,
    member_plan,
    most,
    power,
    prefill_trust,
    short,
    tpot_floor,
    ttft_floor,
    worse,
)
from diptych.planner.assemble_mixed import Blend
from diptych.planner.delay import Delay, no_wait
from diptych.planner.meeting import FULL, Meeting, Sized
from diptych.planner.plan import Latency, Option, PoolPlan
from diptych.planner.search import Found
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
        """TTFT of the long and of the short prompts."""
        far = self.meeting.delay(rate * self.share, prefill_workers, decode_workers)
        latency = self.local.pool.at(rate, decode_workers, self.local.load.cv2).ttft
        weight = self.local.load.lengths.weight[self.near]
        return far, Delay(latency.sure[..., self.near], weight / weight.sum(), latency.wait, no_wait())

    def margins(self, rate: float, prefill_workers: Any, decode_workers: Any) -> Margins:
        """How far inside every promise and capacity this fleet is."""
        load, sent = self.local.load, rate * self.share
        far, near = self.delays(rate, prefill_workers, decode_workers)
        state = self.local.pool.at(rate, decode_workers, load.cv2)
        margins: Margins = {}
        for goal in load.slo.of("ttft"):
            parts = (far.keeps(goal.quantile, goal.limit), near.keeps(goal.quantile, goal.limit))
            margins[f"ttft_{statistic(goal.quantile)}"] = self.share * parts[0] + (1 - self.share) * parts[1]
        for goal in load.slo.of("tpot"):
            slow = self.local.tpot(rate, decode_workers, goal.quantile)
            margins[f"tpot_{statistic(goal.quantile)}"] = (goal.limit - slow) / goal.limit
        link = self.meeting.link(sent, prefill_workers, decode_workers)
        waiting = np.where(np.isfinite(link.wait.mean), link.wait.mean, 1e9)
        margins["link"] = FULL - link.utilisation
        margins["prefill compute"] = FULL - self.meeting.prefill_utilisation(sent, prefill_workers)
        margins["prefill memory"] = self.meeting.prefill_room(sent, prefill_workers, waiting)
        room = self.local.kv_capacity - state.kv_bytes_p99 - self.meeting.reserved(sent, decode_workers, waiting)
        margins["decode memory"] = np.where(state.feasible, room / max(self.local.kv_capacity, 1.0), -1.0)
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
    for threshold in dict.fromkeys(math.ceil(lengths.quantile(lengths.isl, q)) for q in QUANTILES):
        near = lengths.isl < threshold
        if not near.any() or near.all():
            continue
        share = float(lengths.weight[~near].sum())
        far = ~near
        part = Lengths(lengths.isl[far], lengths.osl[far], lengths.cached[far], lengths.weight[far] / share)
        arrived = np.where(near, lengths.cached, np.maximum(lengths.isl - 1.0, 0.0))
        whole = Lengths(lengths.isl, lengths.osl, arrived, lengths.weight)
        long = Load(part, load.slo, load.cv2)
        worker = meeting.decode.worker
        boundary = replace(meeting.boundary, placement=Placement.CONDITIONAL, local_below=threshold)
        yield Conditional(
            replace(
                meeting, first=PrefillStage(ask.perf, meeting.prefill.worker, long), boundary=boundary,
                second=DecodeStage(ask.perf, worker, long),
            ),
            ColocatedStage(ask.perf, worker, Load(whole, load.slo, load.cv2)), share, near,
        )  # fmt: skip


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
    state = split.local.pool.at(rate, n_d, split.local.load.cv2)
    step, tpot_mean = float(state.step), float(state.tpot_mean)
    p50, p90, p99 = (float(split.local.tpot(rate, n_d, q)) for q in PERCENTILES)
    trust = worse(prefill_trust(ask, meeting.prefill.worker), decode_trust(ask, meeting.decode.worker))
    floor = min(ttft_floor(ask, meeting.prefill.worker), ttft_floor(ask, meeting.decode.worker))
    lowest = tpot_floor(ask, meeting.decode.worker, ask.lengths.mean_isl)
    shares = (split.share, 1 - split.share)
    answers = (
        answer_seconds(meeting.first.load, tpot_mean),
        answer_seconds(split.local.load, tpot_mean)[..., split.near],
    )
    after = Blend(tuple((w, longer(d, extra)) for w, d, extra in zip(shares, (far, near), (step, 0.0), strict=True)))
    e2e = Blend(tuple((w, longer(d, extra)) for w, d, extra in zip(shares, (far, near), answers, strict=True)))
    ttft = Blend(((shares[0], far), (shares[1], near)))
    fleet = Fleet(sized.usd_per_hour, lambda r: split.margins(r, n_p, n_d))
    threshold = meeting.boundary.local_below
    sides = short(meeting.prefill, sized.prefill_workers), short(meeting.decode, sized.decode_workers)
    names = meeting.prefill.worker.accelerator.name, meeting.decode.worker.accelerator.name
    return make_option(
        ask, fleet, rate, tuple(_pools(split, sized, rate, trust)),
        label=f"{' → '.join(sides)}, local below {threshold}",
        placement=Placement.CONDITIONAL,
        heterogeneous=names[0] != names[1],
        ttft=ttft.latency(floor, trust),
        ttft_decode=after.latency(floor, trust),
        tpot=Latency(tpot_mean, p50, p90, p99, lowest, trust),
        e2e=e2e.latency(floor, trust),
        boundary=boundary_plan(
            meeting,
            meeting.link(rate * split.share, n_p, n_d),
            lambda route: bool(
                np.all(kept(replace(split, meeting=replace(meeting, route=route)).margins(rate, n_p, n_d)))
            ),
        ),
        parts={"handed over": split.share * float(far.mean), "local": (1 - split.share) * float(near.mean)},
    )  # fmt: skip


def _pools(split: Conditional, sized: Sized, rate: float, trust: Any) -> Iterator[PoolPlan]:
    meeting, sent = split.meeting, rate * split.share
    n_p, n_d = float(sized.prefill_workers), float(sized.decode_workers)
    state = split.local.pool.at(rate, n_d, split.local.load.cv2)
    room = float(meeting.prefill_room(sent, n_p, 0.0))
    busy = float(meeting.prefill_utilisation(sent, n_p))
    whole = most(lambda r: bool(np.all(kept(split.margins(r, math.inf, n_d)))), rate)
    rows = (
        (Role.PREFILL, meeting.prefill, sized.prefill_workers, sent / busy, sent, 0.0, meeting.first.pool.mean_service,
         meeting.first.kv_capacity, (1 - room) * meeting.first.kv_capacity, (1 - room) * meeting.first.kv_capacity),
        (Role.DECODE, meeting.decode, sized.decode_workers, max(whole, rate), rate, float(state.batch), float(state.step),
         split.local.kv_capacity, float(state.kv_bytes), float(state.kv_bytes_p99)),
    )  # fmt: skip
    for role, candidate, workers, capacity, load, batch, step, capacity_kv, held, peak in rows:
        memory, usd = memory_plan(candidate.worker), candidate.usd_per_hour(workers)
        yield PoolPlan(
            role, (member_plan(candidate, workers, candidate.instances(workers), usd, batch),), capacity, load / capacity,
            max(1 - load / capacity, 0.0), batch, step, memory.weights * candidate.worker.accelerators, capacity_kv, held, peak,
            power(candidate.worker, workers), usd, trust, memory.capacity * candidate.worker.accelerators,
        )  # fmt: skip
