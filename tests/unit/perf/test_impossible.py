"""What cannot run is refused: a sequence above the memory, a concurrency above what fits."""

from __future__ import annotations

import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.metrics.slo import SLO
from diptych.perf.memory import kv_capacity
from diptych.perf.pools import ColocatedPool, DecodePool
from diptych.perf.roofline import default_perf
from diptych.workload.lengths import Lengths

PERF, CATALOG = default_perf(), Catalog.load()
FP8 = Precision(Dtype.FP8, Dtype.FP8, Dtype.BF16)


def llama(tp: int) -> Worker:
    return Worker(CATALOG.model("Llama-3.1-70B"), CATALOG.accelerator("H100"), FP8, Parallelism(tp))


def test_one_sequence_of_full_context_does_not_fit_beside_70_gb_of_weights() -> None:
    full = Lengths.fixed(130_000, 1072)
    alone = DecodePool(PERF, llama(1), full)
    assert alone.knee(SLO.parse("tpot_p90<1s")) == 0.0
    assert not alone.at(1e-6, 1).feasible
    assert not ColocatedPool(PERF, llama(1), full).at(1e-6, 1).feasible
    assert DecodePool(PERF, llama(4), full).at(1e-6, 1).feasible


@pytest.mark.parametrize("tp", [2, 4])
def test_more_sequences_than_fit_are_infeasible(tp: int) -> None:
    pool = DecodePool(PERF, llama(tp), Lengths.fixed(8192, 1024))
    fits = kv_capacity(llama(tp)) / pool.kv_per_sequence
    assert pool.most <= fits
    rate = 1.5 * pool.capacity
    assert not pool.at(rate, 1).feasible
    assert pool.at(rate, 4).feasible


def test_a_decode_step_is_never_below_its_floor() -> None:
    worker = Worker(
        CATALOG.model("Llama-3.1-8B"),
        CATALOG.accelerator("L4"),
        Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16),
        Parallelism(),
    )
    tpot = float(DecodePool(PERF, worker, Lengths.fixed(512, 128)).at(1e-6, 1).tpot_mean)
    assert tpot >= 0.0500  # 16 GB of weights, less the embedding rows that a step never reads, at 300 GB/s
