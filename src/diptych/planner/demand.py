"""What is asked of a fleet, request by request: a trace as it was, faster, shorter or drawn again; or a description, drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from diptych.errors import Finding, InvalidInput
from diptych.simulator.demand import Requests, from_workload, together
from diptych.units import parse_count
from diptych.workload.load import load_workload, locate
from diptych.workload.presets import SOURCES
from diptych.workload.replay import Replay, is_trace, read_replay
from diptych.workload.trace import Trace

MOST_REQUESTS = 5_000_000
"""Drawn or replayed at once: about 150 bytes each while they run."""
LONG = 200_000
"""More requests than this are not held where nobody asks for each of them."""
LONG_FILE = 2_000_000
"""Bytes of a trace, packed or not, from which it may be that long."""
USUAL_REQUESTS = 10_000
_IN_BINS = "a long run: requests are counted and not kept, and quantiles of latencies are within 0.6 %"
_PER = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_FACTOR = re.compile(r"^(?:[x×]\s*(\S+)|(\S+?)\s*[x×])$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests per second, or a multiple of the workload's own rate."""

    value: float
    relative: bool = False

    def __str__(self) -> str:
        return f"×{self.value:g}" if self.relative else f"{self.value:g}"

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Requests/s from '30', '1.2k/min'; a multiple from '×1.5', 'x1.5', '1.5x'. Raises `ValueError` with a sentence.

        >>> Rate.parse("x1.5"), Rate.parse("1.2k/min")
        (Rate(value=1.5, relative=True), Rate(value=20.0, relative=False))
        """
        text = text.strip()
        factor = _FACTOR.match(text)
        number, _, per = (factor[1] or factor[2], "", "") if factor else text.partition("/")
        if per.strip() not in _PER:
            raise ValueError(
                f"unknown time {per!r} in {text!r}; a rate takes /s, /min, /h or /d, or is a multiple such as x1.5"
            )
        value = parse_count(number) / _PER[per.strip()]
        if not value > 0:
            raise ValueError(f"{text} is not above zero")
        return cls(value, bool(factor))


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Requests to simulate, with the name and the source of what they come from, and what to know about them."""

    requests: Requests
    name: str
    source: str
    notes: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Requests/s from the first arrival to the last."""
        return self.requests.rate


@dataclass(frozen=True, slots=True, eq=False)
class LongDemand:
    """Requests that come in parts and are never held, about `count` of them at `rate` requests/s."""

    parts: Callable[[], Iterator[Requests]]
    count: int
    rate: float
    name: str
    source: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """How a workload is turned into requests. `base` is the rate that a relative `rate` multiplies and that holds without one,
    where it is not the workload's own; `duration` (s) and `requests` end the arrivals; `resample` draws a trace again."""

    rate: Rate | None = None
    base: float | None = None
    duration: float | None = None
    requests: int | None = None
    resample: bool = False
    seed: int = 0
    columns: Mapping[str, str] | None = None
    prefix_hit: float | None = None
    sort: bool = False
    drop_empty: bool = False


def demand(
    spec: str, asked: Asked, say: Callable[[str], None] | None = None, progress: Callable[..., Any] | None = None
) -> Demand:
    """The requests that `spec` (a trace, a bundled one, `preset:…`, `fixed:…`) means under `asked`.

    A trace keeps its arrivals, its order and its prefix blocks; one without times, and every description, gets Poisson arrivals
    or gaps of the burstiness it names.

    Raises:
        InvalidInput: every finding of the workload, or a rate that nothing gives.
    """
    if not is_trace(spec, asked.columns):
        return _described(spec, asked, say, progress)
    rows = read_replay(
        spec, columns=asked.columns, sort=asked.sort, drop_empty=asked.drop_empty, say=say, progress=progress
    )
    return _replayed(rows, asked)


def long_demand(spec: str, asked: Asked, say: Callable[[str], None] | None = None) -> LongDemand | None:
    """The same as parts that nobody holds, when it is more than `LONG` requests; None when it is to be held: a short one, a trace
    with prefix blocks or without times, one that is drawn again.

    Raises what `demand` raises.
    """
    if not is_trace(spec, asked.columns):
        return _long_described(spec, asked, say)
    path, name, _ = locate(spec, say)
    if asked.resample or path.stat().st_size < LONG_FILE:
        return None
    trace = Trace(path, name, asked.columns, sort=asked.sort, drop_empty=asked.drop_empty)
    if trace.requests <= LONG or trace.layout.blocks or not trace.layout.arrival:
        trace.close()
        return None
    return _long_trace(trace, asked, f"{SOURCES.get(name, name)}, read as {trace.layout.format}")


def _long_described(spec: str, asked: Asked, say: Callable[[str], None] | None) -> LongDemand | None:
    workload = load_workload(spec, columns=asked.columns, prefix_hit=asked.prefix_hit, say=say)
    rate = _target(asked, workload.arrivals.rate, workload.name)
    count = asked.requests if asked.requests or asked.duration else USUAL_REQUESTS
    expected = int(min(count or np.inf, asked.duration * rate if asked.duration else np.inf))
    if expected <= LONG:
        return None
    parts = partial(from_workload, workload, asked.seed, rate=rate, count=count, duration=asked.duration)
    return LongDemand(parts, expected, rate, workload.name, workload.source, (*workload.notes, _IN_BINS))


