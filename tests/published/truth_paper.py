"""arXiv:2606.29708 (v1), Tables 6 and 7: Qwen3-32B on one Hopper node, SGLang PD, 4096 tokens in and 512 out.

The paper names neither the Hopper part nor the path. As the critical reading of its tables suggests, workers are single H20s and
all KV of the node shares 0.75 GB/s; both are assumptions, and nothing is fitted here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link, LinkKind
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Boundary, Codec, Placement, Representation
from diptych.design.design import Design, Member, Pool
from diptych.metrics.measurements import Measurements
from diptych.perf.roofline import default_perf
from diptych.simulator.demand import Requests
from diptych.simulator.policy import Policy
from diptych.simulator.simulate import simulate

CATALOG = Catalog.load()
PATH = 0.75e9  # bytes/s that all handoffs share
ISL, OSL = 4096, 512
PERF = default_perf()


@dataclass(frozen=True)
class Case:
    """A row of Table 7, or its KV in FP8 from Table 6."""

    name: str
    precision: Precision
    served: float  # requests/s
    tpot_p99: float  # s


CASES = (
    Case("BF16", Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16), 0.673, 0.02102),
    Case("FP8 weights", Precision(Dtype.FP8, Dtype.FP8, Dtype.BF16), 0.701, 0.01374),
    Case("AWQ INT4 weights", Precision(Dtype.INT4, Dtype.BF16, Dtype.BF16), 0.761, 0.01024),
)
FP8_KV = Case("BF16, FP8 KV", Precision(Dtype.BF16, Dtype.BF16, Dtype.FP8), 0.888, 0.02172)


def design(case: Case, prefill: int = 4, decode: int = 4) -> Design:
    worker = Worker(CATALOG.model("Qwen3-32B"), CATALOG.accelerator("H20"), case.precision, Parallelism(), "sglang")
    link = Link("node", LinkKind.SCALEUP, 450e9, 1e-3)
    boundary = Boundary(Placement.DISAGGREGATED, link, Representation(Codec.RAW, case.precision.kv))
    return Design(
        (Pool(Role.PREFILL, (Member(worker, prefill, 1.0),)), Pool(Role.DECODE, (Member(worker, decode, 1.0),))),
        boundary,
    )


def run(case: Case, rate: float, count: int = 300, path: float = PATH) -> Measurements:
    """Poisson arrivals at `rate` requests/s."""
    arrival = np.cumsum(np.random.default_rng(0).exponential(1 / rate, count))
    requests = Requests(arrival, np.full(count, ISL), np.full(count, OSL), name="4K/512")
    return simulate(design(case), requests, PERF, policy=Policy(fabric=path))


def served(found: Measurements) -> float:
    """Requests finished per second of the run."""
    finish = found.requests.finish[found.requests.finished]
    return len(finish) / float(finish.max() - found.requests.arrival[0])
