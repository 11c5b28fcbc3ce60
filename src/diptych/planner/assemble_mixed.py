"""From a mixture of owned accelerators to an `Option`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np

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
    power,
    prefill_trust,
    short,
    tpot_floor,
    ttft_floor,
    worse,
)
from diptych.planner.delay import Delay
from diptych.planner.meeting import Sized
from diptych.planner.mixed import Mixture, Share
from diptych.planner.plan import BoundaryPlan, Latency, Option, PoolPlan, Trust
from diptych.planner.stages import answer_seconds


@dataclass(frozen=True, eq=False)
class Blend:
    """A delay over several kinds of workers: each part with its share of the requests."""

    parts: tuple[tuple[float, Delay], ...]

    @property
    def mean(self) -> float:
        return sum(weight * float(np.squeeze(delay.mean)) for weight, delay in self.parts)

    def quantile(self, q: float) -> float:
        """Seconds that a share `q` of all requests does not exceed, by halving between the parts' own quantiles."""
        own = [float(np.squeeze(delay.quantile(q))) for _, delay in self.parts]
        low, high = min(own), max(own)
        for _ in range(40):
            middle = (low + high) / 2
            met = sum(weight * float(np.squeeze(delay.attainment(middle))) for weight, delay in self.parts)
            low, high = (low, middle) if met >= q - 1e-12 else (middle, high)
        return high

    def latency(self, floor: float, trust: Trust) -> Latency:
        p50, p90, p99 = (self.quantile(q) for q in PERCENTILES)
        return Latency(self.mean, p50, p90, p99, floor, trust)


def mixed_option(ask: Ask, mixture: Mixture, rate: float) -> Option:
    """Everything about a mixture at `rate`."""
    usd = sum(share.column.candidate.share_per_hour(share.workers) for share in mixture.shares)
    parts = list(_parts(mixture, rate))
    trusts = [trust(ask, s.column.candidate.worker) for s, trust in _trusting(mixture)]
    whole = reduce(worse, trusts)
    first = mixture.prefill or mixture.together
    last = mixture.decode or mixture.together
    floor = min(ttft_floor(ask, s.column.candidate.worker) for s in first)
    step_floor = min(tpot_floor(ask, s.column.candidate.worker, ask.lengths.mean_isl) for s in last)
    ttft = Blend(tuple((weight, delay) for weight, delay, _, _ in parts))
    decoded = Blend(tuple((weight, longer(delay, step)) for weight, delay, step, _ in parts))
    e2e = Blend(tuple((w, longer(d, answer_seconds(mixture.tables.load, tpot["mean"]))) for w, d, _, tpot in parts))
    tpots = [tpot for _, _, _, tpot in parts]
    slowest = {name: max(tpot[name] for tpot in tpots) for name in tpots[0]}
    mean = sum(weight * tpot["mean"] for weight, _, _, tpot in parts)
    names = {share.column.accelerator for share in mixture.shares}
    return make_option(
        ask, Fleet(usd, mixture.margins), rate, tuple(_pools(ask, mixture, rate, whole)),
        label=_label(mixture),
        placement=Placement.DISAGGREGATED if mixture.prefill else Placement.COLOCATED,
        heterogeneous=len(names) > 1,
        ttft=ttft.latency(floor, whole),
        ttft_decode=decoded.latency(floor + step_floor, whole),
        tpot=Latency(mean, slowest["p50"], slowest["p90"], slowest["p99"], step_floor, whole),
        e2e=e2e.latency(floor, whole),
        boundary=_widest_boundary(mixture, rate),
        parts={"ttft": ttft.mean},
    )  # fmt: skip


def _parts(mixture: Mixture, rate: float) -> Any:
    """(share of requests, TTFT, first step, TPOT statistics) of every way a request may go."""
    for (i, j), meeting in mixture.meetings.items():
        mine, theirs = mixture.prefill[i], mixture.decode[j]
        first, second = rate * mixture.apart * mine.share, rate * mixture.apart * theirs.share
        delay = meeting.delay(first, float(mine.workers), np.inf)
        stage, count = meeting.second, float(theirs.workers)
        tpot = _tpots(partial(stage.tpot, second, count))
        yield mixture.apart * mine.share * theirs.share, delay, float(stage.state(second, count).step), tpot
    for share in mixture.together:
        pool = mixture.tables.colocated_stage(share.column.candidate.worker)
        each, count = rate * (1 - mixture.apart) * share.share, float(share.workers)
        tpot = _tpots(partial(pool.tpot, each, count))
        yield (1 - mixture.apart) * share.share, pool.delay(each, count), 0.0, tpot


