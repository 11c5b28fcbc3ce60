"""Two sized pools and the boundary between them: what a fleet keeps at a rate, and its cheapest size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from diptych.catalog.interconnect import Link
from diptych.design.boundary import Boundary
from diptych.perf.decode_pool import normal_quantile
from diptych.perf.estimate import Array
from diptych.perf.handoff import Handoff, handoff
from diptych.perf.transfer import link_load
from diptych.planner.delay import Delay
from diptych.planner.enumerate import Candidate
from diptych.planner.size import MOST_WORKERS, fewest, fluid
from diptych.planner.stages import DecodeStage, Margins, PrefillStage, answer_seconds, kept

FULL = 1 - 1e-9
"""A server this busy has an endless queue."""


@dataclass(frozen=True, eq=False)
class Meeting:
    """A prefill and a decode candidate with one boundary, their stages, and the path between one worker of each."""

    prefill: Candidate
    decode: Candidate
    first: PrefillStage
    second: DecodeStage
    boundary: Boundary
    route: Link

    @cached_property
    def handoff(self) -> Handoff:
        """The handoff of each length point."""
        lengths = self.first.load.lengths
        return handoff(
            self.prefill.worker,
            self.decode.worker,
            self.boundary,
            lengths.isl,
            self.first.pool.service,
            link=self.route,
        )

    @cached_property
    def _wire(self) -> tuple[float, float, float]:
        """Mean bytes, their squared variation, and the mean seconds of posting beyond bytes/bandwidth and latency."""
        lengths, size = self.first.load.lengths, self.handoff.wire_bytes
        mean = lengths.mean(size)
        variation = max(lengths.mean(size**2) / mean**2 - 1, 0.0) if mean > 0 else 0.0
        posting = lengths.mean(self.handoff.transfer) - float(self.route.seconds(mean)) if mean > 0 else 0.0
        return mean, variation, max(posting, 0.0) / self.route.per_piece if self.route.per_piece else 0.0

    @cached_property
    def _busy(self) -> tuple[float, float]:
        """Seconds of conversion per request on a prefill and on a decode worker."""
        lengths = self.first.load.lengths
        return lengths.mean(self.handoff.prefill_conversion), lengths.mean(self.handoff.decode_conversion)

    def paths(self, prefill_workers: Any, decode_workers: Any) -> Array:
        """Independent paths between the pools: each DP group of a worker has its own NICs."""
        mine = np.asarray(prefill_workers, dtype=float) * self.prefill.worker.parallelism.dp
        theirs = np.asarray(decode_workers, dtype=float) * self.decode.worker.parallelism.dp
        return np.asarray(np.minimum(mine, theirs))

    def link(self, rate: Any, prefill_workers: Any, decode_workers: Any) -> Any:
        """The queue before one path: utilisation, seconds, wait."""
        mean, variation, posted = self._wire
        return link_load(self.route, rate / self.paths(prefill_workers, decode_workers), mean, variation, posted)

    def delay(self, rate: Any, prefill_workers: Any, decode_workers: Any, extra: Any = 0.0) -> Delay:
        """TTFT: wait, prefill, conversion, the link's queue, what of the transfer is exposed; plus `extra`."""
        prefill_workers = np.asarray(prefill_workers, dtype=float)
        load = self.link(rate, prefill_workers, decode_workers)
        converting = 1.0 + self._busy[0] / self.first.pool.mean_service
        alone = self.first.delay(rate * converting, prefill_workers, self.handoff.delay + extra)
        return Delay(alone.sure, alone.weight, alone.first, load.wait)

    def margins(self, rate: Any, prefill_workers: Any, decode_workers: Any) -> Margins:
        """How far inside every promise and every capacity this fleet is; counts broadcast."""
        rate = np.asarray(rate, dtype=float)
        prefill_workers, decode_workers = np.broadcast_arrays(
            np.asarray(prefill_workers, dtype=float), np.asarray(decode_workers, dtype=float)
        )
        slo = self.first.load.slo
        load = self.link(rate, prefill_workers, decode_workers)
        waiting = np.where(np.isfinite(load.wait.mean), load.wait.mean, 1e9)
        slower = self.slowdown(rate, decode_workers)
        margins = self.second.margins(rate, decode_workers, slower, self.reserved(rate, decode_workers, waiting))
        delay = self.delay(rate, prefill_workers, decode_workers)
        for goal in slo.of("ttft"):
            margins[f"ttft_{_name(goal.quantile)}"] = delay.keeps(goal.quantile, goal.limit)
        if slo.of("e2e"):
            tpot = self.second.state(rate, decode_workers).tpot_mean * slower
            longer = Delay(delay.sure + answer_seconds(self.first.load, tpot), delay.weight, delay.first, delay.second)
            for goal in slo.of("e2e"):
                margins[f"e2e_{_name(goal.quantile)}"] = longer.keeps(goal.quantile, goal.limit)
        margins["prefill memory"] = self.prefill_room(rate, prefill_workers, waiting)
        margins["prefill compute"] = FULL - self.prefill_utilisation(rate, prefill_workers)
        margins["link"] = FULL - load.utilisation
        return {name: np.where(np.isnan(margin), -1.0, margin) for name, margin in margins.items()}

    def prefill_utilisation(self, rate: Any, workers: Any) -> Array:
        """Busy share of a prefill worker, conversions included."""
        converting = 1.0 + self._busy[0] / self.first.pool.mean_service
        return self.first.pool.utilisation(np.asarray(rate) * converting, workers)

    def slowdown(self, rate: Any, workers: Any) -> Array:
        """How much longer decode steps take because the workers also convert: 1/(1 − λ·c)."""
        groups = workers * self.decode.worker.parallelism.dp
        return np.asarray(1.0 / np.maximum(1.0 - np.asarray(rate) / groups * self._busy[1], 1e-6))

    def reserved(self, rate: Any, workers: Any, waiting: Any) -> Array:
        """Mean bytes per decode worker reserved for KV on its way."""
        worker, lengths = self.decode.worker, self.first.load.lengths
        size = worker.model.kv_bytes(lengths.isl, worker.precision.kv)
        held = lengths.mean(size * self.handoff.destination_seconds) + lengths.mean(size) * waiting
        return np.asarray(np.asarray(rate) / workers * held)

    def prefill_room(self, rate: Any, workers: Any, waiting: Any) -> Array:
        """Share of prefill memory left at the p99 of what is being computed or pinned until released.

        Prompts arrive as Poisson and hold their KV independently, so what is held is a compound Poisson sum.
        """
        worker, lengths = self.prefill.worker, self.first.load.lengths
        size = worker.model.kv_bytes(lengths.isl, worker.precision.kv)
        each = np.asarray(rate) / np.asarray(workers, dtype=float)
        seconds = self.first.pool.service + self.handoff.source_seconds()
        mean = each * (lengths.mean(size * seconds) + lengths.mean(size) * waiting)
        square = each * (lengths.mean(size**2 * seconds) + lengths.mean(size**2) * waiting)
        peak = np.maximum(mean + normal_quantile(0.99) * np.sqrt(square), np.max(size))
        return np.asarray((self.first.kv_capacity - peak) / max(self.first.kv_capacity, 1.0))

    def usd_per_hour(self, prefill_workers: int, decode_workers: int) -> float:
        return self.prefill.usd_per_hour(prefill_workers) + self.decode.usd_per_hour(decode_workers)

    def kept(self, rate: float, prefill_workers: int, decode_workers: int) -> bool:
        return bool(np.all(kept(self.margins(rate, prefill_workers, decode_workers))))


