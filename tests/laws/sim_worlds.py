"""Random worlds for the simulator's laws: small designs, traces, policies and faults that meet every branch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import affine_perf
import numpy as np
from hypothesis import strategies as st

from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link, LinkKind
from diptych.catalog.memory import MemoryTier, TierKind
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Boundary, Codec, Overlap, Ownership, Placement, Representation, Side
from diptych.design.design import Design, Member, Pool
from diptych.serving.admission import Admission
from diptych.serving.fallback import Fallback
from diptych.serving.ownership import Heartbeats
from diptych.serving.residency import Retention
from diptych.serving.router import Routing
from diptych.serving.scaling import Scaling, Signal
from diptych.simulator.demand import Requests
from diptych.simulator.faults import (
    Autoscale,
    Balance,
    Cancels,
    Change,
    LinkCorrupts,
    LinkSlow,
    Scale,
    Switch,
    WorkerDown,
)
from diptych.simulator.policy import Policy

PERF = affine_perf.AffinePerf()
HASH_TOKENS = 64
_SLOWED = {Role.PREFILL: 1.25, Role.DECODE: 1.7, Role.COLOCATED: 1.4}


@dataclass(frozen=True)
class World:
    """Everything that `simulate` is told."""

    design: Design
    requests: Requests
    policy: Policy
    faults: tuple[Change, ...] = ()


def link(bandwidth: float = 40e9) -> Link:
    return Link("law", LinkKind.INFINIBAND, bandwidth, 5e-6, 0.8, 1e5, 1e-7)


def worker(kv: Dtype = Dtype.BF16, engine: str = "vllm", **limits: int) -> Worker:
    return replace(affine_perf.worker(engine, **limits), precision=Precision(Dtype.BF16, Dtype.BF16, kv))


def colocated(count: int = 1, each: Worker | None = None) -> Design:
    return Design((Pool(Role.COLOCATED, (Member(each or worker(), count, 2.0),)),))


def apart(
    prefill: int, decode: int, boundary: Boundary, source: Worker | None = None, target: Worker | None = None
) -> Design:
    return Design(
        (
            Pool(Role.PREFILL, (Member(source or worker(), prefill, 2.0),)),
            Pool(Role.DECODE, (Member(target or worker(), decode, 1.0),)),
        ),
        boundary,
    )


def boundary(
    bandwidth: float = 40e9,
    ownership: Ownership = Ownership.PUSH,
    overlap: Overlap = Overlap.SERIAL,
    form: Representation | None = None,
    local_below: int = 0,
) -> Boundary:
    placement = Placement.CONDITIONAL if local_below else Placement.DISAGGREGATED
    form = form or Representation(Codec.RAW, Dtype.BF16)
    return Boundary(placement, link(bandwidth), form, ownership, overlap, local_below)


def poisson(count: int, rate: float, seed: int, isl: int = 400, osl: int = 40, hashes: bool = False) -> Requests:
    """Poisson arrivals, exponential lengths; with hashes, prompts share prefixes of a few families."""
    draw = np.random.default_rng(seed)
    arrival = np.cumsum(draw.exponential(1 / rate, count))
    prompts = np.maximum(draw.exponential(isl, count), 1).astype(np.int64)
    answers = np.maximum(draw.exponential(osl, count), 1).astype(np.int64)
    blocks = None
    if hashes:
        families = draw.integers(0, 6, count)
        depths = draw.integers(0, 10, count)
        blocks = tuple(
            tuple(f * 1000 + i if i < d else 100_000 + n * 100 + i for i in range(-(-int(p) // HASH_TOKENS)))
            for n, (f, d, p) in enumerate(zip(families, depths, prompts, strict=True))
        )
    return Requests(arrival, prompts, answers, None, blocks, HASH_TOKENS, "law")


_FORMS = (
    (Dtype.BF16, Dtype.BF16, Representation(Codec.RAW, Dtype.BF16)),
    (Dtype.BF16, Dtype.FP8, Representation(Codec.QUANTISED, Dtype.FP8, Side.PREFILL)),
    (Dtype.BF16, Dtype.FP8, Representation(Codec.QUANTISED, Dtype.FP8, Side.TRANSFER)),
    (Dtype.FP8, Dtype.BF16, Representation(Codec.CAST, Dtype.FP8, Side.DECODE)),
)
_TIERS = (
    MemoryTier("dram", TierKind.DRAM, 6e8, 20e9, 20e9, 1e-5),
    MemoryTier("nvme", TierKind.NVME, 2e9, 2e9, 1e9, 1e-4),
)


@st.composite
def designs(draw: st.DrawFn) -> Design:
    engine = draw(st.sampled_from(["vllm", "sglang"]))
    limits = {"max_batched_tokens": draw(st.sampled_from([256, 2048])), "max_batch": draw(st.sampled_from([4, 64]))}
    if draw(st.booleans()):
        return colocated(draw(st.integers(1, 3)), worker(engine=engine, **limits))
    made, used, form = draw(st.sampled_from(_FORMS))
    ownership = draw(st.sampled_from(list(Ownership)))
    overlap = draw(st.sampled_from(list(Overlap))) if ownership is Ownership.PUSH else Overlap.SERIAL
    path = boundary(
        draw(st.sampled_from([5e7, 2e9, 40e9])), ownership, overlap, form, draw(st.sampled_from([0, 0, 200]))
    )
    source, target = worker(made, engine, **limits), worker(used, engine, **limits)
    source = replace(source, parallelism=Parallelism(pp=draw(st.sampled_from([1, 1, 2, 3]))))
    return apart(draw(st.integers(1, 3)), draw(st.integers(1, 3)), path, source, target)


@st.composite
def policies(draw: st.DrawFn, tiers: bool) -> Policy:
    slowed = draw(st.sampled_from([{}, {}, _SLOWED]))  # slow decodes make pulls wait longer: no short lease then
    return Policy(
        prefill_routing=draw(st.sampled_from(list(Routing))),
        decode_routing=draw(st.sampled_from(list(Routing))),
        shortest_first=draw(st.booleans()),
        chunked=draw(st.booleans()),
        reserve=draw(st.booleans()),
        per_chunk=draw(st.booleans()),
        tiers=_TIERS if tiers else (),
        retention=draw(st.sampled_from(list(Retention))),
        handoff_timeout=draw(st.sampled_from([5.0, 300.0])),
        detection=draw(st.sampled_from([0.0, 0.5])),
        start_up=0.7,
        lease=30.0 if slowed else draw(st.sampled_from([2.0, 30.0])),
        heartbeat=1.0,
        heartbeat_from=draw(st.sampled_from(list(Heartbeats))),
        cancel_twin=draw(st.booleans()),
        admission=draw(st.sampled_from([None, None, Admission(ttft=0.5, tpot=0.02, decode_seconds=1.0)])),
        fallback=Fallback(draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 3)), draw(st.integers(0, 2))),
        instances=draw(st.sampled_from([{}, {}, {"": 2}])),
        fabric=draw(st.sampled_from([None, None, 1e9])),
        kv_blocks=draw(st.sampled_from([260, 400, 5000])),
        entry=draw(st.sampled_from([0.0, 0.0, 0.003])),
        slowed=slowed,
    )


@st.composite
def changes(draw: st.DrawFn, design: Design) -> tuple[Change, ...]:
    roles = [pool.role for pool in design.pools]
    counts = {pool.role: pool.count for pool in design.pools}
    found: list[Change] = []
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.floats(0, 8).map(lambda t: round(t, 3)))
        seconds = draw(st.sampled_from([0.3, 2.0, float("inf")]))
        role = draw(st.sampled_from(roles))
        kind = draw(st.integers(0, 7))
        if kind == 0:
            index = draw(st.one_of(st.none(), st.integers(0, counts[role] - 1)))
            found.append(WorkerDown(role, index, at, seconds))
        elif kind == 1 and design.boundary is not None:
            found.append(LinkSlow(draw(st.sampled_from([0.0, 0.1])), at, seconds))
        elif kind == 4:
            share, within = draw(st.sampled_from([0.05, 0.5, 1.0])), draw(st.sampled_from([0.02, 0.5, 5.0]))
            found.append(Cancels(share, within, draw(st.sampled_from([0.0, at])), seconds))
        elif kind == 5 and design.boundary is not None:
            ends = draw(st.sampled_from([(None, None), (0, None), (None, 0)]))
            found.append(LinkCorrupts(draw(st.sampled_from([0.1, 0.7])), at, seconds, *ends))
        elif kind == 2:
            found.append(Scale(role, draw(st.sampled_from([-1, 1, 2])), at))
        elif kind == 3 and design.boundary is not None:
            found.append(Switch(role, next(other for other in roles if other is not role), at))
        elif kind == 6:
            low, high = draw(st.sampled_from([(0.1, 0.5), (0.3, 1.0)]))
            signal, cooldown = draw(st.sampled_from(list(Signal))), draw(st.sampled_from([0.0, 1.5]))
            found.append(Autoscale(role, Scaling(signal, low, high, 1, 4, 0.5, cooldown)))
        elif kind == 7 and design.boundary is not None:
            found.append(Balance(Scaling(draw(st.sampled_from(list(Signal))), 0.2, 0.6, 1, 1, 0.7, 1.0)))
    return tuple(found)


@st.composite
def worlds(draw: st.DrawFn, faults: bool = True) -> World:
    design = draw(designs())
    hashes = draw(st.booleans())
    requests = poisson(
        draw(st.integers(1, 120)),
        draw(st.sampled_from([5.0, 40.0, 200.0])),
        draw(st.integers(0, 10_000)),
        draw(st.sampled_from([60, 400])),
        draw(st.sampled_from([3, 60])),
        hashes,
    )
    policy = draw(policies(hashes and draw(st.booleans())))
    if design.boundary is not None and design.boundary.ownership is Ownership.PULL:
        policy = replace(policy, per_chunk=False)
    return World(design, requests, policy, draw(changes(design)) if faults else ())
