"""InferenceMAX's identity: with c requests always in the system, output rate = c·OSL / (TTFT + (OSL − 1)·TPOT)."""

from __future__ import annotations

import numpy as np
import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Boundary, Codec, Placement, Representation
from diptych.design.design import Design, Member, Pool
from diptych.perf.roofline import default_perf
from diptych.simulator.demand import Requests
from diptych.simulator.simulate import simulate

CATALOG = Catalog.load()
BF16 = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16)
WORKER = Worker(CATALOG.model("Llama-3.1-8B"), CATALOG.accelerator("H100"), BF16, Parallelism())
COLOCATED = Design((Pool(Role.COLOCATED, (Member(WORKER, 1, 1.0),)),))
APART = Design(
    (Pool(Role.PREFILL, (Member(WORKER, 1, 1.0),)), Pool(Role.DECODE, (Member(WORKER, 1, 1.0),))),
    Boundary(Placement.DISAGGREGATED, CATALOG.link("rdma-400g"), Representation(Codec.RAW, Dtype.BF16)),
)


@pytest.mark.parametrize("design", [COLOCATED, APART], ids=["colocated", "disaggregated"])
@pytest.mark.parametrize("concurrency", [4, 64])
def test_identity(compare, design: Design, concurrency: int) -> None:
    count, draw = 60 * concurrency + 400, np.random.default_rng(0)
    isl, osl = draw.integers(512, 1537, count), draw.integers(128, 385, count)
    found = simulate(design, Requests(np.zeros(count), isl, osl), default_perf(), concurrency=concurrency).requests
    start, end = np.quantile(found.finish, (0.1, 0.9))  # neither the start nor the end, where fewer are there
    here = (found.finish > start) & (found.finish <= end)
    rate = float(found.osl[here].sum()) / (end - start)
    tokens = float(found.osl[here].mean())
    tpot = float(((found.osl - 1) * found.tpot)[here].mean()) / (tokens - 1)
    identity = concurrency * tokens / (found.ttft[here].mean() + (tokens - 1) * tpot)
    name = "disaggregated" if design is APART else "colocated"
    compare(f"InferenceMAX identity, {name} at {concurrency}, tokens/s", identity, rate, 0.02)