def _tpots(at: Callable[[float | None], Any]) -> dict[str, float]:
    return {name: float(at(q)) for name, q in (("mean", None), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}


def _trusting(mixture: Mixture) -> Any:
    for share in (*mixture.prefill, *mixture.together):
        yield share, prefill_trust
    for share in (*mixture.decode, *mixture.together):
        yield share, decode_trust


def _pools(ask: Ask, mixture: Mixture, rate: float, trust: Trust) -> Any:
    for role, shares, part in (
        (Role.PREFILL, mixture.prefill, mixture.apart),
        (Role.DECODE, mixture.decode, mixture.apart),
        (Role.COLOCATED, mixture.together, 1 - mixture.apart),
    ):
        if shares:
            yield _pool(mixture, role, shares, rate * part, trust)


def _pool(mixture: Mixture, role: Role, shares: tuple[Share, ...], rate: float, trust: Trust) -> PoolPlan:
    """A pool of several kinds; batch, step and memory are of its largest member."""
    capacity = sum(share.column.knee * share.workers for share in shares)
    main = max(shares, key=lambda share: share.share)
    worker, memory = main.column.candidate.worker, memory_plan(main.column.candidate.worker)
    batch, step, held, peak, room = _state(mixture, role, main, rate * main.share)
    members = tuple(
        member_plan(
            share.column.candidate,
            share.workers,
            share.column.candidate.instances(share.workers),
            share.column.candidate.share_per_hour(share.workers),
            0.0 if role is Role.PREFILL else _state(mixture, role, share, rate * share.share)[0],
        )
        for share in shares
    )
    return PoolPlan(
        role=role,
        members=members,
        capacity=max(capacity, rate),
        utilisation=rate / max(capacity, rate),
        idle_share=max(1 - rate / max(capacity, rate), 0.0),
        batch=batch,
        step_seconds=step,
        weight_bytes=memory.weights * worker.accelerators,
        kv_capacity=room,
        kv_bytes=held,
        kv_peak=peak,
        power_w=sum(power(share.column.candidate.worker, share.workers) for share in shares),
        usd_per_hour=sum(member.usd_per_hour for member in members),
        trust=trust,
        memory_bytes=memory.capacity * worker.accelerators,
    )


def _state(mixture: Mixture, role: Role, share: Share, rate: float) -> tuple[float, float, float, float, float]:
    """(batch, step seconds, live KV, peak KV, room for KV) of one worker of a member that carries `rate`."""
    worker, count = share.column.candidate.worker, float(share.workers)
    if role is Role.PREFILL:
        stage = mixture.tables.prefill_stage(worker)
        meeting = next(m for (i, _), m in mixture.meetings.items() if mixture.prefill[i] == share)
        room = float(meeting.prefill_room(rate, count, 0.0))
        size = mixture.tables.load.lengths.mean(
            worker.model.kv_bytes(mixture.tables.load.lengths.isl, worker.precision.kv)
        )
        busy = rate / count * stage.pool.mean_service
        return busy, stage.pool.mean_service, busy * size, (1 - room) * stage.kv_capacity, stage.kv_capacity
    if role is Role.DECODE:
        target = mixture.tables.decode_stage(worker)
        state = target.state(rate, count)
        return (
            float(state.batch),
            float(state.step),
            float(state.kv_bytes),
            float(state.kv_bytes_p99),
            target.kv_capacity,
        )
    pool = mixture.tables.colocated_stage(worker)
    both = pool.pool.at(rate, count, pool.load.cv2)
    return float(both.batch), float(both.step), float(both.kv_bytes), float(both.kv_bytes_p99), pool.kv_capacity


def _widest_boundary(mixture: Mixture, rate: float) -> BoundaryPlan | None:
    """The handoff that most requests take."""
    if not mixture.meetings:
        return None
    i, j = max(mixture.meetings, key=lambda key: mixture.prefill[key[0]].share * mixture.decode[key[1]].share)
    mine, theirs = mixture.prefill[i], mixture.decode[j]
    meeting = mixture.meetings[i, j]
    part = rate * mixture.apart * mine.share * theirs.share
    sized = Sized(meeting, mine.workers, theirs.workers, 0.0)
    load = meeting.link(part, float(mine.workers), float(theirs.workers))
    return boundary_plan(meeting, load, lambda route: replace(sized, meeting=replace(meeting, route=route)).keeps(part))


def _label(mixture: Mixture) -> str:
    def named(shares: tuple[Share, ...]) -> str:
        return " + ".join(short(share.column.candidate, share.workers) for share in shares)

    apart = f"{named(mixture.prefill)} → {named(mixture.decode)}" if mixture.prefill else ""
    beside = named(mixture.together)
    return f"{apart}, colocated {beside}" if apart and beside else apart or beside