def _long_trace(trace: Trace, asked: Asked, source: str) -> LongDemand:
    first, last = trace.span()
    own = (trace.requests - 1) / (last - first)
    relative = asked.rate is not None and asked.rate.relative and not asked.base
    same = asked.rate is None and not asked.base
    rate = own if same else own * asked.rate.value if relative and asked.rate else _target(asked, own, trace.name)
    share = 1.0 if asked.prefix_hit is None else asked.prefix_hit

    def parts() -> Iterator[Requests]:
        left = asked.requests or trace.requests
        with trace:
            for times, isl, osl in trace.parts():
                assert times is not None
                cached = None if asked.prefix_hit is None else np.floor(share * isl).astype(np.int64)
                part = Requests((times - first) * (own / rate), isl, osl, cached, name=trace.name).first(left)
                if asked.duration is not None:
                    part = part.first(int(np.searchsorted(part.arrival, asked.duration, side="right")))
                if len(part):
                    yield part
                left -= len(part)
                if len(part) < len(isl) or not left:
                    return

    notes = [f"{trace.dropped:,} requests without tokens left out"] if trace.dropped else []
    notes += [f"{share:.0%} of every prompt taken as cached"] if asked.prefix_hit is not None else []
    expected = min(asked.requests or trace.requests, asked.duration * rate if asked.duration else np.inf)
    return LongDemand(parts, int(expected), rate, trace.name, source, (*notes, _IN_BINS))


def _described(
    spec: str, asked: Asked, say: Callable[[str], None] | None, progress: Callable[..., Any] | None
) -> Demand:
    workload = load_workload(spec, columns=asked.columns, prefix_hit=asked.prefix_hit, say=say, progress=progress)
    rate = _target(asked, workload.arrivals.rate, workload.name)
    count, duration = _ends(asked, rate)
    parts = list(from_workload(workload, asked.seed, rate=rate, count=count, duration=duration))
    requests = together(iter(parts))
    if not len(requests):
        raise InvalidInput(Finding("--duration", f"no request arrives in it at {rate:.3g} requests/s", "a longer one"))
    return Demand(requests, workload.name, workload.source, workload.notes)


def _ends(asked: Asked, rate: float) -> tuple[int | None, float | None]:
    """(count, duration) of drawn arrivals, bounded."""
    count = asked.requests if asked.requests or asked.duration else USUAL_REQUESTS
    expected = min(count or np.inf, asked.duration * rate if asked.duration else np.inf)
    if expected > MOST_REQUESTS:
        where = "--requests" if count and count > MOST_REQUESTS else "--duration"
        wanted = f"at most {MOST_REQUESTS:,} where each is kept"
        raise InvalidInput(Finding(where, f"about {expected:,.0f} requests", wanted, "without --out none is"))
    return count, asked.duration


def _target(asked: Asked, own: float, name: str) -> float:
    """The rate to draw at."""
    base = asked.base or own
    if asked.rate is not None and not asked.rate.relative:
        return asked.rate.value
    if not base:
        raise InvalidInput(Finding("--rate", f"{name} has no rate of its own", "requests/s such as 5"))
    return base * (asked.rate.value if asked.rate is not None else 1.0)


def _replayed(rows: Replay, asked: Asked) -> Demand:
    notes = list(rows.notes)
    if rows.arrival is None:
        requests = _poisson(rows, asked)
        notes.append("arrivals drawn: the trace has no times")
    else:
        requests = Requests(rows.arrival, rows.isl, rows.osl, None, rows.blocks, rows.block_tokens or 512, rows.name)
        requests = _at_rate(requests, asked)
    if asked.prefix_hit is not None:
        cached = np.floor(asked.prefix_hit * requests.isl).astype(np.int64)
        requests = replace(requests, cached=cached, blocks=None)
        notes.append(f"{asked.prefix_hit:.0%} of every prompt taken as cached")
    if asked.resample:
        requests = requests.resampled(asked.requests or len(requests), asked.seed)
        notes.append("requests and gaps drawn again from the trace")
    span = float(requests.arrival[-1])
    if asked.duration is not None:
        notes += [f"the trace ends after {span:.0f} s"] if span < asked.duration * 0.99 else []
        requests = requests.until(asked.duration)
    if asked.requests is not None:
        notes += [f"the trace has {len(requests):,} requests"] if len(requests) < asked.requests else []
        requests = requests.first(asked.requests)
    return Demand(requests, rows.name, rows.source, tuple(notes))


def _at_rate(requests: Requests, asked: Asked) -> Requests:
    """Time stretched to the rate asked for; a trace's own pace without one."""
    if asked.rate is not None and asked.rate.relative and not asked.base:
        return requests.faster(asked.rate.value)
    if asked.rate is None and not asked.base:
        return requests
    return requests.at_rate(_target(asked, requests.rate, requests.name))


def _poisson(rows: Replay, asked: Asked) -> Requests:
    """The rows in order, with exponential gaps."""
    rate = _target(asked, 0.0, rows.name)
    gaps = np.random.default_rng(asked.seed).exponential(1.0 / rate, len(rows))
    return Requests(np.cumsum(gaps), rows.isl, rows.osl, None, rows.blocks, rows.block_tokens or 512, rows.name)
