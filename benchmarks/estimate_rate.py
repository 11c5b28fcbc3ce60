"""How many step-time estimates a second: what it must reach, then what it reached. The last line is JSON.

python benchmarks/estimate_rate.py
"""

from __future__ import annotations

import json
import time

import numpy as np

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.perf.roofline import default_perf

GOAL = 100_000
SIZE = 200_000


def main() -> int:
    catalog, perf, random = Catalog.load(), default_perf(), np.random.default_rng(0)
    fp8 = Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8)
    batch, context = random.integers(1, 512, SIZE), random.integers(16, 65_536, SIZE)
    tokens = random.integers(1, 16_384, SIZE)
    print(f"goal: {GOAL:,} estimates/s, vectorised")
    rates: dict[str, int] = {}
    for model, tp in (("Llama-3.1-70B", 4), ("DeepSeek-V3", 8)):
        worker = Worker(catalog.model(model), catalog.accelerator("H200"), fp8, Parallelism(tp=tp))
        calls = {
            "decode": lambda worker=worker: perf.decode(worker, batch, context),
            "prefill": lambda worker=worker: perf.prefill(worker, tokens),
            "mixed": lambda worker=worker: perf.mixed(worker, tokens, 0, batch, context),
        }
        for name, call in calls.items():
            call()
            started = time.perf_counter()
            call()
            rates[f"{model} {name}"] = round(SIZE / (time.perf_counter() - started))
            print(f"{model:14s} {name:8s} {rates[f'{model} {name}']:>12,} estimates/s")
    print(json.dumps({"goal": GOAL, "slowest": min(rates.values()), "rates": rates}))
    return 0 if min(rates.values()) >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
