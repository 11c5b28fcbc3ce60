"""How requests arrive, measured: rate, burstiness by the second and by the minute, and whether timestamps can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diptych.errors import Finding, InvalidInput
from diptych.workload.profile import RateProfile
from diptych.workload.workload import Arrivals

WINDOWS = (1.0, 10.0, 60.0)  # seconds, of the Fano factor


@dataclass(frozen=True, slots=True)
class ArrivalStats:
    """Arrivals of a trace. Times in seconds.

    `cv_gaps` is the coefficient of variation of the gaps between arrivals (1 for Poisson), `fano` variance over mean of the
    counts by window (1 for Poisson, at any window), `peak_to_mean` the busiest whole minute over the average one, `tied` the
    share of requests stamped with the time of the one before, `step` the fifth percentile of the gaps above zero,
    `profile` the swing of the rate.
    """

    requests: int
    duration: float
    cv_gaps: float
    fano: tuple[tuple[float, float], ...]
    peak_to_mean: float
    tied: float
    step: float
    profile: RateProfile | None = None

    @property
    def rate(self) -> float:
        """Requests per second, over the time from the first to the last arrival."""
        return self.requests / self.duration

    @property
    def quantised(self) -> bool:
        """Whether timestamps come in steps too coarse to show gaps: many ties, and all other gaps near the average or above."""
        return self.tied > 0.2 and self.step > 0.5 / self.rate

    def arrivals(self) -> Arrivals:
        """As a workload's arrivals. Where timestamps are quantised, the CV is an artefact and Poisson is assumed instead."""
        if not self.quantised:
            return Arrivals(self.rate, self.cv_gaps, self.peak_to_mean, self.fano, measured=True, profile=self.profile)
        note = (f"timestamps come in steps of about {self.step:.3g} s ({self.tied * 100:.0f} % share one), so the gaps' CV of "
                f"{self.cv_gaps:.2f} is an artefact; Poisson (CV 1) is assumed instead")  # fmt: skip
        profile = replace(self.profile, cv=1.0) if self.profile else None
        return Arrivals(self.rate, 1.0, self.peak_to_mean, self.fano, measured=True, note=note, profile=profile)


def gap_step(counts: Sequence[tuple[float, int]]) -> float:
    """Fifth percentile of gaps given (smallest gap, count) of ascending bins; 0 without gaps.

    >>> gap_step([(0.5, 1), (3.0, 99)])
    3.0
    """
    target, seen = 0.05 * sum(count for _, count in counts), 0
    for gap, count in counts:
        seen += count
        if seen > target:
            return float(gap)
    return 0.0


def rescale(arrivals: Arrivals, rate: float, where: str = "--rate") -> Arrivals:
    """The same arrivals with time stretched to another rate: counts, CV and peak keep, windows stretch with time.

    Raises `InvalidInput` for a rate that is not a positive number.
    """
    if not 0 < rate < float("inf"):
        raise InvalidInput(Finding(where, f"{rate:g} is not a rate", "requests per second above zero"))
    stretch = arrivals.rate / rate if arrivals.rate else 1.0
    fano = tuple((width * stretch, value) for width, value in arrivals.fano)
    if not arrivals.measured:
        return replace(arrivals, rate=rate, note="rate as given, arrivals taken as Poisson")
    note = f"time stretched ×{stretch:.3g} from {arrivals.rate:.4g} req/s"
    note = "; ".join(part for part in (arrivals.note, note) if part)
    profile = arrivals.profile.stretched(stretch) if arrivals.profile else None
    return replace(arrivals, rate=rate, fano=fano, note=note, profile=profile)
