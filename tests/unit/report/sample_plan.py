"""Hand-made plans: one heterogeneous, one that says not to disaggregate, one with hostile names."""

from __future__ import annotations

from dataclasses import replace

from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import LinkKind
from diptych.catalog.memory import TierKind
from diptych.design.axes import Role
from diptych.design.boundary import Codec, Overlap, Ownership, Placement, Side
from diptych.perf.estimate import Basis
from diptych.planner.plan import (
    Alternative,
    Answer,
    BoundaryPlan,
    CheckItem,
    Flip,
    Goal,
    Latency,
    MemberPlan,
    Option,
    ParetoPoint,
    Plan,
    PoolPlan,
    Question,
    RuleCount,
    Savings,
    Space,
    Trust,
    Verdict,
    WorkloadSummary,
)

FITTED = Trust(Basis.FITTED, 0.12)
TRANSFERRED = Trust(Basis.ROOFLINE, 0.35, outside_measured=True)


def member(accelerator: str, workers: int, tp: int, usd: float, fmt: Dtype = Dtype.FP8) -> MemberPlan:
    return MemberPlan(
        accelerator=accelerator,
        workers=workers,
        accelerators=workers * tp,
        instances=1,
        idle_accelerators=0,
        offer=f"{accelerator.lower()}.8x",
        provider="example",
        usd_per_hour=usd,
        weights=fmt,
        activations=fmt,
        kv=fmt,
        tp=tp,
        pp=1,
        ep=1,
        dp=1,
        engine="vllm",
        max_batch=256,
        max_batched_tokens=8192,
        residency=TierKind.HBM,
    )


def pool(role: Role, members: tuple[MemberPlan, ...], trust: Trust, utilisation: float = 0.81) -> PoolPlan:
    return PoolPlan(
        role=role,
        members=members,
        capacity=20 / utilisation,
        utilisation=utilisation,
        idle_share=1 - utilisation,
        batch=4.0 if role is Role.PREFILL else 61.0,
        step_seconds=0.31 if role is Role.PREFILL else 0.034,
        weight_bytes=70.6e9,
        kv_capacity=62e9,
        kv_bytes=18e9,
        kv_peak=26e9,
        power_w=2100.0,
        usd_per_hour=sum(m.usd_per_hour for m in members),
        trust=trust,
        memory_bytes=160e9,
    )


def latency(p50: float, trust: Trust = FITTED) -> Latency:
    return Latency(mean=p50 * 1.15, p50=p50, p90=p50 * 1.9, p99=p50 * 3.4, floor=p50 * 0.4, trust=trust)


BOUNDARY = BoundaryPlan(
    placement=Placement.DISAGGREGATED,
    local_below=0,
    link="rdma-400g",
    kind=LinkKind.INFINIBAND,
    bandwidth=50e9,
    limited_by="prefill NIC",
    utilisation=0.11,
    required_bandwidth=6.1e9,
    wire_bytes_mean=190e6,
    wire_bytes_p99=1.3e9,
    transfer_p90=0.014,
    exposed_p90=0.021,
    codec=Codec.QUANTISED,
    wire=Dtype.INT8,
    converts_at=Side.PREFILL,
    conversion_p90=0.003,
    ownership=Ownership.PUSH,
    overlap=Overlap.LAYERWISE,
    engine_support="vllm: NIXL connector, same dtype",
)


def option(
    label: str, pools: tuple[PoolPlan, ...], boundary: BoundaryPlan | None, heterogeneous: bool, scale: float = 1.0
) -> Option:
    usd = sum(p.usd_per_hour for p in pools)
    return Option(
        label=label,
        placement=boundary.placement if boundary else Placement.COLOCATED,
        heterogeneous=heterogeneous,
        rate=20.0,
        goodput=23.4,
        headroom=0.17,
        accelerators=sum(p.accelerators for p in pools),
        usd_per_hour=usd,
        usd_per_mtok_input=usd / 83.0,
        usd_per_mtok_output=usd / 15.2,
        usd_per_mtok_total=usd / 98.2,
        power_w=sum(p.power_w for p in pools),
        ttft=latency(0.62 * scale),
        ttft_decode=latency(0.68 * scale),
        tpot=latency(0.021 * scale, TRANSFERRED if heterogeneous else FITTED),
        e2e=latency(5.4 * scale),
        binding="tpot_p90",
        pools=pools,
        boundary=boundary,
        ttft_parts={"wait": 0.21, "prefill": 0.44, "conversion": 0.003, "transfer": 0.018, "first step": 0.036}
        if boundary
        else {"wait": 0.3, "prefill": 0.5},
    )


def heterogeneous_option() -> Option:
    return option(
        "2 × H100-SXM-80GB tp2 → 3 × H20-96GB tp4",
        (
            pool(Role.PREFILL, (member("H100-SXM-80GB", 2, 2, 13.9),), FITTED),
            pool(Role.DECODE, (member("H20-96GB", 3, 4, 21.6),), TRANSFERRED, 0.93),
        ),
        BOUNDARY,
        True,
    )


