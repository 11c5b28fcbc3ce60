"""Service-level objectives: "ttft_p90<2s, tpot_p90<50ms"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from diptych.errors import Finding, InvalidInput, did_you_mean
from diptych.units import format_seconds, parse_seconds

METRICS = ("ttft", "tpot", "e2e")
_TERM = re.compile(r"^\s*([a-zA-Z0-9]+?)(?:_(p\d+(?:\.\d+)?|mean))?\s*(<=|<)\s*(\S.*)$")


@dataclass(frozen=True, slots=True)
class Objective:
    """One promise: a percentile of a latency stays below a limit in seconds. `quantile` None means the mean."""

    metric: str
    quantile: float | None
    limit: float

    def __str__(self) -> str:
        statistic = "mean" if self.quantile is None else f"p{self.quantile * 100:g}"
        return f"{self.metric}_{statistic}<{format_seconds(self.limit).replace(' ', '')}"


@dataclass(frozen=True, slots=True)
class SLO:
    """A set of objectives, all of which must hold.

    >>> str(SLO.parse("ttft_p90<2s, tpot_p90<50ms"))
    'ttft_p90<2s, tpot_p90<50ms'
    """

    objectives: tuple[Objective, ...] = ()

    def __str__(self) -> str:
        return ", ".join(str(objective) for objective in self.objectives) or "none"

    def of(self, metric: str) -> tuple[Objective, ...]:
        """The objectives on one metric."""
        return tuple(objective for objective in self.objectives if objective.metric == metric)

    @classmethod
    def parse(cls, text: str, where: str = "--slo") -> SLO:
        """Read comma-separated terms `metric_pNN<limit`; raises `InvalidInput` with every mistake in the text."""
        objectives: list[Objective] = []
        findings: list[Finding] = []
        for term in (part for part in text.split(",") if part.strip()):
            parsed = _parse_term(term.strip(), where)
            if isinstance(parsed, Finding):
                findings.append(parsed)
            else:
                objectives.append(parsed)
        if not objectives and not findings:
            findings.append(Finding(where, "no objective in it", 'a text such as "ttft_p90<2s, tpot_p90<50ms"'))
        if findings:
            raise InvalidInput(findings)
        return cls(tuple(objectives))


def _parse_term(term: str, where: str) -> Objective | Finding:
    match = _TERM.match(term)
    if not match:
        return Finding(where, f"cannot read {term!r}", "a term such as ttft_p90<2s")
    metric, statistic, _, limit_text = match.groups()
    metric = metric.lower()
    if metric not in METRICS:
        return Finding(
            where, f"unknown metric {metric!r} in {term!r}", ", ".join(METRICS), did_you_mean(metric, METRICS)
        )
    quantile = None if statistic == "mean" else float(statistic[1:]) / 100 if statistic else 0.9
    if quantile is not None and not 0 < quantile < 1:
        return Finding(where, f"percentile {statistic} in {term!r} is out of range", "p1 to p99.99")
    try:
        limit = parse_seconds(limit_text)
    except ValueError as error:
        return Finding(where, str(error), "a duration such as 2s or 50ms")
    if limit <= 0:
        return Finding(where, f"the limit in {term!r} is not above zero", "a duration above zero")
    return Objective(metric, quantile, limit)
