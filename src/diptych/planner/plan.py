"""The answer: a `Plan` and its parts. Plain, frozen, readable as JSON and back.

Everything is in seconds, bytes, bytes/s, tokens, requests/s, watts and USD. A quantity that does not exist (no link in a
colocated fleet, no price in a budget-free inventory) is None, never NaN. `json_schema()` is the documentation of `plan.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import LinkKind
from diptych.catalog.memory import TierKind
from diptych.design.axes import Role
from diptych.design.boundary import Codec, Overlap, Ownership, Placement, Side
from diptych.errors import Finding, InvalidInput
from diptych.perf.estimate import Basis
from diptych.planner.notebook import notebook_html


class Answer(StrEnum):
    """What the plan recommends."""

    HETEROGENEOUS = "heterogeneous"
    HOMOGENEOUS_DISAGGREGATED = "homogeneous disaggregated"
    DO_NOT_DISAGGREGATE = "do not disaggregate"


class Goal(StrEnum):
    """What was asked: the cheapest fleet for a rate, the most goodput for a budget or for what is owned."""

    RATE = "rate"
    BUDGET = "budget"
    INVENTORY = "inventory"


@dataclass(frozen=True, slots=True)
class Trust:
    """How a number was obtained and how far it may be off: the truth lies within value·(1 ± band) in nine cases of ten."""

    basis: Basis
    band: float
    outside_measured: bool = False


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency over requests (s), its physical floor at p50 without any queue (s), and its trust."""

    mean: float
    p50: float
    p90: float
    p99: float
    floor: float
    trust: Trust


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """Equal workers of a pool. `instances` are rented whole, so `idle_accelerators` may be paid for and unused."""

    accelerator: str
    workers: int
    accelerators: int
    instances: int
    idle_accelerators: int
    offer: str
    provider: str
    usd_per_hour: float
    weights: Dtype
    activations: Dtype
    kv: Dtype
    tp: int
    pp: int
    ep: int
    dp: int
    engine: str
    max_batch: int
    max_batched_tokens: int
    residency: TierKind

    @property
    def label(self) -> str:
        """Short form: '3 × H100-SXM-80GB tp2 fp8 (kv fp8)'."""
        names = (("tp", self.tp), ("pp", self.pp), ("dp", self.dp), ("ep", self.ep))
        shape = "·".join(f"{name}{size}" for name, size in names if size > 1) or "tp1"
        formats = str(self.weights) if self.weights is self.activations else f"{self.weights}/{self.activations}"
        return f"{self.workers} × {self.accelerator} {shape} {formats} (kv {self.kv})"


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool at the planned rate.

    `capacity` is what the pool carries at the knee of the SLO (requests/s), `utilisation` the planned rate over it and
    `idle_share` the rest. Memory is per worker: `kv_capacity` what remains for KV, `kv_bytes` what is live on average,
    `kv_peak` with the transient copy of a handoff (source held until released, destination reserved), `memory_bytes` all HBM.
    """

    role: Role
    members: tuple[MemberPlan, ...]
    capacity: float
    utilisation: float
    idle_share: float
    batch: float
    step_seconds: float
    weight_bytes: float
    kv_capacity: float
    kv_bytes: float
    kv_peak: float
    power_w: float | None
    usd_per_hour: float
    trust: Trust
    memory_bytes: float = 0.0

    @property
    def workers(self) -> int:
        return sum(member.workers for member in self.members)

    @property
    def accelerators(self) -> int:
        return sum(member.accelerators for member in self.members)


@dataclass(frozen=True, slots=True)
class BoundaryPlan:
    """The handoff between the pools at the planned rate.

    `bandwidth` is of one worker's path and `limited_by` names its narrowest part.

    `required_bandwidth` is the least path bandwidth (bytes/s) at which this fleet still keeps the SLO;
    `transfer_p90` a transfer alone on the wire, `exposed_p90` the part that TTFT sees, queue for the link included.
    """

    placement: Placement
    local_below: int
    link: str
    kind: LinkKind
    bandwidth: float
    limited_by: str
    utilisation: float
    required_bandwidth: float
    wire_bytes_mean: float
    wire_bytes_p99: float
    transfer_p90: float
    exposed_p90: float
    codec: Codec
    wire: Dtype
    converts_at: Side | None
    conversion_p90: float
    ownership: Ownership
    overlap: Overlap
    engine_support: str


@dataclass(frozen=True, slots=True)
class Option:
    """A sized design with everything predicted about it.

    `ttft` ends when prefill's own first token can be sent (wait + prefill, plus the handoff when decode emits it);
    `ttft_decode` also waits for the handoff and the first decode step. `goodput` is the most requests/s this very fleet carries
    inside the SLO, `headroom` goodput over the planned rate less one. Costs per million tokens divide the whole bill.
    `ttft_parts` splits the mean of `ttft_decode` (s) by name, in order: wait, prefill, conversion, transfer, first step.
    """

    label: str
    placement: Placement
    heterogeneous: bool
    rate: float
    goodput: float
    headroom: float
    accelerators: int
    usd_per_hour: float
    usd_per_mtok_input: float
    usd_per_mtok_output: float
    usd_per_mtok_total: float
    power_w: float | None
    ttft: Latency
    ttft_decode: Latency
    tpot: Latency
    e2e: Latency
    binding: str
    pools: tuple[PoolPlan, ...]
    boundary: BoundaryPlan | None
    ttft_parts: Mapping[str, float] = field(default_factory=dict)

    def pool(self, role: Role) -> PoolPlan | None:
        return next((pool for pool in self.pools if pool.role is role), None)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A runner-up and why it is not the answer."""

    option: Option
    why_not: str
    usd_per_hour_more: float


