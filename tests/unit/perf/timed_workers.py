"""Workers for the tests of the performance model."""

from __future__ import annotations

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Worker

CATALOG = Catalog.load()
BF16 = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16)
FP8 = Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8)
FP4 = Precision(Dtype.FP4, Dtype.FP4, Dtype.FP8)


def worker(model: str, accelerator: str, precision: Precision = BF16, engine: str = "vllm", **parallel: int) -> Worker:
    return Worker(CATALOG.model(model), CATALOG.accelerator(accelerator), precision, Parallelism(**parallel), engine)
