"""From a mixture of owned accelerators to an `Option`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from diptych.design.axes import Role
from diptych.design.boundary import Placement
from diptych.planner.ask import Ask
from diptych.planner.assemble import busiest, make_option
from diptych.planner.goodput import Fleet
from diptych.planner.handed import boundary_plan
from diptych.planner.meeting import Sized
from diptych.planner.mixed import Mixture, Share
from diptych.planner.plan import BoundaryPlan, Latency, Option, PoolPlan, Trust
from diptych.planner.rented import Held, member_plan, pool_plan, power, short, summed
from diptych.planner.stages import PrefillStage, answer_seconds
from diptych.planner.trust import decode_trust, prefill_trust, tpot_floor, ttft_floor, worse
from diptych.planner.ways import PERCENTILES, Way, seen


def mixed_option(ask: Ask, mixture: Mixture, rate: float) -> Option:
    """Everything about a mixture at `rate`."""
    usd = sum(share.column.candidate.share_per_hour(share.workers) for share in mixture.shares)
    ways, tpots = zip(*_ways(mixture, rate), strict=True)
    whole = reduce(worse, (trust(ask, s.column.candidate.worker) for s, trust in _trusting(mixture)))
    first, last = mixture.prefill or mixture.together, mixture.decode or mixture.together
    floor = min(ttft_floor(ask, s.column.candidate.worker) for s in first)
    step_floor = min(tpot_floor(ask, s.column.candidate.worker, ask.lengths.mean_isl) for s in last)
    mean = sum(way.share * tpot[0] for way, tpot in zip(ways, tpots, strict=True))
    p50, p90, p99 = (max(values) for values in list(zip(*tpots, strict=True))[1:])
    return make_option(
        ask, Fleet(usd, mixture.margins), rate, tuple(_pools(ask, mixture, rate, whole)),
        label=_label(mixture),
        placement=Placement.DISAGGREGATED if mixture.prefill else Placement.COLOCATED,
        seen=seen(ways, floor, step_floor, whole, whole),
        tpot=Latency(mean, p50, p90, p99, step_floor, whole),
        boundary=_widest_boundary(mixture, rate),
    )  # fmt: skip


def _ways(mixture: Mixture, rate: float) -> Iterator[tuple[Way, list[float]]]:
    """Every way a request may go, with its TPOT: the mean and `PERCENTILES`."""
    load = mixture.tables.load
    for (i, j), meeting in mixture.meetings.items():
        mine, theirs = mixture.prefill[i], mixture.decode[j]
        first, second = rate * mixture.apart * mine.share, rate * mixture.apart * theirs.share
        stage, count = meeting.second, float(theirs.workers)
        state = stage.balance(second, count)
        delay, answer = meeting.delay(first, float(mine.workers), np.inf), answer_seconds(load, state.tpot_mean)
        way = Way.handed(mixture.apart * mine.share * theirs.share, delay, meeting, state.step, answer)
        yield way, [stage.tpot(second, count, q) for q in (None, *PERCENTILES)]
    for share in mixture.together:
        pool = mixture.tables.colocated_stage(share.column.candidate.worker)
        part = (1 - mixture.apart) * share.share
        each, count = rate * part, float(share.workers)
        answer = answer_seconds(load, pool.state(pool.rates(each), count).tpot_mean)
        yield Way(part, pool.delay(each, count), answer), [pool.tpot(each, count, q) for q in (None, *PERCENTILES)]


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
            yield _pool(ask, mixture, role, shares, rate * part, trust)


def _pool(ask: Ask, mixture: Mixture, role: Role, shares: tuple[Share, ...], rate: float, trust: Trust) -> PoolPlan:
    """A pool of several kinds; batch, step and memory are of its largest member."""
    main = max(shares, key=lambda share: share.share)
    members = [
        member_plan(
            share.column.candidate,
            share.workers,
            share.column.candidate.instances(share.workers),
            share.column.candidate.share_per_hour(share.workers),
            _seats(mixture, role, share, rate * share.share * busiest(ask)),
        )
        for share in shares
    ]
    return pool_plan(
        role, main.column.candidate.worker, members, _held(mixture, role, main, rate * main.share), rate=rate,
        capacity=max(sum(share.column.knee * share.workers for share in shares), rate),
        watts=summed(power(share.column.candidate.worker, share.workers) for share in shares),
        usd=sum(member.usd_per_hour for member in members), trust=trust,
    )  # fmt: skip


def _seats(mixture: Mixture, role: Role, share: Share, rate: float) -> float:
    """Sequences to admit on each worker of a member that carries `rate`; prefill has none."""
    if role is Role.PREFILL:
        return 0.0
    stage = mixture.tables.stage(role, share.column.candidate.worker)
    assert not isinstance(stage, PrefillStage)
    return stage.seats(rate, float(share.workers))


def _held(mixture: Mixture, role: Role, share: Share, rate: float) -> Held:
    """One worker of a member that carries `rate`."""
    stage, count = mixture.tables.stage(role, share.column.candidate.worker), float(share.workers)
    if isinstance(stage, PrefillStage):
        meeting = next(m for (i, _), m in mixture.meetings.items() if mixture.prefill[i] == share)
        room, lengths = float(meeting.prefill_room(rate, count, 0.0)), mixture.tables.load.lengths
        size = lengths.mean(stage.worker.model.kv_bytes(lengths.isl, stage.worker.precision.kv))
        busy = rate / count * stage.pool.mean_service
        peak = (1 - room) * stage.kv_capacity
        return Held(busy, stage.pool.mean_service, stage.kv_capacity, busy * size, peak)
    state = stage.state(rate, count)
    kv, peak = float(state.kv_bytes), float(state.kv_bytes_p99)
    return Held(float(state.batch), float(state.step), stage.kv_capacity, kv, peak)


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
