"""The handoff of a sized fleet as the plan shows it: the path and its use, the wire, what it takes, which engine does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from diptych.catalog.interconnect import Link, LinkKind
from diptych.design.boundary import Ownership
from diptych.design.kv_rules import shared_engines
from diptych.engines.engine import READ, Engine
from diptych.engines.objections import objections
from diptych.perf.transfer import LinkLoad
from diptych.planner.enumerate import Candidate
from diptych.planner.goodput import most
from diptych.planner.meeting import Meeting
from diptych.planner.plan import BoundaryPlan


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
    """The stock engine that serves this pair, or what the one nearest to it has against it: what `deploy` would say too."""
    prefill, decode = meeting.prefill.worker, meeting.decode.worker
    mine, theirs = (worker.engine.partition("-")[0] for worker in (prefill, decode))
    if mine != theirs:
        return f"no stock engine; {mine} and {theirs} share no connector"
    shared = shared_engines(prefill.accelerator, decode.accelerator)
    found = {
        engine: list(objections(prefill, decode, meeting.boundary, engine))
        for engine in (Engine.VLLM, Engine.SGLANG)
        if str(engine) in shared
    }
    if not found:
        none = "" if shared else "; the two accelerators share no engine"
        return f"no stock engine that diptych deploy writes for serves both accelerators{none}"
    engine = min(found, key=lambda engine: (len(found[engine]), str(engine) != mine))
    if found[engine]:
        more = f", and {len(found[engine]) - 1} more" if len(found[engine]) > 1 else ""
        return f"no stock engine; {engine} {READ[engine]}: {found[engine][0].sentence}{more}"
    how = "pull" if meeting.boundary.ownership is Ownership.PULL else "push"
    vendors = {prefill.accelerator.vendor, decode.accelerator.vendor}
    crossing = ", experimental across vendors" if len(vendors) > 1 else ""
    return f"stock {engine} {READ[engine]} ({how}{crossing})"
