"""Small simulations on an engine one can compute by hand, for the pages and tables that show them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diptych.catalog.catalog import Catalog
from diptych.design.text import parse_design
from diptych.metrics.slo import SLO
from diptych.perf.estimate import Basis, Timing
from diptych.planner.demand import Demand
from diptych.planner.judge import Judged, judge
from diptych.planner.simulated import Simulated, simulated
from diptych.simulator.demand import Requests
from diptych.simulator.faults import parse_changes

CATALOG = Catalog.load()
MODEL = CATALOG.model("Llama-3.1-8B")
FAULTS = ("decode[1] dies @20s for 10s", "link prefill->decode at 10% @40s", "prefill +1 @45s")
APART = "1xH100:usd=4 -> 2xH20:usd=2, link=rdma-100g, push"
TOGETHER = "2xH100:usd=4"


@dataclass(frozen=True, slots=True)
class HandPerf:
    """Affine in tokens, sequences and context."""

    def prefill(self, worker: Any, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        tokens, past = np.broadcast_arrays(np.asarray(tokens, float), np.asarray(past, float))
        return self._timing(5e-3 + tokens * (20e-6 + (past + tokens / 2) * 1e-9) * np.asarray(batch, float))

    def decode(self, worker: Any, batch: Any, context: Any) -> Timing:
        return self._timing(5e-3 + np.asarray(batch, float) * (50e-6 + np.asarray(context, float) * 20e-9))

    def mixed(self, worker: Any, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        seconds = self.prefill(worker, tokens, past).seconds + self.decode(worker, batch, context).seconds - 5e-3
        return self._timing(seconds)

    def _timing(self, seconds: Any) -> Timing:
        return Timing(np.asarray(seconds, float), np.zeros_like(seconds), Basis.FITTED, 0.1)


def asked(count: int = 900, rate: float = 15.0, name: str = "made") -> Demand:
    draw = np.random.default_rng(11)
    arrival = np.cumsum(draw.exponential(1 / rate, count))
    isl, osl = (np.maximum(draw.exponential(mean, count), 2).astype(np.int64) for mean in (1200, 80))
    return Demand(Requests(arrival, isl, osl, name=name), name, "drawn by a test", ())


def judged_run(
    text: str = APART, faults: tuple[str, ...] = (), slo: str = "ttft_p90<300ms, tpot_p90<20ms", **more: Any
) -> Judged:
    design = parse_design(text, CATALOG, MODEL)
    return judge(
        design, asked(**more), HandPerf(), SLO.parse(slo) if slo else None, seed=3, faults=parse_changes(faults)
    )


def seen_run(judged: Judged, faults: tuple[str, ...] = (), name: str = "") -> Simulated:
    return replace(simulated(judged, CATALOG, faults=faults, name=name), versions={"diptych": "0"})
