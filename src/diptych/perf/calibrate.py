"""What an engine adds around the kernels, and how far it stays behind op micro-benchmarks: a few named parameters.

They are fitted to published end-to-end rows by `benchmarks/fit_calibration.py` and kept readable in `data/calibration.json`;
no parameter belongs to a model or a row. Parameters are looked up from special to general, so an engine or accelerator family
without its own value takes the value over all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Worker
from diptych.perf.ops import Op, OpKind, RoutedExperts, Step

COLLECTIVE_KINDS = (OpKind.ALL_REDUCE, OpKind.ALL_TO_ALL, OpKind.POINT_TO_POINT)
ATTENTION_KINDS = (OpKind.PREFILL_ATTENTION, OpKind.DECODE_ATTENTION, OpKind.PREFILL_MLA, OpKind.DECODE_MLA)

NEUTRAL: Mapping[str, float] = {
    "host_step": 1.5e-3,  # seconds of scheduling and sampling per step that no kernel hides
    "host_sequence": 8e-6,  # seconds per sequence of a step: detokenise, stop checks, block tables
    "host_prefill": 2e-3,  # seconds of a step with prompts: their kernels are launched one by one, outside CUDA graphs
    "host_prefill_layer": 0.1e-3,  # the same, per layer
    "delivery": 20e-3,  # seconds of a TTFT outside the engine's steps: HTTP, tokenising, streaming the first token
    "delivery_steps": 0.0,  # decode steps between a request's arrival and its delivery: receive and stream intervals
    "launch": 0.8,  # launch cost of kernels inside a graph, against the micro-benchmark
    "memory": 1.0,  # achieved fraction of the curve's bandwidth
    "compute_linear": 1.0,  # achieved fraction of the curves' FLOP/s: projections and output head,
    "compute_experts": 1.0,  # grouped matrices of the routed experts,
    "compute_attention": 1.0,  # scores and values
    "collective": 1.0,  # achieved fraction of the curve's bus bandwidth, and launch cost of collectives
    "expert_imbalance": 1.0,  # time of the busiest rank over the mean where experts are spread over ranks
    "band": 0.27,  # nine in ten TPOTs of load tests lie within it (calibration.json, quality)
    "transferred_band": 0.5,  # curves of a similar accelerator: not measured, twice the band
}


def family(accelerator: Accelerator) -> str:
    """The architecture line that shares kernels: blackwell, blackwell-gddr, hopper, ada, ampere, or the vendor's name."""
    if accelerator.vendor != "NVIDIA":
        return accelerator.vendor.lower()
    if Dtype.FP4 in accelerator.peak_flops:
        return "blackwell" if accelerator.memory_bandwidth > 2.5e12 else "blackwell-gddr"
    if Dtype.FP8 in accelerator.peak_flops:
        return "ada" if accelerator.memory_bandwidth < 1.4e12 else "hopper"
    return "ampere"


@dataclass(frozen=True, slots=True)
class Factors:
    """The parameters of one worker."""

    host_step: float
    host_sequence: float
    host_prefill: float
    host_prefill_layer: float
    delivery: float
    delivery_steps: float
    launch: float
    memory: float
    compute_linear: float
    compute_experts: float
    compute_attention: float
    collective: float
    expert_imbalance: float
    band: float
    transferred_band: float

    def host(self, step: Step, layers: int) -> Any:
        """Seconds that the host adds to a step of a model of so many layers."""
        prompts = np.where(step.tokens > 0, self.host_prefill + self.host_prefill_layer * layers, 0.0)
        return self.host_step + self.host_sequence * step.sampled + prompts

    def of(self, op: Op) -> tuple[float, float, float]:
        """(launch, memory, compute) multipliers of an op's curve."""
        if op.kind in COLLECTIVE_KINDS:
            return 1.0 / self.collective, self.collective, 1.0
        if isinstance(op, RoutedExperts):
            slowest = self.expert_imbalance if op.local < op.total else 1.0
            return self.launch, self.memory / slowest, self.compute_experts / slowest
        compute = self.compute_attention if op.kind in ATTENTION_KINDS else self.compute_linear
        return self.launch, self.memory, compute


@dataclass(frozen=True)
class Calibration:
    """Values by parameter and scope: 'engine/family', 'engine', 'family' or '*', the first that exists."""

    values: Mapping[str, Mapping[str, float]]

    def factors(self, worker: Worker) -> Factors:
        engine, line = worker.engine, family(worker.accelerator)
        scopes = (f"{engine}/{line}", engine, line, "*")
        return Factors(**{name: self._value(name, scopes) for name in NEUTRAL})

    def _value(self, name: str, scopes: tuple[str, ...]) -> float:
        table = self.values.get(name, {})
        return next((table[scope] for scope in scopes if scope in table), NEUTRAL[name])


@lru_cache(maxsize=1)
def shipped_calibration() -> Calibration:
    """The calibration inside the package; the file gives rows, residuals, source and date of each value."""
    path = files("diptych.perf").joinpath("data/calibration.json")
    if not path.is_file():
        return Calibration({})
    document = json.loads(path.read_text(encoding="utf-8"))
    return Calibration(
        {
            name: {scope: float(entry["value"]) for scope, entry in table.items()}
            for name, table in document["parameters"].items()
        }
    )