@dataclass(frozen=True, slots=True)
class Savings:
    """The best plan beside one baseline: shares of the baseline's bill saved, per hour and per million tokens."""

    against: str
    baseline: str
    per_hour: float
    per_mtok: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer in one word and one sentence."""

    answer: Answer
    reason: str
    savings: tuple[Savings, ...]


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """One design that no other beats in cost, TTFT, TPOT and goodput together. Latencies are p90 in seconds."""

    label: str
    placement: Placement
    heterogeneous: bool
    usd_per_hour: float
    usd_per_mtok_total: float
    ttft: float
    tpot: float
    goodput: float
    meets_slo: bool


@dataclass(frozen=True, slots=True)
class Flip:
    """Where the answer changes when one input moves alone. `at` is None when it does not change inside [low, high].

    `axis` is one of 'price:<accelerator>', 'bandwidth', 'prompt length', 'prefix hit rate', 'rate'; `now` its present value.
    """

    axis: str
    unit: str
    now: float
    at: float | None
    low: float
    high: float
    before: str
    after: str
    sentence: str


@dataclass(frozen=True, slots=True)
class RuleCount:
    """How many designs one rule dropped, its sentence, and one of them."""

    rule: str
    sentence: str
    dropped: int
    example: str = ""


@dataclass(frozen=True, slots=True)
class Space:
    """The design space: the Cartesian product, what the rules of validity left, what was sized, what bounds dismissed.

    `cartesian` = Σ of `rules` + `effective`; `effective` = `sized` + Σ of `pruned`, both exactly.
    """

    axes: Mapping[str, int]
    cartesian: int
    effective: int
    sized: int
    rules: tuple[RuleCount, ...]
    pruned: tuple[RuleCount, ...]


@dataclass(frozen=True, slots=True)
class CheckItem:
    """One line of the operator's checklist, answered from the run. `status` is 'yes', 'partly', 'no' or 'unknown'."""

    question: str
    status: str
    detail: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """What was asked, in numbers. `isl_histogram` has rows (from, to, share of requests) in tokens."""

    name: str
    source: str
    requests: int
    rate: float
    arrival_cv: float
    arrivals_measured: bool
    isl_mean: float
    isl_p50: float
    isl_p90: float
    isl_p99: float
    osl_mean: float
    osl_p50: float
    osl_p90: float
    osl_p99: float
    prefix_hit_rate: float
    points: int
    isl_histogram: tuple[tuple[float, float, float], ...] = ()