def disaggregated_option() -> Option:
    return option(
        "2 × H100-SXM-80GB tp2 → 3 × H100-SXM-80GB tp4",
        (
            pool(Role.PREFILL, (member("H100-SXM-80GB", 2, 2, 13.9),), FITTED),
            pool(Role.DECODE, (member("H100-SXM-80GB", 3, 4, 41.7),), FITTED, 0.6),
        ),
        replace(BOUNDARY, codec=Codec.RAW, wire=Dtype.FP8, converts_at=None),
        False,
        0.9,
    )


def colocated_option() -> Option:
    return option(
        "4 × H100-SXM-80GB tp4 colocated",
        (pool(Role.COLOCATED, (member("H100-SXM-80GB", 4, 4, 55.6),), FITTED, 0.7),),
        None,
        False,
        1.1,
    )


def pareto(best: Option) -> tuple[ParetoPoint, ...]:
    families = (
        (Placement.DISAGGREGATED, True, 1.0, "H100-SXM-80GB tp2 → H20-96GB tp4"),
        (Placement.DISAGGREGATED, False, 1.32, "H100-SXM-80GB tp2 → H100-SXM-80GB tp4"),
        (Placement.COLOCATED, False, 1.5, "H100-SXM-80GB tp4 colocated"),
    )
    return tuple(
        ParetoPoint(
            label=f"{label}, {step} workers",
            placement=placement,
            heterogeneous=heterogeneous,
            usd_per_hour=best.usd_per_hour * cost * (0.8 + 0.1 * step),
            usd_per_mtok_total=best.usd_per_mtok_total * cost * (0.8 + 0.1 * step),
            ttft=2.4 / (1 + 0.35 * step),
            tpot=0.060 / (1 + 0.22 * step) * (1 + 0.05 * cost),
            goodput=16.0 + 3.5 * step,
            meets_slo=step > 1,
        )
        for placement, heterogeneous, cost, label in families
        for step in range(1, 9)
    )


