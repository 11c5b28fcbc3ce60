"""Which loads a fleet is sized for: the average alone, the whole trace as its load swings, or its busiest step all the time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.perf.estimate import Array
from diptych.workload.profile import MIXES
from diptych.workload.workload import Arrivals


class Sizing(StrEnum):
    """What a fleet is sized for."""

    AVERAGE = "average"  # the SLO holds if arrivals keep their average rate
    TRACE = "trace"  # the SLO's percentile holds over all requests of the trace, rushes included
    PEAK = "peak"  # the SLO holds inside the busiest step too


PROMPTS, ANSWERS = 1.0, 0.0
"""What a pool works on, as the share of prompts in it."""


@dataclass(frozen=True, eq=False)
class Steps:
    """The loads that a pool is judged at, as multiples of the rate asked for, each with its share of the requests (R,).

    `work` has them by mix of prompts and answers (`profile.MIXES`), shape (mixes, R). The first is the one whose capacities must
    hold for good; where it stands for the average only, its share is 0. Steps last `lasting` seconds, ∞ for a rate that stays.
    `cv2` is the squared variation of the gaps inside a step.
    """

    work: NDArray[np.float64]
    share: NDArray[np.float64]
    lasting: float
    cv2: float

    @classmethod
    def steady(cls, cv2: float, work: Any = 1.0) -> Steps:
        """One rate for good, or one for every mix."""
        return cls(np.broadcast_to(np.asarray(work, dtype=float), (len(MIXES),))[:, None], np.ones(1), math.inf, cv2)

    @classmethod
    def of(cls, arrivals: Arrivals, sizing: Sizing, rate: float | None = None) -> Steps:
        """The steps of measured arrivals, time stretched to `rate` requests/s; batch work and unmeasured ones are steady."""
        profile, cv2 = arrivals.profile, max(arrivals.cv, 0.0) ** 2
        if arrivals.offline or sizing is Sizing.AVERAGE:
            return cls.steady(cv2)
        if sizing is Sizing.PEAK:
            return (
                cls.steady(profile.cv**2, [row[-1] for row in profile.work])
                if profile
                else cls.steady(cv2, arrivals.peak_to_mean)
            )
        if profile is None:
            return cls.steady(cv2)
        stretch = arrivals.rate / rate if rate and arrivals.rate else 1.0
        work = np.column_stack([np.ones(len(MIXES)), np.array(profile.work)])
        return cls(work, np.array([0.0, *profile.share]), profile.rush * stretch, profile.cv**2)

    def factor(self, prompts: float) -> NDArray[np.float64]:
        """The multiples of the rate by step, shape (R,), for work that is prompts to that share."""
        place = prompts * (len(MIXES) - 1)
        low = min(int(place), len(MIXES) - 2)
        return np.asarray(self.work[low] * (low + 1 - place) + self.work[low + 1] * (place - low))

    def at(self, prompts: float, rate: Any, *counts: Any) -> Array:
        """The rate of each step for work that is prompts to that share, shape (R, 1, ...): ones for the axes of `counts`."""
        axes = max((np.ndim(value) for value in (rate, *counts)), default=0)
        lifted: Array = np.asarray(rate) * self.factor(prompts).reshape((-1,) + (1,) * axes)
        return lifted

    def lowest(self, rate: Any, *counts: Any) -> Array:
        """A rate of each step that no mix of work lies below."""
        lowest: Array = np.min([self.at(mix, rate, *counts) for mix in MIXES], axis=0)
        return lowest

    def mean(self, values: Any) -> Array:
        """The mean over requests of what each step has, shape (R or 1, ...) → (...)."""
        values = np.asarray(values)
        used = self.share > 0 if len(values) > 1 else np.ones(1, dtype=bool)
        share = self.share[self.share > 0] if len(values) > 1 else np.ones(1)
        mean: Array = np.asarray(np.tensordot(share, values[used], axes=1))
        return mean

    def held_up(self, prompts: float, capacity: Any) -> Array:
        """Share of requests that come while what steps above the `capacity` (a multiple of the rate) have left is worked off.

        The excess drains at capacity less the average load, and the average load arrives meanwhile. Falls as capacity grows.
        """
        capacity = np.asarray(capacity, dtype=float)
        if math.isinf(self.lasting):
            return np.zeros(capacity.shape)
        factor, used = self.factor(prompts), self.share > 0
        factor, time = factor[used], self.share[used] / np.maximum(factor[used], 1e-12)
        excess = np.maximum(factor - capacity[..., None], 0.0) @ time
        late: Array = np.where(excess > 0, np.minimum(excess / np.maximum(capacity - 1.0, 1e-9), 1.0), 0.0)
        return late

    def least(self, share: float, prompts: float | None) -> float:
        """The largest multiple of the rate below which less than `share` of the requests arrive, the smallest there is for none.

        A promise that more than 1 − `share` of the requests may break at no step is kept at this one. None stands for work of
        any mix.
        """
        used = self.share > 0
        factor = self.work.min(axis=0) if prompts is None else self.factor(prompts)
        below = np.cumsum(self.share[used]) - self.share[used]
        return float(factor[used][max(int(np.sum(below < share - 1e-9)) - 1, 0)])
