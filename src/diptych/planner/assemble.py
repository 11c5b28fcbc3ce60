"""From a sized fleet to an `Option`: everything predicted about it, with its trust."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diptych.design.axes import Role
from diptych.design.boundary import Placement
from diptych.planner.ask import Ask
from diptych.planner.found import Pooled
from diptych.planner.goodput import Fleet, fleet_of, most, stage_keeps
from diptych.planner.handed import boundary_plan
from diptych.planner.meeting import Sized
from diptych.planner.plan import BoundaryPlan, Latency, Option, PoolPlan, Trust
from diptych.planner.rented import Held, bills, pool_plan, power, short, sized_member, summed
from diptych.planner.rushes import PROMPTS
from diptych.planner.stages import answer_seconds
from diptych.planner.trust import decode_trust, prefill_trust, tpot_floor, ttft_floor, worse
from diptych.planner.ways import PERCENTILES, Seen, Way, seen


def option(ask: Ask, sized: Sized | Pooled, rate: float) -> Option:
    """Everything about a sized fleet at `rate`."""
    return _together(ask, sized, rate) if isinstance(sized, Pooled) else _apart(ask, sized, rate)


def _apart(ask: Ask, sized: Sized, rate: float) -> Option:
    meeting, (each, n_p, n_d) = sized.meeting, sized.part(rate)
    steps, second = meeting.first.load.steps, meeting.second
    state, slower = second.balance(each, n_d), meeting.slowdown(steps.at(PROMPTS, each), n_d)
    first_trust, second_trust = prefill_trust(ask, meeting.prefill.worker), decode_trust(ask, meeting.decode.worker)
    wire = float(np.median(meeting.handoff.wire_bytes)) / meeting.route.bandwidth
    floor = ttft_floor(ask, meeting.prefill.worker) + wire
    step_floor = tpot_floor(ask, meeting.decode.worker, second.pool.context)
    answer = answer_seconds(meeting.first.load, state.tpot_mean * slower)
    way = Way.handed(1.0, meeting.delay(each, n_p, n_d), meeting, state.step * slower, answer)
    load = meeting.link(each, n_p, n_d)
    waiting = float(np.nan_to_num(load.wait.mean, posinf=0.0))
    pools = (
        _prefill_pool(ask, sized, rate, waiting, first_trust),
        _decode_pool(ask, sized, rate, waiting, second_trust),
    )
    mean, p50, p90, p99 = (second.tpot(each, n_d, q, slower) for q in (None, *PERCENTILES))
    return make_option(
        ask, fleet_of(sized), rate, pools,
        label=f"{short(meeting.prefill, sized.prefill_workers)} → {short(meeting.decode, sized.decode_workers)}",
        placement=meeting.boundary.placement,
        seen=seen([way], floor, step_floor, first_trust, worse(first_trust, second_trust)),
        tpot=Latency(mean, p50, p90, p99, step_floor, second_trust),
        boundary=boundary_plan(
            meeting, load, lambda route: replace(sized, meeting=replace(meeting, route=route)).keeps(rate)
        ),
    )  # fmt: skip


def _together(ask: Ask, pooled: Pooled, rate: float) -> Option:
    stage, workers, fleet = pooled.stage, float(pooled.workers), fleet_of(pooled)
    state = stage.state(rate, workers)
    trust = worse(prefill_trust(ask, stage.worker), decode_trust(ask, stage.worker))
    member = sized_member(pooled, Role.COLOCATED, stage.seats(rate * busiest(ask), workers))
    held = Held(
        float(state.batch), float(state.step), stage.kv_capacity, float(state.kv_bytes), float(state.kv_bytes_p99)
    )
    pool = pool_plan(
        Role.COLOCATED, stage.worker, [member], held, rate=rate, capacity=fleet.goodput(rate),
        watts=power(stage.worker, pooled.workers), usd=pooled.usd_per_hour, trust=trust,
    )  # fmt: skip
    by_step = stage.state(stage.rates(rate), workers)
    way = Way(1.0, stage.delay(rate, workers), answer_seconds(stage.load, by_step.tpot_mean))
    floor, step_floor = ttft_floor(ask, stage.worker), tpot_floor(ask, stage.worker, ask.lengths.mean_isl)
    mean, p50, p90, p99 = (stage.tpot(rate, workers, q) for q in (None, *PERCENTILES))
    return make_option(
        ask, fleet, rate, (pool,),
        label=short(pooled.candidate, pooled.workers),
        placement=Placement.COLOCATED,
        seen=seen([way], floor, step_floor, trust, trust),
        tpot=Latency(mean, p50, p90, p99, step_floor, trust),
        boundary=None,
    )  # fmt: skip


def busiest(ask: Ask) -> float:
    """The busiest time over the average, which batch limits leave room for whatever the fleet is sized for."""
    arrivals = ask.workload.arrivals
    return max(arrivals.peak_to_mean, arrivals.profile.peak if arrivals.profile else 1.0)


def make_option(
    ask: Ask,
    fleet: Fleet,
    rate: float,
    pools: tuple[PoolPlan, ...],
    *,
    label: str,
    placement: Placement,
    seen: Seen,
    tpot: Latency,
    boundary: BoundaryPlan | None,
) -> Option:
    """What any fleet comes to at `rate`, however its pools are made up."""
    goodput = fleet.goodput(rate)
    hourly = 3600 * rate / 1e6
    kinds = {member.accelerator for pool in pools for member in pool.members}
    return Option(
        label=label,
        placement=placement,
        heterogeneous=len(kinds) > 1,
        rate=rate,
        goodput=goodput,
        headroom=goodput / rate - 1,
        accelerators=sum(pool.accelerators for pool in pools),
        usd_per_hour=fleet.usd_per_hour,
        usd_per_mtok_input=fleet.usd_per_hour / (hourly * ask.lengths.mean_isl),
        usd_per_mtok_output=fleet.usd_per_hour / (hourly * ask.lengths.mean_osl),
        usd_per_mtok_total=fleet.usd_per_hour / (hourly * (ask.lengths.mean_isl + ask.lengths.mean_osl)),
        power_w=summed(pool.power_w for pool in pools),
        ttft=seen.ttft,
        ttft_decode=seen.ttft_decode,
        tpot=tpot,
        e2e=seen.e2e,
        binding=fleet.binding(goodput),
        pools=pools,
        boundary=boundary,
        ttft_parts=seen.parts,
    )


def _prefill_pool(ask: Ask, sized: Sized, rate: float, waiting: float, trust: Trust) -> PoolPlan:
    meeting, workers = sized.meeting, sized.prefill_workers
    stage, worker, (part, count, _) = meeting.first, meeting.prefill.worker, sized.part(rate)
    each, lengths = rate / workers, ask.lengths
    size = worker.model.kv_bytes(lengths.isl, worker.precision.kv)
    working = lengths.mean(size * stage.pool.service)
    pinned = lengths.mean(size * meeting.handoff.source_seconds()) + lengths.mean(size) * waiting
    peak = (1 - float(meeting.prefill_room(part, count, waiting))) * stage.kv_capacity
    busy = stage.pool.mean_service
    held = Held(each * busy, busy, stage.kv_capacity, each * (working + pinned), peak)
    return pool_plan(
        Role.PREFILL, worker, [sized_member(sized, Role.PREFILL, 0.0)], held, rate=rate, usd=bills(sized)[0], trust=trust,
        capacity=most(lambda r: stage_keeps(stage, r, count), part) * rate / part, watts=power(worker, workers),
    )  # fmt: skip


def _decode_pool(ask: Ask, sized: Sized, rate: float, waiting: float, trust: Trust) -> PoolPlan:
    meeting, workers = sized.meeting, sized.decode_workers
    stage, worker, (part, _, count) = meeting.second, meeting.decode.worker, sized.part(rate)
    state = stage.state(part, count)
    peak = float(state.kv_bytes_p99 + meeting.reserved(part, count, waiting))
    held = Held(float(state.batch), float(state.step), stage.kv_capacity, float(state.kv_bytes), peak)
    member = sized_member(sized, Role.DECODE, stage.seats(part * busiest(ask), count))
    return pool_plan(
        Role.DECODE, worker, [member], held, rate=rate, usd=bills(sized)[1], trust=trust,
        capacity=most(lambda r: stage_keeps(stage, r, count), part) * rate / part, watts=power(worker, workers),
    )  # fmt: skip
