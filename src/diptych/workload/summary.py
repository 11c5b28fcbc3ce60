"""A workload in numbers: percentiles, totals, burstiness, prefix reuse, regime. One shape for tables and JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.workload.lengths import Lengths
from diptych.workload.regime import regime
from diptych.workload.reuse import Reuse
from diptych.workload.workload import Workload

PERCENTILES = (5, 25, 50, 75, 90, 95, 99)
_FLOAT = NDArray[np.float64]


def summarise(workload: Workload) -> dict[str, Any]:
    """Everything measured, as plain JSON values; unknown numbers are None.

    Keys: name, source, requests, notes; `isl` and `osl` (mean, cv, min, p5 to p99, max, total); `in_out_ratio` and
    `correlation` of the lengths; `arrivals` (rate per second, cv, peak_to_mean, fano by window in seconds, measured, offline,
    note); `prefix` (hit_ratio assumed, measured, block, curve of an LRU cache's capacity in tokens against hit ratio, the last
    one without limit and hence None); `regime` (name, prefill_share, sentence).
    """
    lengths, arrivals = workload.lengths, workload.arrivals
    return {
        "name": workload.name,
        "source": workload.source,
        "requests": workload.requests,
        "notes": list(workload.notes),
        "isl": length_summary(lengths, lengths.isl, workload.requests),
        "osl": length_summary(lengths, lengths.osl, workload.requests),
        "in_out_ratio": lengths.mean_isl / lengths.mean_osl,
        "correlation": correlation(lengths),
        "arrivals": {
            **asdict(arrivals),
            "rate": arrivals.rate or None,
            "fano": [{"window_s": window, "value": value} for window, value in arrivals.fano],
        },
        "prefix": _prefix(workload),
        "regime": asdict(regime(workload)),
    }


def length_summary(lengths: Lengths, values: _FLOAT, requests: int = 0) -> dict[str, float | None]:
    """Mean, coefficient of variation, extremes, percentiles and total tokens (None without a count) of ISL or OSL."""
    mean = lengths.mean(values)
    return {
        "mean": mean,
        "cv": math.sqrt(max(lengths.mean((values - mean) ** 2), 0.0)) / mean,
        "min": float(values.min()),
        **{f"p{percent}": percentile(lengths, values, percent / 100, requests) for percent in PERCENTILES},
        "max": float(values.max()),
        "total": round(mean * requests) or None,
    }


def percentile(lengths: Lengths, values: _FLOAT, q: float, requests: int = 0) -> float:
    """Percentile as numpy's default takes it, linear between neighbouring requests; without a count, the weighted quantile."""
    if requests < 1:
        return lengths.quantile(values, q)
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(lengths.weight[order]) * requests
    place = q * (requests - 1)
    below = math.floor(place)
    at = np.searchsorted(ends, np.array([below, min(below + 1, requests - 1)]) + 0.5)
    low, high = values[order[np.minimum(at, len(values) - 1)]]
    return float(low + (high - low) * (place - below))


def correlation(lengths: Lengths) -> float | None:
    """Pearson correlation of ISL and OSL over requests; None where one of them never varies."""
    isl, osl = lengths.isl - lengths.mean_isl, lengths.osl - lengths.mean_osl
    spread = lengths.mean(isl**2) * lengths.mean(osl**2)
    return lengths.mean(isl * osl) / math.sqrt(spread) if spread > 1e-12 else None


def capacities(reuse: Reuse, count: int = 7) -> tuple[float, ...]:
    """Round cache capacities in tokens (1 and 3 times powers of ten) up to what all distinct blocks need, then no limit."""
    whole = reuse.distinct * reuse.block
    steps = [step * 10.0**power for power in range(2, 13) for step in (1, 3)]
    below = [capacity for capacity in steps if reuse.block <= capacity < whole]
    return (*below[1 - count :], math.inf)


def _prefix(workload: Workload) -> dict[str, Any]:
    reuse = workload.reuse
    document: dict[str, Any] = {"hit_ratio": workload.lengths.hit_rate, "measured": reuse is not None}
    if reuse is None:
        return document
    curve = [{"capacity_tokens": None if math.isinf(capacity) else capacity, "hit_ratio": ratio}
             for capacity, ratio in reuse.curve(capacities(reuse))]  # fmt: skip
    return {**document, "block": reuse.block, "distinct_blocks": reuse.distinct, "curve": curve}
