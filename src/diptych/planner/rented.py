"""What a fleet rents: members, whole instances, the bill of each pool, power."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from diptych.design.axes import Role, Worker
from diptych.perf.memory import memory_plan
from diptych.planner.enumerate import Candidate
from diptych.planner.found import Pooled
from diptych.planner.meeting import Sized
from diptych.planner.offers import OWNED
from diptych.planner.plan import MemberPlan, PoolPlan, Trust


@dataclass(frozen=True, slots=True)
class Held:
    """One worker of a pool on average: sequences, seconds of a step, and bytes of KV: room for it, live, at its peak."""

    batch: float
    step: float
    room: float
    kv: float
    peak: float


def pool_plan(
    role: Role, worker: Worker, members: Sequence[MemberPlan], held: Held, *, rate: float, capacity: float, watts: float | None,
    usd: float, trust: Trust,
) -> PoolPlan:  # fmt: skip
    """A pool at `rate` that carries `capacity` requests/s; memory is of `worker`, one of it."""
    memory = memory_plan(worker)
    return PoolPlan(
        role=role,
        members=tuple(members),
        capacity=capacity,
        utilisation=rate / capacity,
        idle_share=max(1 - rate / capacity, 0.0),
        batch=held.batch,
        step_seconds=held.step,
        weight_bytes=memory.weights * worker.accelerators,
        kv_capacity=held.room,
        kv_bytes=held.kv,
        kv_peak=held.peak,
        power_w=watts,
        usd_per_hour=usd,
        trust=trust,
        memory_bytes=memory.capacity * worker.accelerators,
    )


def sized_member(sized: Sized | Pooled, role: Role, seats: float) -> MemberPlan:
    candidate, workers, instances, usd = _rented(sized, role)
    member = member_plan(candidate, workers, instances, usd, seats)
    if isinstance(sized, Pooled) or not _sharing(sized):
        return member
    # Of shared instances decode is left with what neither pool uses.
    counts = (sized.meeting.prefill, sized.prefill_workers), (sized.meeting.decode, sized.decode_workers)
    used = sum(side.worker.accelerators * count for side, count in counts)
    idle = _instances(sized) * candidate.offer.gpus - used
    return replace(member, idle_accelerators=idle if role is Role.DECODE else 0)


def member_plan(candidate: Candidate, workers: int, instances: int, usd: float, seats: float) -> MemberPlan:
    """Equal workers as the plan shows them; `seats` per worker set the batch limit unless it is pinned. What is owned is not
    rented whole, so nothing of it is paid for and idle."""
    worker, offer = candidate.worker, candidate.offer
    used = workers * worker.accelerators
    return MemberPlan(
        accelerator=worker.accelerator.name,
        workers=workers,
        accelerators=used,
        instances=instances,
        idle_accelerators=max(instances * offer.gpus - used, 0) if offer.provider != OWNED else 0,
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
        max_batch=worker.max_batch or batch_limit(seats),
        max_batched_tokens=worker.max_batched_tokens,
        residency=worker.residency,
    )


def _rented(sized: Sized | Pooled, role: Role) -> tuple[Candidate, int, int, float]:
    """(candidate, workers, instances, bill) of a pool. Shared instances are counted with decode, the full ones with prefill."""
    if isinstance(sized, Pooled):
        return sized.candidate, sized.workers, sized.candidate.instances(sized.workers), sized.usd_per_hour
    meeting, each = sized.meeting, bills(sized)
    if _sharing(sized):
        full = sized.prefill_workers * meeting.prefill.worker.accelerators // meeting.prefill.offer.gpus
        alone = full, _instances(sized) - full
    else:
        alone = meeting.prefill.instances(sized.prefill_workers), meeting.decode.instances(sized.decode_workers)
    if role is Role.PREFILL:
        return meeting.prefill, sized.prefill_workers, alone[0], each[0]
    return meeting.decode, sized.decode_workers, alone[1], each[1]


def _sharing(sized: Sized) -> bool:
    """Whether both pools stand on the same instances."""
    meeting = sized.meeting
    alone = meeting.prefill.usd_per_hour(sized.prefill_workers), meeting.decode.usd_per_hour(sized.decode_workers)
    return bills(sized) != alone


def _instances(sized: Sized) -> int:
    """Instances of a fleet whose pools share them."""
    hourly = sized.meeting.prefill.offer.usd_per_hour
    return round(sized.usd_per_hour / hourly) if hourly else 0


def batch_limit(seats: float) -> int:
    """A batch limit of so many seats, in eights; 0 leaves the engine's default."""
    return int(-(-seats // 8) * 8) if seats > 0 else 0


def short(candidate: Candidate, workers: int) -> str:
    shape = candidate.worker.parallelism
    return f"{workers}× {candidate.worker.accelerator.name}{'' if shape.accelerators == 1 else f' {shape}'}"


def power(worker: Worker, workers: int) -> float | None:
    """Data-sheet watts of the accelerators at work; None where the sheet has none."""
    return workers * worker.accelerators * worker.accelerator.tdp_w or None


def summed(values: Iterable[float | None]) -> float | None:
    """The sum, unknown where one of them is."""
    known = list(values)
    return None if any(value is None for value in known) else sum(value for value in known if value is not None)


def bills(sized: Sized) -> tuple[float, float]:
    """The bill of each pool; instances that both share are split by the accelerators each uses."""
    meeting, counts = sized.meeting, (sized.prefill_workers, sized.decode_workers)
    alone = meeting.prefill.usd_per_hour(counts[0]), meeting.decode.usd_per_hour(counts[1])
    if abs(sum(alone) - sized.usd_per_hour) < 1e-9 * sized.usd_per_hour:
        return alone
    used = counts[0] * meeting.prefill.worker.accelerators, counts[1] * meeting.decode.worker.accelerators
    first = sized.usd_per_hour * used[0] / sum(used)
    return first, sized.usd_per_hour - first
