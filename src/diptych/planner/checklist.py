"""The operator's checklist, answered from the run."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.design.axes import Role
from diptych.design.boundary import Codec, Overlap, Ownership
from diptych.perf.estimate import Basis
from diptych.planner.ask import Ask
from diptych.planner.plan import BoundaryPlan, CheckItem, Option
from diptych.planner.rushes import Sizing
from diptych.planner.verdict import why
from diptych.units import format_bandwidth, format_bytes, format_seconds, format_usd


def checklist(ask: Ask, best: Option, fallback: Option | None) -> tuple[CheckItem, ...]:
    """Every question an operator asks before building the fleet."""
    return tuple(_items(ask, best, fallback))


def _items(ask: Ask, best: Option, fallback: Option | None) -> Iterator[CheckItem]:
    yield _lengths(ask)
    yield _arrivals(ask)
    yield _budget(ask, best)
    yield _balance(best)
    yield _memory(best)
    if best.boundary is not None:
        yield _link(best.boundary)
        yield _engine(best.boundary)
        yield _ownership(ask, best.boundary)
        yield _precision(best, best.boundary)
    yield _trust(best)
    yield _quality(best)
    yield _monitor(best)
    yield _fallback(best, fallback)


def _lengths(ask: Ask) -> CheckItem:
    workload = ask.workload
    measured = workload.requests > 0
    return CheckItem(
        "Are the length distributions measured?",
        "yes" if measured else "no",
        f"{workload.requests:,} requests of {workload.name}"
        if measured
        else f"{workload.name} is a preset, not a trace",
        "" if measured else "plan again on a trace of your own; lengths decide the ratio of the pools",
    )


def _arrivals(ask: Ask) -> CheckItem:
    arrivals = ask.workload.arrivals
    detail = f"coefficient of variation of the gaps {arrivals.cv:.2g}, busiest minute {arrivals.peak_to_mean:.2g} × the average"
    if not arrivals.measured:
        return CheckItem(
            "Are arrivals measured?", "no", f"assumed: {detail}", "measure timestamps before trusting tails"
        )
    swings = ask.size_for is Sizing.AVERAGE and arrivals.peak_to_mean >= 1.5
    return CheckItem(
        "Are arrivals measured?",
        "partly" if swings else "yes",
        f"{detail}; sized for the {_SIZED[ask.size_for]}",
        "plan with --size-for trace to hold the SLO through the rushes" if swings else "",
    )


_SIZED = {
    Sizing.AVERAGE: "average rate",
    Sizing.TRACE: "whole trace, rushes included",
    Sizing.PEAK: "busiest step of the trace",
}


def _budget(ask: Ask, best: Option) -> CheckItem:
    title, bill = "Is it within the budget?", format_usd(best.usd_per_hour)
    if ask.budget is None:
        told = f"the bill is {bill} USD/h" if best.usd_per_hour else "no prices were given, so the bill is unknown"
        return CheckItem(title, "unknown", f"no budget was given; {told}")
    status = "yes" if best.usd_per_hour <= ask.budget * (1 + 1e-9) else "no"
    return CheckItem(title, status, f"{bill} of {format_usd(ask.budget)} USD/h")


def _balance(best: Option) -> CheckItem:
    shares = ", ".join(f"{pool.role} {pool.idle_share:.0%} idle" for pool in best.pools)
    ratio = ":".join(str(pool.workers) for pool in best.pools)
    idle = max(pool.idle_share for pool in best.pools)
    return CheckItem(
        "Are the pools in balance?",
        "yes" if idle < 0.35 else "partly",
        f"{ratio} workers; at the knee of the SLO {shares}",
        "" if idle < 0.35 else "whole workers and instances round up; a higher rate uses them better",
    )


def _memory(best: Option) -> CheckItem:
    pool = max(best.pools, key=lambda p: p.kv_peak / max(p.kv_capacity, 1.0))
    share = pool.kv_peak / max(pool.kv_capacity, 1.0)
    return CheckItem(
        "Does KV fit with its transient peak?",
        "yes" if share <= 0.95 else "partly",
        f"{pool.role} peaks at {format_bytes(pool.kv_peak)} of {format_bytes(pool.kv_capacity)} per worker ({share:.0%})",
        "" if share <= 0.95 else "cap the sequences per worker as planned; admission must count reserved blocks",
    )


def _link(boundary: BoundaryPlan) -> CheckItem:
    spare = boundary.bandwidth / max(boundary.required_bandwidth, 1e-9)
    path = f"{boundary.link}: {format_bandwidth(boundary.bandwidth)} per path ({boundary.limited_by})"
    return CheckItem(
        "Is the link sufficient?",
        "yes" if spare >= 1.2 else "partly",
        f"{path}, {boundary.utilisation:.0%} busy; {format_bandwidth(boundary.required_bandwidth)} would do",
        "" if spare >= 1.2 else "measure the achieved bandwidth between the two instance types first",
    )


def _engine(boundary: BoundaryPlan) -> CheckItem:
    stock = boundary.engine_support.startswith("stock")
    experimental = "experimental" in boundary.engine_support
    return CheckItem(
        "Do the engines support this pair?",
        "no" if not stock else "partly" if experimental else "yes",
        boundary.engine_support,
        ""
        if stock
        else "diptych deploy refuses this pair: plan with --engine vllm@0.33, or carry it by diptych's own connector",
    )


def _ownership(ask: Ask, boundary: BoundaryPlan) -> CheckItem:
    hits = ask.lengths.hit_rate
    if boundary.ownership is Ownership.PULL:
        fits = "decode asks only for the blocks it lacks, so a prefix cached there is not sent again"
        return CheckItem("Does push or pull fit the prefix cache?", "yes", f"pull; {fits} (hit rate {hits:.0%})")
    streamed = " layer by layer" if boundary.overlap is Overlap.LAYERWISE else ""
    status = "partly" if hits > 0.05 else "yes"
    return CheckItem(
        "Does push or pull fit the prefix cache?",
        status,
        f"push{streamed}; prefill sends all of a prompt's KV, cached on the decode side or not (hit rate {hits:.0%})",
        "keep prefixes on the prefill side, or pull" if status == "partly" else "",
    )


def _precision(best: Option, boundary: BoundaryPlan) -> CheckItem:
    made, used = (pool.members[0].kv for pool in best.pools if pool.role is not Role.COLOCATED)
    title = "Is a precision mismatch covered?"
    if boundary.codec is Codec.RAW:
        return CheckItem(title, "yes", f"{made} KV on both sides and on the wire; nothing is converted")
    return CheckItem(
        title,
        "yes",
        f"{made} → {boundary.wire} on the wire → {used}, converted at {boundary.converts_at}; "
        f"{format_seconds(boundary.conversion_p90)} of TTFT is charged for it",
        "carry scales with the blocks and compare formats by meaning at the handshake",
    )


def _trust(best: Option) -> CheckItem:
    trust = best.ttft_decode.trust
    detail = f"{trust.basis}, within ±{trust.band:.0%} in nine cases of ten"
    if trust.outside_measured:
        detail += "; some lengths lie outside what was measured"
    weak = trust.basis is Basis.ROOFLINE or trust.outside_measured
    return CheckItem(
        "Are the times measured on these accelerators?",
        "partly" if weak else "yes",
        detail,
        "run one worker of each pool and feed the result to `diptych validate`" if weak else "",
    )


def _quality(best: Option) -> CheckItem:
    formats = sorted({str(member.weights) for pool in best.pools for member in pool.members})
    narrow = any(member.weights.bytes < 2 for pool in best.pools for member in pool.members)
    return CheckItem(
        "Is the quality of the formats checked?",
        "unknown" if narrow else "yes",
        f"weights in {', '.join(formats)}",
        "evaluate the quantised weights on your own tasks before rollout" if narrow else "",
    )


def _monitor(best: Option) -> CheckItem:
    watch = ["queue before each role", "KV blocks in use"]
    if best.boundary is not None:
        watch += ["transfer seconds and failures", "blocks pinned on the prefill side"]
    return CheckItem(
        "What is to be monitored?",
        "yes",
        f"{why(best.binding)} breaks first, at {best.goodput:.3g} requests/s",
        ", ".join(watch),
    )


def _fallback(best: Option, fallback: Option | None) -> CheckItem:
    title = "What to fall back to?"
    if best.boundary is None:
        return CheckItem(title, "yes", "colocated workers need no peer; shed load above the knee")
    if fallback is None:
        return CheckItem(title, "no", "no colocated fleet keeps this SLO", "shed load when the handoff fails")
    priced = f" at {format_usd(fallback.usd_per_hour)} USD/h" if fallback.usd_per_hour else ""
    lasting = f"{fallback.label}{priced}"
    return CheckItem(title, "yes", f"prefill on the decode side while the handoff fails; for good: {lasting}")
