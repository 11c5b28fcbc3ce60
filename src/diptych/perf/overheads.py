"""What a disaggregated request pays outside engine steps, by engine: fitted to published load tests, not derived.

`benchmarks/fit_overheads.py` makes `data/overheads.json` from the calibration half of the rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds of one disaggregated request that no engine step holds.

    `handoff`: router, handshake and transfer set-up between a prefill and a decode worker, bytes excluded. `cold`: what the
    first requests of a fresh deployment wait for connections and compilation.
    """

    handoff: float
    cold: float


def overheads(engine: str) -> Overheads:
    """Overheads of an engine; vLLM's for one that is unknown."""
    known = table()
    return known.get(engine, known["vllm"])


@lru_cache(maxsize=1)
def table() -> dict[str, Overheads]:
    """Overheads by engine."""
    document = json.loads(files("diptych.perf").joinpath("data/overheads.json").read_text(encoding="utf-8"))
    return {engine: Overheads(**row) for engine, row in document.items()}
