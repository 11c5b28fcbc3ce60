"""What arrives when: requests of a trace as they were, scaled in time or drawn again; lengths with Poisson or bursty arrivals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diptych.errors import Finding, InvalidInput
from diptych.workload.lengths import Lengths
from diptych.workload.trace import Trace
from diptych.workload.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CHUNK = 16384


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """Requests in order of arrival (s), each array of shape (n,): lengths in tokens, prompt tokens known to be cached, and the
    hashes of each prompt's prefix blocks (of `hash_tokens` tokens) where a trace has them."""

    arrival: Floats
    isl: Ints
    osl: Ints
    cached: Ints | None = None
    blocks: tuple[tuple[int, ...], ...] | None = None
    hash_tokens: int = 512
    name: str = ""

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def rate(self) -> float:
        """Requests per second from the first to the last arrival; 0 when they span no time."""
        span = float(self.arrival[-1] - self.arrival[0]) if len(self) else 0.0
        return (len(self) - 1) / span if span > 0 else 0.0

    def at_rate(self, rate: float) -> Requests:
        """The same requests with time stretched to `rate` requests/s."""
        if not self.rate:
            raise InvalidInput(
                Finding("--rate", "these requests span no time to stretch", "a trace with arrival times")
            )
        return self.faster(rate / self.rate)

    def faster(self, factor: float) -> Requests:
        """The same requests, `factor` times as fast."""
        return replace(self, arrival=self.arrival / factor)

    def first(self, count: int) -> Requests:
        """The first `count` requests."""
        blocks = None if self.blocks is None else self.blocks[:count]
        cached = None if self.cached is None else self.cached[:count]
        return replace(
            self, arrival=self.arrival[:count], isl=self.isl[:count], osl=self.osl[:count], cached=cached, blocks=blocks
        )

    def until(self, seconds: float) -> Requests:
        """Those that arrive within `seconds` of the first."""
        return self.first(int(np.searchsorted(self.arrival - self.arrival[:1], seconds, side="right")))

    def resampled(self, count: int, seed: int) -> Requests:
        """`count` requests whose lengths and gaps are drawn from these, with replacement, gaps apart from lengths."""
        draw = np.random.default_rng(seed)
        rows = draw.integers(0, len(self), count)
        gaps = draw.choice(np.diff(self.arrival, prepend=self.arrival[:1]), count)
        blocks = None if self.blocks is None else tuple(self.blocks[row] for row in rows)
        cached = None if self.cached is None else self.cached[rows]
        return replace(
            self, arrival=np.cumsum(gaps), isl=self.isl[rows], osl=self.osl[rows], cached=cached, blocks=blocks
        )

    def chunks(self) -> Iterator[Requests]:
        """Consecutive slices of `CHUNK` requests."""
        for start in range(0, len(self), CHUNK):
            part = slice(start, start + CHUNK)
            yield replace(
                self,
                arrival=self.arrival[part],
                isl=self.isl[part],
                osl=self.osl[part],
                cached=None if self.cached is None else self.cached[part],
                blocks=None if self.blocks is None else self.blocks[part],
            )


def read_requests(path: Path, name: str = "", *, sort: bool = False, drop_empty: bool = True) -> Requests:
    """The requests of a trace file as they were; all at 0 without arrival times. Raises `InvalidTrace` with every finding."""
    with Trace(path, name, sort=sort, drop_empty=drop_empty) as trace:
        arrival, isl, osl, blocks = trace.rows()
        times = np.zeros(len(isl)) if arrival is None else arrival - arrival[0]
        return Requests(times, isl, osl, None, blocks, _hash_tokens(isl, blocks), trace.name)


def _hash_tokens(isl: Ints, blocks: tuple[tuple[int, ...], ...] | None, block: int = 16) -> int:
    """Tokens per hash: the least multiple of `block` with which no prompt is longer than its hashes."""
    if blocks is None:
        return 512
    counts = np.array([max(len(row), 1) for row in blocks])
    return int(-(-int(np.max(-(-isl // counts))) // block) * block)


def drawn(
    lengths: Lengths,
    rate: float,
    seed: int,
    *,
    count: int | None = None,
    duration: float | None = None,
    cv: float = 1.0,
    name: str = "",
) -> Iterator[Requests]:
    """Requests whose lengths are drawn from `lengths`, with gaps of mean 1/rate: exponential, or gamma of variation `cv`.

    Ends after `count` requests or `duration` seconds, whichever comes first; memory does not grow with either.
    """
    if count is None and duration is None:
        raise InvalidInput(Finding("--duration", "nothing says when to stop", "a duration or a number of requests"))
    draw = np.random.default_rng(seed)
    cumulative = np.cumsum(lengths.weight) / np.sum(lengths.weight)
    isl, osl, cached = (np.maximum(np.rint(column), low).astype(np.int64)
                        for column, low in ((lengths.isl, 1), (lengths.osl, 1), (lengths.cached, 0)))  # fmt: skip
    has_cached, now, left = bool(cached.any()), 0.0, count
    while left is None or left > 0:
        size = CHUNK if left is None else min(CHUNK, left)
        rows = np.minimum(np.searchsorted(cumulative, draw.random(size), side="right"), len(isl) - 1)
        shape = 1.0 / (cv * cv)
        gaps = draw.exponential(1.0, size) if cv == 1.0 else draw.gamma(shape, 1.0 / shape, size)
        times = now + np.cumsum(gaps) / rate
        now = float(times[-1])
        part = Requests(times, isl[rows], osl[rows], cached[rows] if has_cached else None, name=name)
        if duration is not None and now > duration:
            keep = int(np.searchsorted(times, duration, side="right"))
            yield part.first(keep)
            return
        yield part
        left = None if left is None else left - size


def together(parts: Iterator[Requests]) -> Requests:
    """All parts as one."""
    listed = list(parts)
    first = listed[0]
    return replace(
        first,
        arrival=np.concatenate([part.arrival for part in listed]),
        isl=np.concatenate([part.isl for part in listed]),
        osl=np.concatenate([part.osl for part in listed]),
        cached=None
        if first.cached is None
        else np.concatenate([part.cached for part in listed if part.cached is not None]),
    )


def from_workload(
    workload: Workload, seed: int, *, rate: float | None = None, count: int | None = None, duration: float | None = None
) -> Iterator[Requests]:
    """Requests drawn from a workload: its lengths, its rate and burstiness unless told otherwise."""
    rate = rate or workload.arrivals.rate
    if not rate:
        raise InvalidInput(
            Finding("--rate", f"{workload.name} has no rate of its own", "requests per second, such as 5")
        )
    return drawn(
        workload.lengths,
        rate,
        seed,
        count=count,
        duration=duration,
        cv=max(workload.arrivals.cv, 1e-3),
        name=workload.name,
    )
