"""What is asked: lengths, arrivals, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass, field

from diptych.workload.lengths import Lengths
from diptych.workload.profile import RateProfile
from diptych.workload.reuse import Reuse


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests arrive. `rate` is requests/s on average; `cv` the coefficient of variation of the gaps, 1 for Poisson.

    `peak_to_mean` compares the busiest minute with the average, `fano` the variance and mean of counts by window in seconds.
    `profile` has the whole swing of the rate where it was seen. `measured` says whether timestamps were seen,
    `offline` marks batch work without a latency to keep. A rate of 0 is unknown.
    """

    rate: float
    cv: float = 1.0
    peak_to_mean: float = 1.0
    fano: tuple[tuple[float, float], ...] = ()
    measured: bool = False
    offline: bool = False
    note: str = ""
    profile: RateProfile | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A named workload with its source; `requests` is how many stood behind the distribution.

    `reuse` is the prefix reuse measured on a trace with block hashes: the hit ratio at any cache capacity. None means unknown,
    and `lengths.cached` is then zero unless the user gave a hit ratio.
    """

    name: str
    lengths: Lengths
    arrivals: Arrivals
    requests: int = 0
    source: str = ""
    notes: tuple[str, ...] = field(default_factory=tuple)
    reuse: Reuse | None = None
