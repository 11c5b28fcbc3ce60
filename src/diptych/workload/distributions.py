"""Length distributions in closed form and from quantile tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from diptych.errors import Finding, InvalidTrace
from diptych.workload.compress import compress
from diptych.workload.formats import QUANTILE_COLUMNS, Layout, read_rows
from diptych.workload.lengths import Lengths

_NORMAL = NormalDist()
_FLOAT = NDArray[np.float64]
LENGTH_FIELDS = ("input_tokens", "output_tokens")  # the fields of a quantile table that are ISL and OSL
_AXIS_POINTS = 24  # per length, so that their product has 576


@dataclass(frozen=True, slots=True)
class TruncatedLogNormal:
    """Log-normal lengths between `low` and `high` tokens, `mu` and `sigma` of the logarithm before truncation.

    Prefill-as-a-Service (arXiv:2604.15039) plans on mu 9.90, sigma 1.00 between 128 and 128K tokens:

    >>> prompts = TruncatedLogNormal(9.90, 1.00, 128, 131072)
    >>> round(prompts.mean / 1e3, 1), round(prompts.above(19.4e3), 3)
    (27.5, 0.496)
    """

    mu: float
    sigma: float
    low: float
    high: float

    def __post_init__(self) -> None:
        """Raises `ValueError` unless the bounds hold a share of the log-normal that arithmetic can tell from none."""
        if not (self.sigma > 0 and 0 < self.low < self.high and math.isfinite(self.mu + self.sigma + self.high)):
            raise ValueError("a log-normal needs sigma above zero and 0 < low < high")
        if self._mass(self.low, self.high) < 1e-6:
            raise ValueError(
                f"a log-normal of mu {self.mu:g}, sigma {self.sigma:g} has nothing from {self.low:g} to {self.high:g}"
            )

    @property
    def mean(self) -> float:
        """Mean length in tokens."""
        return self.mean_between(self.low, self.high)

    def above(self, tokens: float) -> float:
        """Share of requests longer than `tokens`."""
        return self._mass(min(max(tokens, self.low), self.high), self.high) / self._mass(self.low, self.high)

    def mean_between(self, low: float, high: float) -> float:
        """Mean length of the requests between two lengths: e^(μ+σ²/2)·[Φ(b−σ)−Φ(a−σ)] / [Φ(b)−Φ(a)], a and b standardised."""
        low, high = max(low, self.low), min(high, self.high)
        moment = math.exp(self.mu + self.sigma**2 / 2) * self._mass(low, high, self.sigma)
        return moment / self._mass(low, high)

    def lengths(self, osl: float, points: int = 256) -> Lengths:
        """Equal shares of the requests as points at their means, so the mean is exact; every answer has `osl` tokens."""
        bottom, top = (_NORMAL.cdf(self._standard(edge)) for edge in (self.low, self.high))
        inner = (math.exp(self.mu + self.sigma * _NORMAL.inv_cdf(bottom + (top - bottom) * k / points))
                 for k in range(1, points))  # fmt: skip
        edges = [self.low, *inner, self.high]
        isl = np.array([self.mean_between(low, high) for low, high in pairwise(edges)])
        return Lengths(isl, np.full(points, float(osl)), np.zeros(points), np.full(points, 1 / points))

    def _standard(self, tokens: float) -> float:
        return (math.log(tokens) - self.mu) / self.sigma

    def _mass(self, low: float, high: float, shift: float = 0.0) -> float:
        return _NORMAL.cdf(self._standard(high) - shift) - _NORMAL.cdf(self._standard(low) - shift)


@dataclass(frozen=True, slots=True, eq=False)
class Quantiles:
    """One length's quantiles: `tokens` (k,) at cumulative probability `prob` (k,), both ascending."""

    prob: _FLOAT
    tokens: _FLOAT

    def points(self) -> tuple[_FLOAT, _FLOAT]:
        """Values and weights: the middle of each interval, weighted by its probability; what lies beyond an end sits on it."""
        ends = np.concatenate([[0.0], self.prob, [1.0]])
        values = np.concatenate([self.tokens[:1], self.tokens, self.tokens[-1:]])
        weight = np.diff(ends)
        middle = (values[1:] + values[:-1]) / 2
        return middle[weight > 0], weight[weight > 0]


def independent(isl: Quantiles, osl: Quantiles) -> Lengths:
    """The joint distribution of two marginals taken as independent: their product, each compressed to 24 points."""
    rows, columns = (_marginal(*side.points()) for side in (isl, osl))
    grid_isl, grid_osl = np.meshgrid(rows.isl, columns.isl, indexing="ij")
    weight = np.outer(rows.weight, columns.weight).ravel()
    return Lengths(grid_isl.ravel(), grid_osl.ravel(), np.zeros(len(weight)), weight)


def _marginal(values: _FLOAT, weight: _FLOAT) -> Lengths:
    zeros = np.zeros(len(values))
    return compress(Lengths(values, zeros, zeros, weight), _AXIS_POINTS)


def read_quantiles(path: Path, name: str, layout: Layout) -> Mapping[str, Mapping[str, Quantiles]]:
    """A table of quantiles (model, field, cum_prob, tokens) by model and field. Raises `InvalidTrace` with all findings."""
    findings: list[Finding] = []
    rows: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for line, row in read_rows(path, name, layout):
        value = _quantile_row(row, f"{name}:{line}")
        if isinstance(value, Finding):
            findings.append(value)
        else:
            rows.setdefault((row["model"], row["field"]), []).append(value)
    tables: dict[str, dict[str, Quantiles]] = {}
    for (model, field), pairs in rows.items():
        prob, tokens = np.array(pairs).T
        if np.any(np.diff(prob) < 0) or np.any(np.diff(tokens) < 0):
            findings.append(
                Finding(name, f"quantiles of {model} {field} are not ascending", "cum_prob and tokens that rise")
            )
        tables.setdefault(model, {})[field] = Quantiles(prob, tokens)
    if not rows and not findings:
        findings.append(Finding(name, "empty quantile table", f"rows of {', '.join(QUANTILE_COLUMNS)}"))
    if findings:
        raise InvalidTrace(findings)
    return tables


def _quantile_row(row: Mapping[str, str], where: str) -> tuple[float, float] | Finding:
    try:
        prob, tokens = float(row["cum_prob"]), float(row["tokens"])
    except ValueError:
        return Finding(where, f"cum_prob {row['cum_prob']!r} or tokens {row['tokens']!r} is not a number")
    least = 1 if row["field"] in LENGTH_FIELDS else 0
    if not 0 <= prob <= 1 or not least <= tokens < math.inf:
        return Finding(
            where, f"cum_prob {prob:g} at {tokens:g} tokens is out of range", f"0 to 1, and {least} tokens or more"
        )
    return prob, tokens
