"""From a sized fleet to an `Option`: everything predicted about it, with its trust."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diptych.catalog.interconnect import Link, LinkKind
from diptych.design.axes import Role, Worker
from diptych.design.boundary import Codec, Ownership, Placement
from diptych.design.constraints import shared_engines
from diptych.perf.estimate import Array, Basis, Timing
from diptych.perf.memory import memory_plan
from diptych.perf.transfer import LinkLoad
from diptych.planner.ask import Ask
from diptych.planner.delay import Delay
from diptych.planner.enumerate import Candidate
from diptych.planner.meeting import Meeting, Sized
from diptych.planner.plan import BoundaryPlan, Latency, MemberPlan, Option, PoolPlan, Trust
from diptych.planner.search import Pooled
from diptych.planner.stages import DecodeStage, Margins, PrefillStage, answer_seconds, kept

PERCENTILES = (0.5, 0.9, 0.99)
_ORDER = (Basis.MEASURED, Basis.FITTED, Basis.ROOFLINE)


@dataclass(frozen=True, eq=False)
class Fleet:
    """A sized fleet seen from outside: what it costs, and how far inside its promises it is at any rate."""

    usd_per_hour: float
    margins: Callable[[float], Margins]

    def keeps(self, rate: float) -> bool:
        return bool(np.all(kept(self.margins(rate))))

    def goodput(self, rate: float) -> float:
        """The most requests/s it carries inside the SLO, to 1e-4; `rate` is where to start looking."""
        return most(self.keeps, rate)

    def binding(self, rate: float) -> str:
        """The promise or capacity that breaks first just above `rate`."""
        margins = self.margins(rate * 1.001)
        return min(margins, key=lambda name: float(np.min(margins[name])))


def fleet_of(sized: Sized | Pooled) -> Fleet:
    """A disaggregated or colocated fleet by the same questions."""
    if isinstance(sized, Pooled):
        stage, workers = sized.stage, float(sized.workers)
        return Fleet(sized.usd_per_hour, lambda rate: stage.margins(rate, workers))
    return Fleet(sized.usd_per_hour, sized.margins)


def most(keeps: Callable[[float], bool], start: float, tolerance: float = 1e-4) -> float:
    """The largest value that `keeps` accepts, given that it accepts all smaller ones."""
    low, high = 0.0, start
    while keeps(high) and high < start * 1e6:
        low, high = high, high * 2
    for _ in range(60):
        if high - low <= tolerance * high:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def option(ask: Ask, sized: Sized | Pooled, rate: float) -> Option:
    """Everything about a sized fleet at `rate`."""
    return _together(ask, sized, rate) if isinstance(sized, Pooled) else _apart(ask, sized, rate)


def _apart(ask: Ask, sized: Sized, rate: float) -> Option:
    meeting, (each, n_p, n_d) = sized.meeting, sized.part(rate)
    state, slower = meeting.second.state(each, n_d), float(meeting.slowdown(each, n_d))
    delay, load = meeting.delay(each, n_p, n_d), meeting.link(each, n_p, n_d)
    first_step = float(state.step) * slower
    p50, p90, p99 = (float(meeting.second.tpot(each, n_d, q)) * slower for q in PERCENTILES)
    first_trust, second_trust = prefill_trust(ask, meeting.prefill.worker), decode_trust(ask, meeting.decode.worker)
    both = worse(first_trust, second_trust)
    floor = (
        ttft_floor(ask, meeting.prefill.worker) + float(np.median(meeting.handoff.wire_bytes)) / meeting.route.bandwidth
    )
    step_floor = tpot_floor(ask, meeting.decode.worker, meeting.second.pool.context)
    waiting = float(np.nan_to_num(load.wait.mean, posinf=0.0))
    pools = (
        _prefill_pool(ask, sized, rate, waiting, first_trust),
        _decode_pool(ask, sized, rate, waiting, second_trust),
    )
    names = meeting.prefill.worker.accelerator.name, meeting.decode.worker.accelerator.name
    handing, lengths = meeting.handoff, ask.lengths
    converting = handing.prefill_conversion + handing.staged_conversion + handing.decode_conversion
    parts = {
        "wait": float(delay.first.mean),
        "prefill": lengths.mean(meeting.first.pool.service),
        "conversion": lengths.mean(converting),
        "transfer": lengths.mean(handing.dispatch + handing.exposed) + waiting,
        "first step": first_step,
    }
    return make_option(
        ask, fleet_of(sized), rate, pools,
        label=f"{short(meeting.prefill, sized.prefill_workers)} → {short(meeting.decode, sized.decode_workers)}",
        placement=meeting.boundary.placement,
        heterogeneous=names[0] != names[1],
        ttft=_latency(delay, floor, first_trust),
        ttft_decode=_latency(longer(delay, first_step), floor + step_floor, both),
        tpot=Latency(float(state.tpot_mean) * slower, p50, p90, p99, step_floor, second_trust),
        e2e=_latency(longer(delay, answer_seconds(meeting.first.load, float(state.tpot_mean) * slower)), floor, both),
        boundary=boundary_plan(
            meeting, load, lambda route: replace(sized, meeting=replace(meeting, route=route)).keeps(rate)
        ),
        parts=parts,
    )  # fmt: skip


def _together(ask: Ask, pooled: Pooled, rate: float) -> Option:
    stage, workers = pooled.stage, float(pooled.workers)
    state = stage.pool.at(rate, workers, stage.load.cv2)
    delay = stage.delay(rate, workers)
    trust = worse(prefill_trust(ask, stage.worker), decode_trust(ask, stage.worker))
    p50, p90, p99 = (float(stage.tpot(rate, workers, q)) for q in PERCENTILES)
    capacity = most(lambda r: bool(np.all(kept(stage.margins(r, workers)))), rate)
    memory = memory_plan(stage.worker)
    pool = PoolPlan(
        role=Role.COLOCATED,
        members=(_member(pooled, Role.COLOCATED, float(state.batch)),),
        capacity=capacity,
        utilisation=rate / capacity,
        idle_share=max(1 - rate / capacity, 0.0),
        batch=float(state.batch),
        step_seconds=float(state.step),
        weight_bytes=memory.weights * stage.worker.accelerators,
        kv_capacity=stage.kv_capacity,
        kv_bytes=float(state.kv_bytes),
        kv_peak=float(state.kv_bytes_p99),
        power_w=power(stage.worker, pooled.workers),
        usd_per_hour=pooled.usd_per_hour,
        trust=trust,
        memory_bytes=memory.capacity * stage.worker.accelerators,
    )
    floor = ttft_floor(ask, stage.worker)
    step_floor = tpot_floor(ask, stage.worker, ask.lengths.mean_isl)
    ttft = _latency(delay, floor, trust)
    prefill = float(ask.lengths.mean(delay.sure if delay.sure.ndim == 1 else delay.sure[0]))
    return make_option(
        ask, fleet_of(pooled), rate, (pool,),
        label=short(pooled.candidate, pooled.workers),
        placement=Placement.COLOCATED,
        heterogeneous=False,
        ttft=ttft,
        ttft_decode=ttft,
        tpot=Latency(float(state.tpot_mean), p50, p90, p99, step_floor, trust),
        e2e=_latency(longer(delay, answer_seconds(stage.load, float(state.tpot_mean))), floor, trust),
        boundary=None,
        parts={"wait": float(delay.first.mean), "prefill": prefill},
    )  # fmt: skip


def make_option(
    ask: Ask,
    fleet: Fleet,
    rate: float,
    pools: tuple[PoolPlan, ...],
    *,
    label: str,
    placement: Placement,
    heterogeneous: bool,
    ttft: Latency,
    ttft_decode: Latency,
    tpot: Latency,
    e2e: Latency,
    boundary: BoundaryPlan | None,
    parts: Mapping[str, float],
) -> Option:
    goodput = fleet.goodput(rate)
    hourly = 3600 * rate / 1e6
    return Option(
        label=label,
        placement=placement,
        heterogeneous=heterogeneous,
        rate=rate,
        goodput=goodput,
        headroom=goodput / rate - 1,
        accelerators=sum(pool.accelerators for pool in pools),
        usd_per_hour=fleet.usd_per_hour,
        usd_per_mtok_input=fleet.usd_per_hour / (hourly * ask.lengths.mean_isl),
        usd_per_mtok_output=fleet.usd_per_hour / (hourly * ask.lengths.mean_osl),
        usd_per_mtok_total=fleet.usd_per_hour / (hourly * (ask.lengths.mean_isl + ask.lengths.mean_osl)),
        power_w=sum(pool.power_w for pool in pools),
        ttft=ttft,
        ttft_decode=ttft_decode,
        tpot=tpot,
        e2e=e2e,
        binding=fleet.binding(goodput),
        pools=pools,
        boundary=boundary,
        ttft_parts=parts,
    )


def _prefill_pool(ask: Ask, sized: Sized, rate: float, waiting: float, trust: Trust) -> PoolPlan:
    meeting, workers = sized.meeting, sized.prefill_workers
    stage, candidate, (part, count, _) = meeting.first, meeting.prefill, sized.part(rate)
    capacity = most(lambda r: stage_keeps(stage, r, count), part) * rate / part
    each, lengths = rate / workers, ask.lengths
    size = candidate.worker.model.kv_bytes(lengths.isl, candidate.worker.precision.kv)
    working = lengths.mean(size * stage.pool.service)
    pinned = lengths.mean(size * meeting.handoff.source_seconds()) + lengths.mean(size) * waiting
    memory, room = memory_plan(candidate.worker), float(meeting.prefill_room(part, count, waiting))
    return PoolPlan(
        role=Role.PREFILL,
        members=(_member(sized, Role.PREFILL, 0.0),),
        capacity=capacity,
        utilisation=rate / capacity,
        idle_share=max(1 - rate / capacity, 0.0),
        batch=each * stage.pool.mean_service,
        step_seconds=stage.pool.mean_service,
        weight_bytes=memory.weights * candidate.worker.accelerators,
        kv_capacity=stage.kv_capacity,
        kv_bytes=each * (working + pinned),
        kv_peak=(1 - room) * stage.kv_capacity,
        power_w=power(candidate.worker, workers),
        usd_per_hour=_bills(sized)[0],
        trust=trust,
        memory_bytes=memory.capacity * candidate.worker.accelerators,
    )


def stage_keeps(stage: PrefillStage | DecodeStage, rate: float, workers: float) -> bool:
    """Whether a pool alone, with a free handoff, keeps its promises."""
    if isinstance(stage, DecodeStage):
        return bool(np.all(kept(stage.margins(rate, workers))))
    if float(stage.pool.utilisation(rate, workers)) >= 1:
        return False
    delay = stage.delay(rate, workers)
    return all(bool(delay.keeps(goal.quantile, goal.limit) >= 0) for goal in stage.load.slo.of("ttft"))


def _decode_pool(ask: Ask, sized: Sized, rate: float, waiting: float, trust: Trust) -> PoolPlan:
    meeting, workers = sized.meeting, sized.decode_workers
    stage, candidate, (part, _, count) = meeting.second, meeting.decode, sized.part(rate)
    state = stage.state(part, count)
    capacity = most(lambda r: stage_keeps(stage, r, count), part) * rate / part
    memory = memory_plan(candidate.worker)
    return PoolPlan(
        role=Role.DECODE,
        members=(_member(sized, Role.DECODE, float(state.batch)),),
        capacity=capacity,
        utilisation=rate / capacity,
        idle_share=max(1 - rate / capacity, 0.0),
        batch=float(state.batch),
        step_seconds=float(state.step),
        weight_bytes=memory.weights * candidate.worker.accelerators,
        kv_capacity=stage.kv_capacity,
        kv_bytes=float(state.kv_bytes),
        kv_peak=float(state.kv_bytes_p99 + meeting.reserved(part, count, waiting)),
        power_w=power(candidate.worker, workers),
        usd_per_hour=_bills(sized)[1],
        trust=trust,
        memory_bytes=memory.capacity * candidate.worker.accelerators,
    )


def _bills(sized: Sized) -> tuple[float, float]:
    """The bill of each pool; instances that both share are split by the accelerators each uses."""
    meeting, counts = sized.meeting, (sized.prefill_workers, sized.decode_workers)
    alone = meeting.prefill.usd_per_hour(counts[0]), meeting.decode.usd_per_hour(counts[1])
    if abs(sum(alone) - sized.usd_per_hour) < 1e-9 * sized.usd_per_hour:
        return alone
    used = counts[0] * meeting.prefill.worker.accelerators, counts[1] * meeting.decode.worker.accelerators
    first = sized.usd_per_hour * used[0] / sum(used)
    return first, sized.usd_per_hour - first


def boundary_plan(meeting: Meeting, load: LinkLoad, keeps: Callable[[Link], bool]) -> BoundaryPlan:
    """The handoff under `load`; `keeps` says whether the fleet still holds on another path."""
    boundary, handing, lengths = meeting.boundary, meeting.handoff, meeting.first.load.lengths
    link_wait = float(np.nan_to_num(load.wait.quantile(0.9), posinf=0.0))
    converting = handing.prefill_conversion + handing.staged_conversion + handing.decode_conversion
    return BoundaryPlan(
        placement=boundary.placement,
        local_below=boundary.local_below,
        link=boundary.link.name,
        kind=boundary.link.kind,
        bandwidth=meeting.route.achievable,
        limited_by=_narrowest(meeting),
        utilisation=float(load.utilisation),
        required_bandwidth=required_bandwidth(meeting.route, keeps),
        wire_bytes_mean=lengths.mean(handing.wire_bytes),
        wire_bytes_p99=lengths.quantile(handing.wire_bytes, 0.99),
        transfer_p90=lengths.quantile(handing.transfer, 0.9),
        exposed_p90=lengths.quantile(handing.exposed, 0.9) + link_wait,
        codec=boundary.representation.codec,
        wire=boundary.representation.wire,
        converts_at=boundary.representation.converts_at,
        conversion_p90=lengths.quantile(converting, 0.9),
        ownership=boundary.ownership,
        overlap=boundary.overlap,
        engine_support=engine_support(meeting),
    )


def required_bandwidth(route: Link, keeps: Callable[[Link], bool]) -> float:
    """The least achievable bandwidth (bytes/s) of one path at which a fleet still keeps the SLO, as `keeps` says."""

    def slowed(factor: float) -> bool:
        return keeps(replace(route, bandwidth=route.bandwidth / factor))

    if not slowed(1.0):
        return route.achievable
    return route.achievable / most(slowed, 1.0, 1e-3)


def _narrowest(meeting: Meeting) -> str:
    """Which part of the path sets its bandwidth."""
    link, prefill, decode = meeting.boundary.link, meeting.prefill, meeting.decode
    if link.kind in (LinkKind.SCALEUP, LinkKind.PCIE):
        return "the link inside the server"
    sides = [_width(side, link) for side in (prefill, decode)]
    side, width = ("prefill", sides[0]) if sides[0] <= sides[1] else ("decode", sides[1])
    worker = (prefill if side == "prefill" else decode).worker
    lanes = worker.parallelism.tp * worker.parallelism.pp
    fabric = link.bandwidth * lanes <= width * (1 + 1e-9)
    return f"{link.name} at the {side} side" if fabric else f"NIC of the {side} side"


def _width(side: Candidate, link: Link) -> float:
    lanes = side.worker.parallelism.tp * side.worker.parallelism.pp
    return lanes * min(link.bandwidth, side.nic or link.bandwidth)


def engine_support(meeting: Meeting) -> str:
    """Whether stock engines do this handoff, or what they lack."""
    lacking = []
    if meeting.boundary.representation.codec is not Codec.RAW:
        lacking.append("no stock engine converts KV")
    shared = shared_engines(meeting.prefill.worker.accelerator, meeting.decode.worker.accelerator)
    if not shared:
        lacking.append("the two accelerators share no engine")
    if lacking:
        return f"diptych's connector ({'; '.join(lacking)})"
    how = "pull" if meeting.boundary.ownership is Ownership.PULL else "push"
    layers = ", layer-wise through LMCache" if meeting.boundary.overlap.value == "layerwise" else ""
    vendors = {meeting.prefill.worker.accelerator.vendor, meeting.decode.worker.accelerator.vendor}
    crossing = ", experimental across vendors" if len(vendors) > 1 else ""
    return f"stock {shared[0] if 'vllm' not in shared else 'vllm'} ({how}{layers}{crossing})"


def _member(sized: Sized | Pooled, role: Role, batch: float) -> MemberPlan:
    candidate, workers, instances, usd = _rented(sized, role)
    return member_plan(candidate, workers, instances, usd, batch)


def member_plan(candidate: Candidate, workers: int, instances: int, usd: float, batch: float) -> MemberPlan:
    """Equal workers as the plan shows them; `batch` sequences per worker set the batch limit."""
    worker, offer = candidate.worker, candidate.offer
    used = workers * worker.accelerators
    return MemberPlan(
        accelerator=worker.accelerator.name,
        workers=workers,
        accelerators=used,
        instances=instances,
        idle_accelerators=max(instances * offer.gpus - used, 0),
        offer=offer.instance,
        provider=offer.provider,
        usd_per_hour=usd,
        weights=worker.precision.weights,
        activations=worker.precision.activations,
        kv=worker.precision.kv,
        tp=worker.parallelism.tp,
        pp=worker.parallelism.pp,
        ep=worker.parallelism.ep,
        dp=worker.parallelism.dp,
        engine=worker.engine,
        max_batch=batch_limit(batch),
        max_batched_tokens=worker.max_batched_tokens,
        residency=worker.residency,
    )


def _rented(sized: Sized | Pooled, role: Role) -> tuple[Candidate, int, int, float]:
    """(candidate, workers, instances, bill) of a pool. Shared instances are counted with decode, the full ones with prefill."""
    if isinstance(sized, Pooled):
        return sized.candidate, sized.workers, sized.candidate.instances(sized.workers), sized.usd_per_hour
    meeting, bills = sized.meeting, _bills(sized)
    together = (
        round(sized.usd_per_hour / meeting.prefill.offer.usd_per_hour) if meeting.prefill.offer.usd_per_hour else 0
    )
    apart = bills == (
        meeting.prefill.usd_per_hour(sized.prefill_workers),
        meeting.decode.usd_per_hour(sized.decode_workers),
    )
    if apart:
        alone = meeting.prefill.instances(sized.prefill_workers), meeting.decode.instances(sized.decode_workers)
    else:
        full = sized.prefill_workers * meeting.prefill.worker.accelerators // meeting.prefill.offer.gpus
        alone = full, together - full
    if role is Role.PREFILL:
        return meeting.prefill, sized.prefill_workers, alone[0], bills[0]
    return meeting.decode, sized.decode_workers, alone[1], bills[1]


def batch_limit(batch: float) -> int:
    """Sequences to admit: the average batch and the p99 of its Poisson swing, in eights; 0 leaves the engine's default."""
    if batch <= 0:
        return 0
    return int(-(-(1 + batch + 2.33 * batch**0.5) // 8) * 8)


def short(candidate: Candidate, workers: int) -> str:
    shape = candidate.worker.parallelism
    return f"{workers}× {candidate.worker.accelerator.name}{'' if shape.accelerators == 1 else f' {shape}'}"


def power(worker: Worker, workers: int) -> float:
    """Data-sheet watts of the accelerators at work."""
    return workers * worker.accelerators * worker.accelerator.tdp_w


def _latency(delay: Delay, floor: float, trust: Trust) -> Latency:
    p50, p90, p99 = (float(np.squeeze(delay.quantile(q))) for q in PERCENTILES)
    return Latency(float(np.squeeze(delay.mean)), p50, p90, p99, floor, trust)


def longer(delay: Delay, extra: Any) -> Delay:
    return Delay(delay.sure + np.asarray(extra), delay.weight, delay.first, delay.second)


def trust_of(timing: Timing) -> Trust:
    return Trust(timing.basis, float(timing.band), bool(np.any(timing.outside)))


def worse(one: Trust, other: Trust) -> Trust:
    """The weaker basis, the wider band."""
    basis = max(one.basis, other.basis, key=_ORDER.index)
    return Trust(basis, max(one.band, other.band), one.outside_measured or other.outside_measured)


def _prefill_timing(ask: Ask, worker: Worker) -> Timing:
    new = np.maximum(ask.lengths.isl - ask.lengths.cached, 1.0)
    return ask.perf.prefill(worker, new, ask.lengths.cached)


def prefill_trust(ask: Ask, worker: Worker) -> Trust:
    return trust_of(_prefill_timing(ask, worker))


def decode_trust(ask: Ask, worker: Worker) -> Trust:
    return trust_of(ask.perf.decode(worker, np.array([1.0, 64.0]), ask.lengths.mean_isl + ask.lengths.mean_osl / 2))


def ttft_floor(ask: Ask, worker: Worker) -> float:
    floor: Array = np.asarray(_prefill_timing(ask, worker).floor)
    return ask.lengths.quantile(np.broadcast_to(floor, ask.lengths.isl.shape), 0.5)


def tpot_floor(ask: Ask, worker: Worker, context: float) -> float:
    return float(np.min(ask.perf.decode(worker, 1.0, context).floor))
