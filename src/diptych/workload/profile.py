"""How the load of a trace swings: the multiples of its average at which shares of its requests arrive.

A rush is not more of the same: prompts may grow while answers shrink. What a pool sees of it is the work of prompts, of answers,
or of both, so a profile has the swing of each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

WINDOW = 60.0
"""Seconds over which a rate is taken, where that holds `ENOUGH` requests on average."""
ENOUGH = 100.0
"""Requests of an average window: chance alone then swings its count by a tenth."""
EDGES = (0.25, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0)
"""Shares of the requests, slowest window first, at which the steps of a profile end; finer where percentiles lie."""
MIXES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of prompts in the work, the rest being answers, for which a profile has its steps."""
_FLOAT = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RateProfile:
    """Steps of the load, lightest first, each with its `share` of the requests.

    `work` has a row for each of `MIXES`: tokens per second of that mix over their average, by step. `rush` is how many seconds a
    time above the average lasts, as the average request in one sees it; windows are `window` s. `cv` is the coefficient of
    variation of the gaps inside windows: what is left of burstiness when the swing is taken out.
    """

    share: tuple[float, ...]
    work: tuple[tuple[float, ...], ...]
    rush: float
    window: float
    cv: float = 1.0

    @property
    def peak(self) -> float:
        """The busiest step over the average, of whichever work swings most."""
        return max(row[-1] for row in self.work)

    def stretched(self, factor: float) -> RateProfile:
        """The same with time stretched."""
        return replace(self, rush=self.rush * factor, window=self.window * factor)


def window_of(rate: float) -> float:
    """Seconds of a window for a trace of `rate` requests/s on average.

    >>> window_of(5.5), window_of(0.5)
    (60.0, 200.0)
    """
    return max(WINDOW, ENOUGH / rate)


def profile_of(
    requests: ArrayLike, window: float, prompts: ArrayLike | None = None, answers: ArrayLike | None = None, cv: float = 1.0
) -> RateProfile | None:  # fmt: skip
    """The profile of requests, and of their tokens where known, by whole window in order of time.

    None for fewer than two windows or no request. Raises nothing: windows without requests are times without load.
    """
    counts = np.asarray(requests, dtype=np.float64)
    if len(counts) < 2 or not counts.sum() > 0:
        return None
    sides = [np.asarray(counts if side is None else side, dtype=np.float64) for side in (answers, prompts)]
    answered, prompted = (side / side.mean() for side in sides)
    shares = counts / counts.sum()
    work = tuple(
        tuple(_steps((1 - mix) * answered + mix * prompted, shares).tolist()) for mix in MIXES
    )  # each a row of its own order: one mix peaks where another does not
    ends = np.array((0.0, *EDGES))
    return RateProfile(tuple(np.diff(ends).tolist()), work, _rush(counts / counts.mean()) * window, window, cv)


def _steps(load: _FLOAT, shares: _FLOAT) -> _FLOAT:
    """The mean load between every two of `EDGES` of the requests, lightest first. Shape (len(EDGES),)."""
    order = np.argsort(load, kind="stable")
    reached = np.concatenate([[0.0], np.cumsum(shares[order])])
    total = np.concatenate([[0.0], np.cumsum(shares[order] * load[order])])
    ends = np.interp(np.array((0.0, *EDGES)) * reached[-1], reached, total)
    return np.maximum.accumulate(np.diff(ends) / np.diff(np.array((0.0, *EDGES))))


def _rush(relative: _FLOAT) -> float:
    """Windows of a run above the average, weighted by the requests in it; 1 where nothing is."""
    above = np.concatenate([[False], relative > 1, [False]])
    edges = np.flatnonzero(np.diff(above.astype(int)))
    sums = np.concatenate([[0.0], np.cumsum(relative)])
    starts, ends = edges[::2], edges[1::2]
    requests = sums[ends] - sums[starts]
    return float(requests @ (ends - starts) / requests.sum()) if len(starts) else 1.0