class Fate(StrEnum):
    """What came of a finalist in simulation."""

    KEPT = "kept"
    CORRECTED = "corrected"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a latency over requests (s)."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class PromiseChecked:
    """One objective (s): its statistic predicted (None where the plan keeps no such one) and simulated, the share of requests
    within the limit, whether it holds."""

    objective: str
    predicted: float | None
    simulated: float | None
    share: float
    holds: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """A finalist, simulated: predictions beside what was seen, of the fleet as it was kept (or dropped).

    `planned` is its label before any correction, `reason` what was missed and what was done about it, `goodput` and `attainment`
    what the workload saw at the planned rate, `told` what limits the simulation.
    """

    planned: str
    label: str
    fate: Fate
    reason: str
    simulations: int
    planned_usd_per_hour: float
    usd_per_hour: float
    goodput: float
    attainment: float
    promises: tuple[PromiseChecked, ...]
    predicted: Mapping[str, Percentiles]
    simulated: Mapping[str, Percentiles]
    told: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """The finalists in simulation, in the order in which they were tried, each under `requests` of the workload's."""

    workload: str
    requests: int
    workload_requests: int
    seed: int
    simulations: int
    kept: int
    corrected: int
    dropped: int
    finalists: tuple[Checked, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """The inputs a plan answers, so that it can be asked again.

    `size_for` is the load at which the SLO must hold (average, trace, peak); None where the load is not known to swing.
    """

    model: str
    workload: WorkloadSummary
    goal: Goal
    slo: str
    prices: str
    prices_date: str
    budget_usd_per_hour: float | None
    inventory: Mapping[str, int] | None
    pins: Mapping[str, str]
    size_for: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer to a `Question`: the best option, the baselines beside it, and the reasons."""

    question: Question
    verdict: Verdict
    best: Option
    colocated: Option | None
    disaggregated: Option | None
    heterogeneous: Option | None
    alternatives: tuple[Alternative, ...]
    pareto: tuple[ParetoPoint, ...]
    sensitivity: tuple[Flip, ...]
    space: Space
    checklist: tuple[CheckItem, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    versions: Mapping[str, str]
    verification: Verification | None = None

    def to_dict(self) -> dict[str, Any]:
        """This plan as JSON-ready values; the shape is `json_schema()`."""
        value = _adapter().dump_python(self, mode="json")
        assert isinstance(value, dict)
        return value

    @classmethod
    def from_dict(cls, value: Any, where: str = "plan.json") -> Plan:
        """Read what `to_dict` wrote; raises `InvalidInput` naming every field that does not fit."""
        try:
            return _adapter().validate_python(value)
        except ValidationError as error:
            raise InvalidInput(_findings(error, where)) from None

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a `plan.json`, or the folder that holds one."""
        file = Path(path)
        file = file / "plan.json" if file.is_dir() else file
        if not file.is_file():
            raise InvalidInput(
                Finding(str(file), "there is no such plan", "a plan.json or the folder that --out wrote")
            )
        try:
            return _adapter().validate_json(file.read_bytes())
        except ValidationError as error:
            raise InvalidInput(_findings(error, str(file))) from None

    @property
    def headline(self) -> str:
        """One sentence: the fleet, its bill, and what it saves."""
        return f"{self.best.label}: {self.best.usd_per_hour:.2f} USD/h, {self.best.usd_per_mtok_total:.3g} USD/Mtok"

    def _repr_html_(self) -> str:
        return notebook_html(self)


def _findings(error: ValidationError, where: str) -> list[Finding]:
    return [Finding(f"{where}: {'.'.join(map(str, e['loc'])) or 'top'}", e["msg"]) for e in error.errors()]


def _adapter() -> TypeAdapter[Plan]:
    global _ADAPTER
    if _ADAPTER is None:
        _ADAPTER = TypeAdapter(Plan)
    return _ADAPTER


_ADAPTER: TypeAdapter[Plan] | None = None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `plan.json` (2020-12)."""
    schema = _adapter().json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