@dataclass(frozen=True, slots=True)
class Sized:
    """A meeting with its counts and its bill."""

    meeting: Meeting
    prefill_workers: int
    decode_workers: int
    usd_per_hour: float


def cheapest(
    meeting: Meeting, rate: float, prefill_least: int, decode_least: int, below: float = math.inf
) -> Sized | None:
    """The cheapest (N_P, N_D) of a meeting at `rate`, or None when none is below `below` USD/h.

    `prefill_least` and `decode_least` are the counts that a free handoff would need. Feasibility is monotone in both counts, so
    the fewest prefill workers fall as decode workers are added: a staircase. It is walked from the fewest decode workers up,
    and left when even the fewest prefill workers beside the next step would cost no less than what was found.
    """
    if not _possible(meeting):
        return None
    best: Sized | None = None
    for decode_workers in _steps(meeting, rate, decode_least):
        floor = meeting.usd_per_hour(prefill_least, decode_workers)
        if floor >= (best.usd_per_hour if best else below):
            break
        prefill_workers = _fewest_prefill(meeting, rate, decode_workers, prefill_least)
        if prefill_workers is None:
            continue
        cost = meeting.usd_per_hour(prefill_workers, decode_workers)
        if cost < (best.usd_per_hour if best else below):
            best = Sized(meeting, prefill_workers, decode_workers, cost)
        if prefill_workers == prefill_least:
            break
    return best


def _possible(meeting: Meeting) -> bool:
    """Whether an idle fleet of any size keeps the TTFT promises: no queue, only work, conversion and transfer."""
    sure = meeting.first.pool.service + meeting.handoff.delay
    weight = meeting.first.load.lengths.weight
    for goal in meeting.first.load.slo.of("ttft"):
        value = float(sure @ weight) if goal.quantile is None else float(weight @ (sure <= goal.limit))
        if value > goal.limit if goal.quantile is None else value < goal.quantile - 1e-12:
            return False
    return True


def _steps(meeting: Meeting, rate: float, decode_least: int) -> Iterator[int]:
    """Decode counts worth trying: from the fewest that the link and memory allow even beside endless prefill workers."""

    def keeps(workers: Array) -> Any:
        margins = meeting.margins(rate, np.inf, workers)
        names = ("link", "decode memory")
        return np.logical_and.reduce(
            [margins[name] >= 0 for name in margins if name in names or name.startswith("tpot")]
        )

    slowest = meeting.link(rate, 1.0, 1.0).utilisation / meeting.decode.worker.parallelism.dp
    first = fewest(keeps, max(decode_least, fluid(float(slowest), 1.0)))
    if first is None:
        return
    yield from range(first, MOST_WORKERS)


def _fewest_prefill(meeting: Meeting, rate: float, decode_workers: int, start: int) -> int | None:
    """The fewest prefill workers beside `decode_workers`."""
    slowest = float(meeting.link(rate, 1.0, 1.0).utilisation) / meeting.prefill.worker.parallelism.dp
    begin = max(start, fluid(slowest, 1.0))
    endless = meeting.margins(rate, np.inf, decode_workers)
    if not bool(np.all(kept(endless))):
        return None
    return fewest(lambda workers: kept(meeting.margins(rate, workers, decode_workers)), begin)


def _name(q: float | None) -> str:
    return "mean" if q is None else f"p{q * 100:g}"
