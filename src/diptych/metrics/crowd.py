"""How many requests are in the system over a run that nobody keeps: arrivals, departures and latencies by slices of time."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from diptych.metrics.measurements import RequestColumns

SLICES = 4096
_Number = TypeVar("_Number", np.int64, np.float64)


class Crowd:
    """Slices of equal width from time 0 on; when a run outgrows them they are joined in pairs."""

    __slots__ = ("came", "first", "last", "latency", "left", "served", "width")

    def __init__(self) -> None:
        self.width = 1.0  # s
        self.first, self.last = float("inf"), 0.0  # arrivals
        self.came, self.left, self.served = (np.zeros(SLICES, np.int64) for _ in range(3))
        self.latency = np.zeros(SLICES)  # s of those who came in a slice and were served

    def add(self, requests: RequestColumns) -> None:
        """Requests that ended."""
        if not len(requests):
            return
        self.first = min(self.first, float(requests.arrival.min()))
        self.last = max(self.last, float(requests.arrival.max()))
        while float(requests.finish.max()) >= self.width * SLICES:
            self._join()
        came = (requests.arrival / self.width).astype(np.int64)
        done = requests.finished
        self.came += np.bincount(came, minlength=SLICES)
        self.left += np.bincount((requests.finish / self.width).astype(np.int64), minlength=SLICES)
        self.served += np.bincount(came[done], minlength=SLICES)
        self.latency += np.bincount(came[done], weights=requests.e2e[done], minlength=SLICES)

    def _join(self) -> None:
        self.width *= 2
        self.came, self.left, self.served = (_pairs(counts) for counts in (self.came, self.left, self.served))
        self.latency = _pairs(self.latency)

    def quarter(self, number: int) -> tuple[float, int, int, float]:
        """Of a quarter of the time in which requests arrive, 0 to 3: the mean number in the system, how many came and left in
        it, and the mean latency (s) of those who came and were served, ∞ when none was."""
        edges = np.linspace(self.first, self.last, 5)
        begin, end = (int(edges[at] / self.width) for at in (number, number + 1))
        part = slice(begin, max(end, begin + 1))
        present = np.cumsum(self.came - self.left)
        served = int(self.served[part].sum())
        latency = float(self.latency[part].sum()) / served if served else float("inf")
        return float(present[part].mean()), int(self.came[part].sum()), int(self.left[part].sum()), latency


def _pairs(values: NDArray[_Number]) -> NDArray[_Number]:
    joined = np.zeros_like(values)
    joined[: SLICES // 2] = values[::2] + values[1::2]
    return joined
