"""Rate tables in ServeGen's manner: requests per second by window and model, without the requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diptych.errors import Finding, InvalidTrace
from diptych.units import format_seconds
from diptych.workload.formats import RATE_COLUMNS, Layout, read_rows
from diptych.workload.profile import profile_of
from diptych.workload.workload import Arrivals

_FLOAT = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """One model's rates: the start of each window in seconds and its requests/s, shape (windows,) each."""

    start: _FLOAT
    rate: _FLOAT

    def arrivals(self) -> Arrivals:
        """Mean and peak of the windows. What happens inside a window is not in such a table: Poisson is assumed."""
        mean = float(self.rate.mean())
        window = float(np.median(np.diff(self.start))) if len(self.start) > 1 else 0.0
        note = f"rates by windows of {format_seconds(window)}, the peak is theirs; Poisson inside them is assumed"
        profile = profile_of(self.rate, window) if window else None
        return Arrivals(mean, peak_to_mean=float(self.rate.max()) / mean, measured=True, note=note, profile=profile)

    @property
    def requests(self) -> int:
        """Requests in all windows, taken as equally long."""
        window = float(np.median(np.diff(self.start))) if len(self.start) > 1 else 0.0
        return round(float(self.rate.sum()) * window)


def read_rates(path: Path, name: str, layout: Layout) -> Mapping[str, Rates]:
    """A table of model, t_s and total_rate_rps by model. Raises `InvalidTrace` with all findings."""
    findings: list[Finding] = []
    rows: dict[str, list[tuple[float, float]]] = {}
    for line, row in read_rows(path, name, layout):
        value = _window(row, f"{name}:{line}")
        if isinstance(value, Finding):
            findings.append(value)
        else:
            rows.setdefault(row["model"], []).append(value)
    tables = {model: Rates(*np.array(pairs).T) for model, pairs in rows.items()}
    for model, table in tables.items():
        if np.any(np.diff(table.start) <= 0) or not table.rate.sum() > 0:
            findings.append(
                Finding(name, f"rates of {model} are out of order or all zero", "t_s that rises, some rate above 0")
            )
    if not tables and not findings:
        findings.append(Finding(name, "empty rate table", f"rows of {', '.join(RATE_COLUMNS)}"))
    if findings:
        raise InvalidTrace(findings)
    return tables


def _window(row: Mapping[str, str], where: str) -> tuple[float, float] | Finding:
    try:
        start, rate = float(row["t_s"]), float(row["total_rate_rps"])
    except ValueError:
        return Finding(where, f"t_s {row['t_s']!r} or total_rate_rps {row['total_rate_rps']!r} is not a number")
    if not math.isfinite(start) or not 0 <= rate < math.inf:
        return Finding(where, f"a rate of {rate:g} at {start:g} s is out of range", "0 requests/s or more")
    return start, rate
