"""Splitwise's pool sizing (ISCA 2024, section VI-B): BLOOM-176B on DGX machines of one power budget, the Azure traces.

Which split of 40 DGX-H100's worth of power serves most while nine SLOs hold? The paper answers with its simulator on a grid of
five machines and ten requests/s. Two models of time stand here side by side: `published`, the lookups of that simulator over the
measured table (decode looks its time up by sequences where the table counts prompt tokens, so a batch costs nothing), and
`measured`, the same table with decode as a + b·B + c·S. Its mixed pool, which lets either pool help the other, is not modelled.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link, LinkKind
from diptych.catalog.model import Attention, LayerGroup, Mlp, Model
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Boundary, Codec, Overlap, Ownership, Placement, Representation
from diptych.design.design import Design, Member, Pool
from diptych.metrics.measurements import RequestColumns
from diptych.perf.estimate import Basis, Timing
from diptych.perf.kernel_table import Line
from diptych.perf.measured import MeasuredTable, Measurement
from diptych.perf.model import PerfModel
from diptych.simulator.demand import Requests
from diptych.simulator.policy import Policy
from diptych.simulator.simulate import simulate
from diptych.workload.load import load_workload

DATA = Path(__file__).parents[1] / "data" / "measured" / "splitwise_perf_model.csv.gz"
CATALOG = Catalog.load()
BLOOM = Model("BLOOM-176B", 14336, 250880, (LayerGroup(70, Attention(112, 112, 128, 128), Mlp(57344, gated=False)),))
FP16 = Precision(Dtype.FP16, Dtype.FP16, Dtype.FP16)
A100, H100 = CATALOG.accelerator("A100"), CATALOG.accelerator("H100")
NAMES = {A100.name: "a100-80gb", H100.name: "h100-80gb"}
KV_TOKENS = int(
    (8 * 80e9 - 2 * 176e9) / float(BLOOM.kv_bytes(1, Dtype.FP16))
)  # its memory: what weights leave of 640 GB
LIMITS = {"ttft": (2.0, 3.0, 6.0), "tpot": (1.25, 1.5, 5.0), "e2e": (1.25, 1.5, 5.0)}  # Table VI, p50 p90 p99
SECONDS, STEP, HIGHEST = 40.0, 10, 250  # of a Poisson trace; requests/s


@cache
def rows() -> tuple[Mapping[str, str], ...]:
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        return tuple(csv.DictReader(lines))


def runs(model: str, hardware: str, tp: str = "8") -> list[Measurement]:
    """Measured runs of one worker, in seconds."""
    return [
        Measurement(
            float(row["prompt_size"]), float(row["batch_size"]), float(row["token_size"]),
            float(row["prompt_time"]) / 1e3, float(row["token_time"]) / 1e3,
        )
        for row in rows()
        if (row["model"], row["hardware"], row["tensor_parallel"]) == (model, hardware, tp)
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Lookups:
    """Medians over prompt tokens of the batch, as splitwise-sim looks them up; decode by sequences, whatever their context."""

    prompts: Line
    tokens: Line

    @classmethod
    def of(cls, measured: Iterable[Measurement]) -> Lookups:
        by_tokens: dict[float, list[Measurement]] = {}
        for run in measured:
            by_tokens.setdefault(run.prompt * run.batch, []).append(run)
        sizes = sorted(by_tokens)

        def medians(value: Callable[[Measurement], float]) -> Line:
            return Line(np.array(sizes), np.array([np.median([value(run) for run in by_tokens[s]]) for s in sizes]))

        return cls(medians(lambda run: run.prefill), medians(lambda run: run.step))

    def prefill(self, worker: Worker, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        tokens, _, batch = np.broadcast_arrays(tokens, past, batch)
        return _timing(self.prompts.at(tokens * batch))

    def decode(self, worker: Worker, batch: Any, context: Any) -> Timing:
        return _timing(self.tokens.at(np.broadcast_arrays(batch, context)[0]))

    def mixed(self, worker: Worker, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        tokens = np.broadcast_arrays(tokens, past, batch, context)[0]
        return _timing(1.1 * self.prompts.at(tokens))


def _timing(seconds: Any) -> Timing:
    return Timing(seconds, np.zeros_like(seconds), Basis.MEASURED, 0.05)


@dataclass(frozen=True, eq=False)
class ByAccelerator:
    """The table of a worker's accelerator."""

    of: Mapping[str, PerfModel]

    def prefill(self, worker: Worker, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        return self.of[worker.accelerator.name].prefill(worker, tokens, past, batch)

    def decode(self, worker: Worker, batch: Any, context: Any) -> Timing:
        return self.of[worker.accelerator.name].decode(worker, batch, context)

    def mixed(self, worker: Worker, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        return self.of[worker.accelerator.name].mixed(worker, tokens, past, batch, context)


@cache
def perf(kind: str) -> ByAccelerator:
    """`published` or `measured`."""
    make = Lookups.of if kind == "published" else MeasuredTable.fit
    return ByAccelerator({name: make(runs("bloom-176b", hardware)) for name, hardware in NAMES.items()})


@dataclass(frozen=True)
class Kind:
    """A Splitwise design: its machines, and how many decode beside `prefill` prefill machines for the same power."""

    name: str
    prefill: Accelerator
    decode: Accelerator
    rest: Callable[[int], int]
    grid: tuple[int, ...]


H_GRID = tuple(range(5, 40, 5))
KINDS = (
    Kind("AA", A100, A100, lambda prefill: 70 - prefill, tuple(range(5, 70, 5))),
    Kind("HH", H100, H100, lambda prefill: 40 - prefill, H_GRID),
    Kind("HHcap", H100, H100, lambda prefill: int(44 * (40 - prefill) // 30.8), H_GRID),
    Kind("HA", H100, A100, lambda prefill: int(44 * (40 - prefill) // 24.8), H_GRID),
)
PUBLISHED = {
    ("code", "AA"): (55, 15), ("code", "HH"): (35, 5), ("code", "HHcap"): (35, 7), ("code", "HA"): (35, 8),
    ("conv", "AA"): (45, 25), ("conv", "HH"): (25, 15), ("conv", "HHcap"): (25, 21), ("conv", "HA"): (25, 26),
}  # fmt: skip


def worker(accelerator: Accelerator) -> Worker:
    """A DGX: TP 8, prompts batched up to 2048 tokens."""
    return Worker(BLOOM, accelerator, FP16, Parallelism(tp=8), "vllm", 512, 2048)


def design(kind: Kind, prefill: int) -> Design:
    nic = min(kind.prefill.nic_bandwidth, kind.decode.nic_bandwidth)
    link = Link("InfiniBand", LinkKind.INFINIBAND, nic, 5e-6, 0.9)
    boundary = Boundary(
        Placement.DISAGGREGATED, link, Representation(Codec.RAW, Dtype.FP16), Ownership.PUSH, Overlap.LAYERWISE
    )
    return Design(
        (
            Pool(Role.PREFILL, (Member(worker(kind.prefill), prefill, 1.0),)),
            Pool(Role.DECODE, (Member(worker(kind.decode), kind.rest(prefill), 1.0),)),
        ),
        boundary,
    )


def colocated(accelerator: Accelerator, count: int) -> Design:
    """A baseline: every machine does both, mixed."""
    return Design((Pool(Role.COLOCATED, (Member(worker(accelerator), count, 1.0),)),))


@cache
def lengths(trace: str) -> tuple[Any, Any]:
    found = load_workload(f"azure2023_{trace}.csv.gz").lengths
    return found.isl, found.osl


def drawn(trace: str, rate: float, seconds: float) -> Requests:
    """Poisson arrivals with lengths drawn from an Azure trace, as the paper does."""
    draw = np.random.default_rng(0)
    isl, osl = lengths(trace)
    count = int(rate * seconds)
    picked = draw.integers(0, len(isl), count)
    arrival = np.cumsum(draw.exponential(1 / rate, count))
    return Requests(arrival, isl[picked].astype(np.int64), np.maximum(osl[picked], 1).astype(np.int64), name=trace)


def slowdowns(found: RequestColumns, model: ByAccelerator) -> dict[str, Any]:
    """p50, p90, p99 of TTFT, TPOT, E2E over the same request alone on a DGX-A100."""
    alone = model.of[A100.name]
    prompt = alone.prefill(worker(A100), found.isl).seconds
    token = alone.decode(worker(A100), 1, found.isl + found.osl / 2).seconds
    several, after = found.osl > 1, found.e2e - found.ttft_prefill
    ratios = {
        "ttft": found.ttft_prefill / prompt,
        "tpot": after[several] / (found.osl[several] - 1) / token[several],
        "e2e": found.e2e / (prompt + token * (found.osl - 1)),
    }
    return {name: np.quantile(values, (0.5, 0.9, 0.99)) for name, values in ratios.items()}


def holds(built: Design, trace: str, rate: float, kind: str, seconds: float = SECONDS) -> bool:
    """Whether all nine SLOs hold."""
    model = perf(kind)
    policy = Policy(chunked=False, kv_blocks=KV_TOKENS // 16)
    found = simulate(built, drawn(trace, rate, seconds), model, policy=policy).requests
    seen = slowdowns(found, model)
    return all(bool(np.all(seen[name] <= np.array(limits))) for name, limits in LIMITS.items())


def peak(built: Design, trace: str, kind: str = "published", seconds: float = SECONDS) -> int:
    """The highest multiple of 10 requests/s that holds, 0 for none."""
    low, high = 0, HIGHEST // STEP
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(built, trace, middle * STEP, kind, seconds) else (low, middle)
    return low * STEP


@dataclass(frozen=True)
class Sweep:
    """Peaks (requests/s) by prefill machines of one design and trace."""

    kind: Kind
    trace: str
    peaks: Mapping[int, int]

    @property
    def best(self) -> int:
        return max(self.peaks.values())

    @property
    def splits(self) -> list[tuple[int, int]]:
        """The (prefill, decode) machines that reach the best."""
        return [(p, self.kind.rest(p)) for p, rate in self.peaks.items() if rate == self.best]


def sweep(kind: Kind, trace: str, model: str = "published", seconds: float = SECONDS) -> Sweep:
    """The paper's search."""
    return Sweep(kind, trace, {p: peak(design(kind, p), trace, model, seconds) for p in kind.grid})