WORKLOAD = WorkloadSummary(
    name="azure2023_conv",
    source="Azure LLM inference trace 2023, conversation (CC-BY)",
    requests=19366,
    rate=20.0,
    arrival_cv=1.0,
    arrivals_measured=True,
    isl_mean=1154.7,
    isl_p50=1020.0,
    isl_p90=2460.0,
    isl_p99=4140.0,
    osl_mean=211.1,
    osl_p50=129.0,
    osl_p90=424.0,
    osl_p99=601.0,
    prefix_hit_rate=0.0,
    points=96,
    isl_histogram=tuple(
        (float(a), float(2 * a), s)
        for a, s in zip(
            (16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
            (0.01, 0.02, 0.05, 0.09, 0.13, 0.2, 0.3, 0.16, 0.04),
            strict=True,
        )
    ),
)

SPACE = Space(
    axes={"prefill designs": 3400, "decode designs": 3400, "boundaries": 3, "colocated designs": 6620000},
    cartesian=41_300_000,
    effective=1_180_000,
    sized=6_240,
    rules=(
        RuleCount(
            "nvlink-needs-one-server", "Two servers have no NVLink between them.", 21_000_000, "H100 → H20 over nvlink4"
        ),
        RuleCount(
            "engine-executes-format",
            "The engine has no kernel for this format here.",
            14_120_000,
            "A100 fp8 activations",
        ),
        RuleCount("weights-fit", "The weights do not fit the memory of one worker.", 5_000_000, "L4 tp1 bf16"),
    ),
    pruned=(
        RuleCount(
            "dominated-worker", "Another worker is at least as fast at every length and costs no more.", 1_100_000
        ),
        RuleCount("cost-bound", "Its least possible bill is above one already found.", 73_760),
    ),
)

CHECKLIST = (
    CheckItem("Length distributions measured?", "yes", "19,366 requests of azure2023_conv, kept as 96 points."),
    CheckItem("Is the P:D ratio within the budget?", "yes", "2P3D; pools are 81 % and 93 % busy."),
    CheckItem("Is the link sufficient?", "yes", "6.1 GB/s would do; the path gives 50 GB/s."),
    CheckItem(
        "Does the engine support this pair?",
        "partly",
        "vllm moves KV of one dtype only.",
        "Check the connector's release notes.",
    ),
    CheckItem("Precision mismatch covered?", "no", "int8 on the wire needs a cast at prefill.", "--wire fp8 avoids it"),
    CheckItem("What to fall back to?", "unknown", "No fallback was asked for.", "Keep the colocated fleet's manifest."),
)


FLIPS = (
    Flip("price:H20-96GB", "USD/h", 1.8, 3.34, 0.9, 7.2, "H100-SXM-80GB → H20-96GB", "H100-SXM-80GB disaggregated",
         "Above 3.34 USD/h for an H20 the homogeneous disaggregated fleet is cheaper."),
    Flip("bandwidth", "B/s", 50e9, 4.2e9, 1e9, 100e9, "H100-SXM-80GB → H20-96GB", "H100-SXM-80GB colocated",
         "Below 4.2 GB/s the transfer breaks the TTFT limit."),
    Flip("prompt length", "×", 1.0, None, 0.25, 4.0, "H100-SXM-80GB → H20-96GB", "H100-SXM-80GB → H20-96GB",
         "Between a quarter and four times the prompt length the answer stays."),
    Flip("prefix hit rate", "share", 0.0, 0.72, 0.0, 0.95, "H100-SXM-80GB → H20-96GB", "H100-SXM-80GB colocated",
         "Above 72 % prefix hits colocated is cheaper."),
)  # fmt: skip

UNMEASURED = (
    "H20-96GB was never measured. Why: its curves come from H100 and carry a band of ±35 %. "
    "Fix: diptych validate with your own rows"
)


def heterogeneous_plan() -> Plan:
    """Heterogeneity wins."""
    best, colocated, disaggregated = heterogeneous_option(), colocated_option(), disaggregated_option()
    third = replace(best, label="1 × H100-SXM-80GB tp4 → 3 × H20-96GB tp4", usd_per_hour=37.4)
    return Plan(
        question=Question(
            model="Llama-3.1-70B",
            workload=WORKLOAD,
            goal=Goal.RATE,
            slo="ttft_p90<2s, tpot_p90<50ms",
            prices="aws",
            prices_date="2026-11-20",
            budget_usd_per_hour=None,
            inventory=None,
            pins={"decode.accelerator": "H20-96GB"},
        ),
        verdict=Verdict(
            Answer.HETEROGENEOUS,
            "decode is bound by memory bandwidth, and an H20 gives 1.7 times the bandwidth per dollar",
            (
                Savings("do not disaggregate", colocated.label, 0.36, 0.36),
                Savings("homogeneous disaggregated", disaggregated.label, 0.31, 0.31),
            ),
        ),
        best=best,
        colocated=colocated,
        disaggregated=disaggregated,
        heterogeneous=best,
        alternatives=(
            Alternative(third, "prefill waits longer in one queue than in two", 1.9),
            Alternative(disaggregated, "an H100's FLOP idle during decode", 20.1),
            Alternative(colocated, "prefill chunks lengthen the decode step", 20.1),
        ),
        pareto=pareto(best),
        sensitivity=FLIPS,
        space=SPACE,
        checklist=CHECKLIST,
        assumptions=("Poisson arrivals at the trace's mean rate.", "Instances are rented whole."),
        warnings=(UNMEASURED,),
        versions={"diptych": "0.1.0", "catalog": "2026-11-29"},
    )  # fmt: skip


def colocated_plan() -> Plan:
    """Disaggregation does not pay."""
    plan = heterogeneous_plan()
    best = plan.colocated
    assert best is not None
    cheap = replace(best, usd_per_hour=30.1)
    return replace(
        plan,
        best=cheap,
        colocated=cheap,
        heterogeneous=plan.best,
        verdict=Verdict(
            Answer.DO_NOT_DISAGGREGATE,
            "prompts are too short to keep a prefill worker busy",
            (Savings("homogeneous disaggregated", "2 × H100", 0.18, 0.18),
             Savings("heterogeneous", plan.best.label, 0.04, 0.04)),
        ),
        alternatives=plan.alternatives[:2],
        warnings=(),
        sensitivity=(),
    )  # fmt: skip


def owned_plan() -> Plan:
    """The best use of what is owned: mixed prefill, a colocated pool beside the pair, no price, nothing sized."""
    plan = heterogeneous_plan()
    owned = [replace(member(name, 1, 1, 0.0), offer="owned", provider="owned") for name in ("A100-80GB", "L40S")]
    mixed = (owned[0], replace(owned[1], workers=4, weights=Dtype.BF16))
    pools = (
        pool(Role.PREFILL, mixed, FITTED),
        pool(Role.DECODE, (owned[0],), FITTED),
        pool(Role.COLOCATED, (owned[0],), FITTED),
    )
    best = option("owned", pools, BOUNDARY, True)
    return replace(
        plan,
        question=replace(
            plan.question, goal=Goal.INVENTORY, inventory={"A100-80GB": 4, "L40S": 4}, prices="", prices_date=""
        ),
        best=best,
        heterogeneous=best,
        pareto=tuple(replace(p, usd_per_hour=0.0, usd_per_mtok_total=0.0) for p in plan.pareto),
        space=replace(plan.space, sized=0),
    )


def hostile_plan() -> Plan:
    """Every name a user controls is an attack."""
    plan = heterogeneous_plan()
    attack = "</script><script>alert('x')</script><img src=x onerror=alert(1)>"
    return replace(
        plan,
        question=replace(plan.question, model=attack, prices=attack, pins={attack: attack},
                         workload=replace(plan.question.workload, name=attack, source=attack)),
        best=replace(plan.best, label=attack),
        warnings=(attack,),
        assumptions=(attack,),
    )  # fmt: skip
