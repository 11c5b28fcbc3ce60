"""A simulation's result as one document: what `summary.json` holds, what the terminal, the page and `compare` show.

Plain, frozen, readable as JSON and back. Seconds, bytes, bytes/s, tokens, requests/s, joules, USD; what does not exist is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from diptych.catalog.catalog import Catalog
from diptych.design.axes import Role
from diptych.design.design import Pool
from diptych.design.text import format_design
from diptych.errors import Finding, InvalidInput
from diptych.metrics.measurements import Floats
from diptych.metrics.summary import Spread
from diptych.planner.judge import Estimate, Judged
from diptych.planner.plan import Option
from diptych.units import HOUR

LATENCIES = ("ttft_prefill", "ttft", "tpot", "itl", "e2e")
Number = float | None


@dataclass(frozen=True, slots=True)
class Latencies:
    """A latency over requests (s)."""

    mean: Number
    p50: Number
    p90: Number
    p95: Number
    p99: Number
    max: Number


@dataclass(frozen=True, slots=True)
class Stage:
    """Seconds of one stage over finished requests; `share` of the mean end-to-end latency."""

    mean: Number
    p50: Number
    p90: Number
    p99: Number
    share: Number


@dataclass(frozen=True, slots=True)
class Promise:
    """An objective, its statistic as seen (s), the share of requests within its limit, whether it holds."""

    objective: str
    seen: Number
    share: Number
    holds: bool


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """A pool over the run. `queue` and `running` are requests, `kv` shares of the blocks; `busy` the share of time in steps."""

    role: Role
    label: str
    workers: int
    accelerators: int
    busy: Number
    queue_mean: Number
    queue_max: Number
    running_mean: Number
    running_max: Number
    kv_mean: Number
    kv_max: Number
    preemptions: int
    steps: int
    usd: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class LinkSeen:
    """The handoffs of a run: bytes in all and per request handed over; the mean and the busiest port's use of its bandwidth."""

    link: str
    bytes: int
    bytes_per_request: Number
    use_mean: float
    use_max: float
    in_flight_max: Number


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the plan said of the same design: latencies at its rate (s), goodput (requests/s), USD per hour."""

    label: str
    rate: float
    goodput: float
    usd_per_hour: float
    latencies: Mapping[str, Latencies]


@dataclass(frozen=True, slots=True)
class Simulated:
    """A whole simulation. `told` is what limits the result: saturation, extrapolation, what bound; never empty in silence.

    Two definitions of TTFT: `ttft_prefill` ends when prefill has computed the first token, `ttft` when the decode side can send
    it: conversion, transfer and the wait for a place in a batch included.
    """

    kind: str
    name: str
    model: str
    design: str
    workload: str
    source: str
    slo: str
    seed: int
    faults: tuple[str, ...]
    policy: Mapping[str, str]
    concurrency: int | None
    arrived: int
    finished: int
    refused: int
    retries: int
    duration: float
    offered: float
    request_rate: float
    output_rate: float
    goodput: float
    attainment: float
    holds: bool
    promises: tuple[Promise, ...]
    latencies: Mapping[str, Latencies]
    stages: Mapping[str, Stage]
    pools: tuple[PoolSeen, ...]
    link: LinkSeen | None
    accelerators: int
    usd: float
    usd_per_hour: float
    usd_per_mtok_output: Number
    usd_per_mtok_total: Number
    energy_j: float
    joule_per_output_token: Number
    estimates: tuple[Estimate, ...]
    told: tuple[str, ...]
    predicted: Predicted | None = None
    cancelled: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """This result as JSON-ready values."""
        value = _ADAPTER.dump_python(self, mode="json")
        assert isinstance(value, dict)
        return value

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "summary.json") -> Simulated:
        """Read what `to_dict` wrote; raises `InvalidInput` naming every field that does not fit."""
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            places = [(".".join(map(str, e["loc"])) or "top", e["msg"]) for e in error.errors()]
            raise InvalidInput([Finding(f"{where}: {place}", message) for place, message in places]) from None

    @classmethod
    def load(cls, path: Path) -> Simulated:
        """Read a `summary.json`, or the folder that holds one."""
        file = path / "summary.json" if path.is_dir() else path
        if not file.is_file():
            raise InvalidInput(Finding(str(file), "there is no such simulation", "the folder that --out wrote"))
        return cls.from_json(file.read_bytes(), str(file))


_ADAPTER: TypeAdapter[Simulated] = TypeAdapter(Simulated)


def simulated(
    judged: Judged,
    catalog: Catalog,
    *,
    name: str = "",
    faults: Sequence[str] = (),
    policy: Mapping[str, str] | None = None,
    concurrency: int | None = None,
    predicted: Option | None = None,
) -> Simulated:
    """The document of a judged run. `faults` and `policy` are told as they were given."""
    run, summary, design = judged.run, judged.summary, judged.design
    hours = run.duration / HOUR
    tokens = judged.tokens
    return Simulated(
        kind="simulation",
        name=name or run.name,
        model=design.pools[0].members[0].worker.model.name,
        design=format_design(design, catalog),
        workload=judged.demand.name,
        source=judged.demand.source,
        slo=str(judged.slo) if judged.slo.objectives else "",
        seed=run.seed,
        faults=tuple(faults),
        policy=dict(policy or {}),
        concurrency=concurrency,
        arrived=run.arrived,
        finished=summary.finished,
        refused=summary.refused,
        retries=summary.retries,
        duration=run.duration,
        offered=judged.demand.rate,
        request_rate=summary.request_rate,
        output_rate=summary.output_rate,
        goodput=summary.goodput,
        attainment=summary.attainment,
        holds=judged.holds,
        promises=tuple(Promise(k.objective, _number(k.seen), _number(k.share), k.holds) for k in summary.kept),
        latencies={metric: _latencies(getattr(summary, metric)) for metric in LATENCIES},
        stages=_stages(judged.spreads),
        pools=tuple(_pool(judged, pool) for pool in design.pools),
        link=_link(judged),
        accelerators=design.accelerators,
        usd=summary.usd,
        usd_per_hour=summary.usd / hours if hours else 0.0,
        usd_per_mtok_output=_number(summary.usd_per_million_output) if summary.usd else None,
        usd_per_mtok_total=summary.usd / tokens * 1e6 if summary.usd and tokens else None,
        energy_j=summary.energy,
        joule_per_output_token=_number(summary.joule_per_output),
        estimates=judged.estimates,
        told=judged.told,
        predicted=_predicted(predicted) if predicted is not None else None,
        cancelled=summary.cancelled,
        counts=dict(run.counts),
        versions={name: metadata.version(name) for name in ("diptych", "numpy")},
    )


def _number(value: float) -> Number:
    return float(value) if math.isfinite(value) else None


def _latencies(spread: Spread) -> Latencies:
    return Latencies(*(_number(getattr(spread, name)) for name in ("mean", "p50", "p90", "p95", "p99", "max")))


def _stages(spreads: Mapping[str, Spread]) -> dict[str, Stage]:
    total = sum(spread.mean for spread in spreads.values())
    return {
        name: Stage(*map(_number, (s.mean, s.p50, s.p90, s.p99, s.mean / total if total else math.nan)))
        for name, s in spreads.items()
    }


def _pool(judged: Judged, pool: Pool) -> PoolSeen:
    """A pool with the workers that scaling gave it."""
    run, role = judged.run, str(pool.role)
    mine = [worker for worker in run.workers if worker.role == role]
    paid = sum(worker.seconds for worker in mine)
    queue, running, kv = (
        run.series.values.get(f"{role}_{name}", np.zeros(0)) for name in ("queue", "running", "kv_hbm")
    )
    return PoolSeen(
        role=pool.role,
        label=" + ".join(f"{m.count} × {m.worker.accelerator.name} {m.worker.parallelism}" for m in pool.members),
        workers=len(mine),
        accelerators=sum(worker.accelerators for worker in mine),
        busy=sum(worker.busy for worker in mine) / paid if paid else None,
        queue_mean=_mean(queue),
        queue_max=_most(queue),
        running_mean=_mean(running),
        running_max=_most(running),
        kv_mean=_mean(kv),
        kv_max=_most(kv),
        preemptions=sum(worker.preemptions for worker in mine),
        steps=sum(worker.steps for worker in mine),
        usd=sum(worker.usd for worker in mine),
        energy_j=sum(worker.energy for worker in mine),
    )


def _mean(values: Floats) -> Number:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None


def _most(values: Floats) -> Number:
    values = values[~np.isnan(values)]
    return float(values.max()) if len(values) else None


def _link(judged: Judged) -> LinkSeen | None:
    boundary, run = judged.design.boundary, judged.run
    if boundary is None:
        return None
    out = [link for link in run.links if link.name.endswith("out")]
    duration = max(run.duration, 1e-12)
    uses = [link.bytes / (link.bandwidth * duration) for link in run.links] or [0.0]
    handed = judged.handed
    total = sum(link.bytes for link in out)
    flight = run.series.values.get("kv_in_flight", np.zeros(0))
    sides = [sum(member.count for member in pool.members) for pool in judged.design.pools]
    mean = sum(uses) / max(sum(sides), 1)
    return LinkSeen(boundary.link.name, total, total / handed if handed else None, mean, max(uses), _most(flight))


def _predicted(option: Option) -> Predicted:
    """The plan's `ttft` ends with prefill and the handoff, before decode's first step; its `ttft_decode` after it."""
    named = {"ttft_prefill": None, "ttft": option.ttft, "tpot": option.tpot, "e2e": option.e2e}
    latencies = {
        name: Latencies(said.mean, said.p50, said.p90, None, said.p99, None)
        for name, said in named.items()
        if said is not None
    }
    return Predicted(option.label, option.rate, option.goodput, option.usd_per_hour, latencies)
