"""How far off a predicted row may be: the error that nine of ten published rows of its kind stay within.

A step's own band says nothing about queues, load tests or what a row leaves open. `benchmarks/fit_bands.py` measures the whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files

from diptych.planner.benchmark_rows import Kind


def bands(kind: Kind, assumed: bool, step: float) -> dict[str, float]:
    """Relative band of TTFT, TPOT and output tokens/s; never narrower than that of the steps they are made of.

    The truth is within predicted·(1 ± band) for about nine rows in ten.
    """
    known = _table().get(key(kind, assumed), {})
    return {metric: max(step, known.get(metric, step)) for metric in ("ttft", "tpot", "output")}


def key(kind: Kind, assumed: bool) -> str:
    """The group of rows that share bands."""
    return f"{kind.value}, {'under assumptions' if assumed else 'from the row alone'}"


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, float]]:
    text = files("diptych.planner").joinpath("data/bands.json").read_text(encoding="utf-8")
    table: Mapping[str, Mapping[str, float]] = json.loads(text)
    return table
