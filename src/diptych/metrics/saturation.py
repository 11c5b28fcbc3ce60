"""Whether a run fell behind its load: then its latencies depend on how long it was watched."""

from __future__ import annotations

import numpy as np

from diptych.metrics.crowd import Crowd
from diptych.metrics.measurements import Measurements

GROWTH = 1.5
"""Requests in the system in the last quarter of the arrivals over those in the second, from which a queue grows."""
SLOWER = 1.3
"""And their mean latency over that of those who came in the second quarter: a rush fills a fleet without slowing it as much."""
SHORT = 3.0
"""Arrivals that span fewer mean latencies than this are mostly the filling of an empty fleet."""


def falls_behind(run: Measurements) -> str:
    """A sentence when more requests came than left towards the end; empty otherwise.

    The number in the system is averaged over quarters of the time in which requests arrive: a stable queue has about as many in
    the last as in the second, one that grows linearly 2.3 times as many.
    """
    requests = run.requests
    if len(requests) < 40:
        return ""
    begin, end = float(requests.arrival.min()), float(requests.arrival.max())
    edges = np.linspace(begin, end, 5)
    second, last = (_present(run, edges[at], edges[at + 1]) for at in (1, 3))
    came = int(np.sum(requests.arrival > edges[3]))
    left = int(np.sum((requests.finish > edges[3]) & (requests.finish <= end)))
    before, after = (_latency(run, edges[at], edges[at + 1]) for at in (1, 3))
    return _behind(second, last, came, left, before, after)


def crowd_falls_behind(crowd: Crowd) -> str:
    """The same of a run whose requests were not kept."""
    second, _, _, before = crowd.quarter(1)
    last, came, left, after = crowd.quarter(3)
    return _behind(second, last, came, left, before, after)


def _behind(second: float, last: float, came: int, left: int, before: float, after: float) -> str:
    """By the numbers in the system, who came and left in the last quarter, and the latencies before and after."""
    if last <= GROWTH * second or came - left <= max(10, 0.03 * came) or after <= SLOWER * before:
        return ""
    return (
        f"the fleet falls behind: {last:,.0f} requests in the system in the last quarter of the arrivals, {second:,.0f} in the "
        "second, so latencies grow with the length of the run"
    )


def too_short(run: Measurements) -> str:
    """A sentence when the run mostly shows an empty fleet filling up; empty otherwise."""
    requests = run.requests
    done = requests.finished
    if not done.any():
        return ""
    span, mean = float(requests.arrival.max() - requests.arrival.min()), float(requests.e2e[done].mean())
    if span >= SHORT * mean:
        return ""
    return f"a short run: arrivals span {span:.3g} s, a request takes {mean:.3g} s on average"


def _latency(run: Measurements, begin: float, end: float) -> float:
    """Mean end-to-end latency of those who came between two times; ∞ when none of them was served."""
    requests = run.requests
    mine = requests.finished & (requests.arrival >= begin) & (requests.arrival <= end)
    return float(requests.e2e[mine].mean()) if mine.any() else float("inf")


def _present(run: Measurements, begin: float, end: float) -> float:
    """Mean number of requests in the system between two times."""
    if end <= begin:
        return 0.0
    stay = np.minimum(run.requests.finish, end) - np.maximum(run.requests.arrival, begin)
    return float(np.clip(stay, 0.0, None).sum()) / (end - begin)
