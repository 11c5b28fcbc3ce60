"""DistServe's README example: OPT-13B, prefill TP2 and decode TP1 on three A100s, ShareGPT, its published coefficients."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Attention, LayerGroup, Mlp, Model
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Boundary, Codec, Ownership, Placement, Representation
from diptych.design.design import Design, Member, Pool
from diptych.metrics.measurements import Measurements
from diptych.perf.affine import AffineSteps
from diptych.perf.estimate import Timing
from diptych.simulator.demand import Requests
from diptych.simulator.policy import Policy
from diptych.simulator.simulate import simulate

DATA = Path(__file__).parents[1] / "data" / "sim"
PROFILE = json.loads((DATA / "distserve_profiles.json").read_text(encoding="utf-8"))
CATALOG = Catalog.load()
OPT = Model("OPT-13B", 5120, 50272, (LayerGroup(40, Attention(40, 40, 128, 128), Mlp(20480, gated=False)),))
FP16 = Precision(Dtype.FP16, Dtype.FP16, Dtype.FP16)
NO_LIMIT = 100_000
TTFT, TPOT = PROFILE["readme"]["ttft_ms"] / 1e3, PROFILE["readme"]["tpot_ms"] / 1e3
GPUS = 3


@dataclass(frozen=True)
class ByTp:
    """The coefficients of a worker's TP."""

    of: Mapping[int, AffineSteps]

    def prefill(self, worker: Worker, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        return self.of[worker.parallelism.tp].prefill(worker, tokens, past, batch)

    def decode(self, worker: Worker, batch: Any, context: Any) -> Timing:
        return self.of[worker.parallelism.tp].decode(worker, batch, context)

    def mixed(self, worker: Worker, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        return self.of[worker.parallelism.tp].mixed(worker, tokens, past, batch, context)


def steps(tp: int) -> AffineSteps:
    """Published coefficients and the overheads that its simulator adds to each step, in seconds."""
    base, token = PROFILE["ray_overhead"]

    def of(name: str, more: float = 0.0) -> tuple[float, float, float]:
        constant, linear, last = PROFILE[name][str(tp)]
        return (constant + base + more) / 1e3, (linear + token) / 1e3, last / 1e3

    prompts = of("prefill", PROFILE["prefill_overhead"])
    return AffineSteps(prompts, of("decode_small"), of("decode_large"), PROFILE["large_from"])


PERF = ByTp({1: steps(1), 2: steps(2)})


def worker(tp: int) -> Worker:
    return Worker(OPT, CATALOG.accelerator("A100"), FP16, Parallelism(tp=tp), "vllm", NO_LIMIT, NO_LIMIT)


DESIGN = Design(
    (Pool(Role.PREFILL, (Member(worker(2), 1, 1.0),)), Pool(Role.DECODE, (Member(worker(1), 1, 1.0),))),
    Boundary(Placement.DISAGGREGATED, CATALOG.link("nvlink3"), Representation(Codec.RAW, Dtype.FP16), Ownership.PULL),
)


@cache
def testbed() -> Requests:
    """What its real system was asked: 300 requests of ShareGPT, here at 6 requests/s."""
    with (DATA / "distserve_sharegpt_lengths.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    isl, osl = (np.array([int(row[name]) for row in rows]) for name in ("input_tokens", "output_tokens"))
    return Requests(np.array([float(row["arrival_s"]) for row in rows]), isl, osl, name="ShareGPT")


def run(per_gpu: float, count: int, seed: int, kv_tokens: int) -> Measurements:
    """Poisson arrivals at `per_gpu` requests/s and GPU, lengths drawn again; prompts that wait go in one step."""
    draw, asked = np.random.default_rng(seed), testbed()
    rows = draw.integers(0, len(asked), count)
    gaps = draw.exponential(1 / (GPUS * per_gpu), count)
    requests = Requests(np.cumsum(gaps), asked.isl[rows], asked.osl[rows], name="ShareGPT")
    return simulate(DESIGN, requests, PERF, policy=Policy(chunked=False, kv_blocks=kv_tokens // 16))


def replayed(rate: float) -> tuple[float, float]:
    """Mean TTFT and TPOT (s) of its testbed's requests at `rate` requests/s: the same arrivals, stretched, as it did."""
    pace = rate / float(PROFILE["testbed"]["arrivals_requests_per_second"])
    policy = Policy(chunked=False, kv_blocks=PROFILE["kv_tokens_tp1"] // 16)
    ttft, tpot = latencies(simulate(DESIGN, testbed().faster(pace), PERF, policy=policy))
    return float(ttft.mean()), float(np.nanmean(tpot))


def latencies(found: Measurements) -> tuple[Any, Any]:
    """TTFT as prefill shows it, and time per token from there on (its definition), of each request."""
    requests = found.requests
    steps = np.where(requests.osl > 1, requests.osl - 1.0, np.nan)
    return requests.ttft_prefill, (requests.e2e - requests.ttft_prefill) / steps


def percentiles(found: Measurements) -> tuple[float, float]:
    """p90 of both."""
    ttft, tpot = latencies(found)
    return float(np.quantile(ttft, 0.9)), float(np.nanquantile(tpot, 0.9))


def holds(per_gpu: float, count: int, seed: int, kv_tokens: int) -> bool:
    ttft, tpot = percentiles(run(per_gpu, count, seed, kv_tokens))
    return ttft < TTFT and tpot < TPOT


def its_search(seed: int) -> float:
    """Its bisection as the README runs it: 300 requests, down to 0.25, with the cap of 50,000 tokens in its code."""
    low, high, readme = 0.0, float(PROFILE["readme"]["highest_rate"]), PROFILE["readme"]
    while high - low > readme["stop_below"]:
        middle = (low + high) / 2
        good = holds(middle, readme["requests"], seed, PROFILE["kv_tokens_cap_of_its_simulator"])
        low, high = (middle, high) if good else (low, middle)
    return low


def sustained(count: int = 10_000, step: float = 0.02) -> float:
    """The highest rate per GPU that holds in the long run, with the KV tokens that the GPU really has."""
    low, high = 1.0, 2.5
    while high - low > step:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle, count, 1, PROFILE["kv_tokens_tp1"]) else (low, middle)
    return low
