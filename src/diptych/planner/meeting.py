"""Two sized pools and the boundary between them: what a fleet keeps at a rate, and its cheapest size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.catalog.interconnect import Link
from diptych.design.boundary import Boundary, Overlap, Ownership
from diptych.perf.decode_pool import normal_quantile
from diptych.perf.estimate import Array
from diptych.perf.handoff import Handoff, handoff
from diptych.perf.queueing import Wait, wait_while
from diptych.perf.transfer import LinkLoad, transfer_seconds
from diptych.planner.delay import Delay, no_wait
from diptych.planner.enumerate import Candidate, shared_instances
from diptych.planner.rushes import PROMPTS
from diptych.planner.seen import Seen
from diptych.planner.size import MOST_WORKERS, fewest, fluid
from diptych.planner.stages import DecodeStage, Margins, PrefillStage, answer_seconds, kept, statistic

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
    relaxed: bool = False

    @cached_property
    def handoff(self) -> Handoff:
        """The handoff of each length point. A `relaxed` one takes the best of every way to move the same bytes."""
        lengths = self.first.load.lengths
        priced = handoff(
            self.prefill.worker,
            self.decode.worker,
            self.boundary,
            lengths.isl,
            self.first.pool.service,
            link=self.route,
        )
        return replace(priced, ownership=Ownership.PULL) if self.relaxed else priced

    def relax(self) -> Meeting:
        """This meeting with a bound on every ownership and overlap.

        Streamed layer by layer without a dispatch, as a push may be, and reserving memory at the receiver only from the end of
        prefill, as a pull does. No way to move is faster or holds less, so what this cannot keep, none can.
        """
        best = replace(self.boundary, ownership=Ownership.PUSH, overlap=Overlap.LAYERWISE)
        return replace(self, boundary=best, relaxed=True)

    @cached_property
    def wire(self) -> tuple[float, float, float]:
        """Mean bytes, their squared variation, and the mean seconds of posting beyond bytes/bandwidth and latency."""
        boundary, sides = self.boundary, (self.prefill.worker.parallelism.tp, self.decode.worker.parallelism.tp)
        key = (self.route, boundary.placement, boundary.local_below, boundary.representation.wire, *sides)
        known = self.first.load.wires
        if key not in known:
            known[key] = self._priced_wire()
        return known[key]

    def _priced_wire(self) -> tuple[float, float, float]:
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

    def link(self, rate: Any, prefill_workers: Any, decode_workers: Any) -> LinkLoad:
        """The queue before one path (M/G/1): utilisation, seconds, wait. Only the part that grows with bytes varies.

        `rate` is a number or the prompts of every step, which then lasts no longer than a rush does.
        """
        mean, variation, posted = self.wire
        each = rate / self.paths(prefill_workers, decode_workers)
        seconds = float(transfer_seconds(self.route, mean, posted))
        share = mean / self.route.achievable / seconds if seconds else 0.0
        busy, drain = np.asarray(each * seconds), seconds * (1 + variation * share**2) / 2
        if math.isfinite(lasting := self.first.load.steps.lasting):
            waiting = wait_while(busy, drain, lasting)
        else:
            waiting = np.where(busy < 1, drain / np.where(busy < 1, 1 - busy, 1.0), np.inf)
        return LinkLoad(busy, np.asarray(seconds), Wait(np.minimum(busy, 1.0), waiting))

    def delay(self, rate: float, prefill_workers: Any, decode_workers: Any) -> Delay:
        """TTFT over all requests: wait, prefill, conversion, the link's queue, what of the transfer is exposed."""
        rates = self.first.load.steps.at(PROMPTS, rate, prefill_workers, decode_workers)
        return self._delay(rates, prefill_workers, self.link(rates, prefill_workers, decode_workers))

    def _delay(self, rates: Any, prefill_workers: Any, load: LinkLoad) -> Delay:
        prefill_workers = np.asarray(prefill_workers, dtype=float)
        alone = self.first.delay(rates, prefill_workers, self.handoff.delay, self._converting)
        return replace(alone, second=load.wait)

    @cached_property
    def _converting(self) -> float:
        """How much more a prefill worker does per request because it also converts."""
        return 1.0 + self._busy[0] / self.first.pool.mean_service

    def margins(self, rate: float, prefill_workers: Any, decode_workers: Any) -> Margins:
        """How far inside every promise and every capacity this fleet is; counts broadcast.

        Capacities must hold at the first step of the rate; a step in which one does not loses its requests to the promises.
        """
        slo, steps = self.first.load.slo, self.first.load.steps
        rates = steps.at(PROMPTS, rate, prefill_workers, decode_workers)
        load = self.link(rates, prefill_workers, decode_workers)
        waiting = np.where(np.isfinite(load.wait.mean), load.wait.mean, 1e9)
        slower = self.slowdown(rates, decode_workers)
        state = self.second.balance(rate, decode_workers, rates.ndim - 1)
        reserved = self.reserved(rates, decode_workers, waiting)
        margins, fits = self.second.judged(state, decode_workers, slower, reserved)
        room = self.prefill_room(rates, prefill_workers, waiting)
        margins["prefill memory"] = room[0]
        margins["prefill compute"] = FULL - self.prefill_utilisation(rates, prefill_workers)[0]
        margins["link"] = FULL - load.utilisation[0]
        fits = fits & (room >= 0)
        delay = self._delay(rates, prefill_workers, load)
        for goal in slo.of("ttft"):
            margins[f"ttft_{statistic(goal.quantile)}"] = delay.keeps(goal.quantile, goal.limit, fits)
        if slo.of("e2e"):
            longer = delay.after(answer_seconds(self.first.load, state.tpot_mean * slower))
            for goal in slo.of("e2e"):
                margins[f"e2e_{statistic(goal.quantile)}"] = longer.keeps(goal.quantile, goal.limit, fits)
        return {name: np.where(np.isnan(margin), -1.0, margin) for name, margin in margins.items()}

    @cached_property
    def _seen(self) -> Seen:
        key = (self.first, self.second, self.boundary, self.route, self.relaxed)
        return self.first.load.seen.setdefault(key, Seen())

    def keeps(self, rate: float, prefill_workers: Any, decode_workers: Any) -> NDArray[np.bool_]:
        """Whether fleets of these sizes keep everything, shape (n,) or (1,); the model is asked only where no look tells."""
        sizes = np.broadcast_arrays(*np.atleast_1d(prefill_workers, decode_workers))
        points = [(float(mine), float(theirs), rate) for mine, theirs in zip(*sizes, strict=True)]
        known = [self._seen.says(point) for point in points]
        if unknown := [i for i, verdict in enumerate(known) if verdict is None]:
            asked = (
                side if np.ndim(side) == 0 else np.asarray(side)[unknown] for side in (prefill_workers, decode_workers)
            )
            looked = np.broadcast_to(kept(self.margins(rate, *asked)), len(unknown))
            for i, verdict in zip(unknown, looked, strict=True):
                self._seen.note(points[i], bool(verdict))
                known[i] = bool(verdict)
        return np.array(known, dtype=np.bool_)

    def arrives(self, rate: float, prefill_workers: float, decode_workers: float) -> bool:
        """Whether first tokens keep their promises where memory and decode do: cheap to ask, and needed in any case."""
        if (known := self._seen.says((prefill_workers, decode_workers, rate))) is not None:
            return known
        rates = self.first.load.steps.at(PROMPTS, rate)
        load = self.link(rates, prefill_workers, decode_workers)
        if not load.utilisation[0] < FULL or not self.prefill_utilisation(rates, prefill_workers)[0] < FULL:
            return False
        delay = self._delay(rates, prefill_workers, load)
        return all(bool(delay.keeps(goal.quantile, goal.limit) >= 0) for goal in self.first.load.slo.of("ttft"))

    def prefill_utilisation(self, rate: Any, workers: Any) -> Array:
        """Busy share of a prefill worker, conversions included."""
        return self.first.pool.utilisation(rate * self._converting, workers)

    def slowdown(self, rate: Any, workers: Any) -> Array:
        """How much longer decode steps take because the workers also convert: 1/(1 − λ·c)."""
        if not self._busy[1]:
            return np.ones(())
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

    def usd_beside(self, prefill_workers: int = 0, decode_workers: int = 0) -> Callable[[int], float]:
        """The bill by the workers of the pool that is not given."""
        if prefill_workers:
            return lambda workers: self.usd_per_hour(prefill_workers, workers)
        return lambda workers: self.usd_per_hour(workers, decode_workers)

    def usd_per_hour(self, prefill_workers: int, decode_workers: int) -> float:
        """The bill: instances side by side where both pools may share them. Grows with both counts."""
        shared = shared_instances(self.prefill, prefill_workers, self.decode, decode_workers)
        if shared is not None:
            return shared * self.prefill.offer.usd_per_hour
        return self.prefill.usd_per_hour(prefill_workers) + self.decode.usd_per_hour(decode_workers)


@dataclass(frozen=True, slots=True)
class Sized:
    """A meeting with its counts and its bill.

    On `nodes` > 0 servers that each hold their part of both pools, requests stay on their server and each serves an equal share
    of the rate; 0 joins the pools over the network.
    """

    meeting: Meeting
    prefill_workers: int
    decode_workers: int
    usd_per_hour: float
    nodes: int = 0

    def part(self, rate: float) -> tuple[float, float, float]:
        """(rate, prefill workers, decode workers) of what queues together: one server, or the whole fleet."""
        groups = max(self.nodes, 1)
        return rate / groups, self.prefill_workers / groups, self.decode_workers / groups

    def margins(self, rate: float) -> Margins:
        return self.meeting.margins(*self.part(rate))

    def keeps(self, rate: float) -> bool:
        return bool(np.all(kept(self.margins(rate))))


def cheapest(
    meeting: Meeting, rate: float, prefill_least: int, decode_least: int, below: float = math.inf
) -> Sized | None:
    """The cheapest (N_P, N_D) of a meeting at `rate`, or None when none is below `below` USD/h.

    `prefill_least` and `decode_least` are the counts that a free handoff would need; the link needs as many paths as it is busy.
    Feasibility is monotone in both counts, so the fewest prefill workers fall as decode workers are added: a staircase. It is
    walked from the fewest decode workers up, and left when even the fewest prefill workers beside the next step would cost no
    less than what was found.
    """
    if meeting.usd_per_hour(prefill_least, decode_least) >= below:
        return None
    busy = float(meeting.link(rate, 1.0, 1.0).utilisation)
    groups = (meeting.prefill.worker.parallelism.dp, meeting.decode.worker.parallelism.dp)
    busy *= min(groups)  # seconds of transfer per second, over one path
    least = max(prefill_least, fluid(busy / groups[0], 1.0)), max(decode_least, fluid(busy / groups[1], 1.0))
    if meeting.usd_per_hour(*least) >= below or (meeting.first.load.slo.of("e2e") and not _possible(meeting)):
        return None
    best: Sized | None = None
    decode_workers = _next_decode(meeting, rate, least[0], least[1], below)
    while decode_workers is not None and meeting.usd_per_hour(least[0], decode_workers) < (
        best.usd_per_hour if best else below
    ):
        limit = best.usd_per_hour if best else below
        prefill_workers = _fewest_prefill(meeting, rate, decode_workers, least[0], limit)
        if prefill_workers is not None:
            best = Sized(
                meeting, prefill_workers, decode_workers, meeting.usd_per_hour(prefill_workers, decode_workers)
            )
            if prefill_workers == least[0]:
                break
        decode_workers += 1
        if best is None:
            decode_workers = _next_decode(meeting, rate, least[0], decode_workers, below)
    return best


def _possible(meeting: Meeting) -> bool:
    """Whether an idle fleet of any size keeps the promises: no queue, only work, conversion, transfer and lone steps."""
    return idle_in_time(meeting.first, meeting.second, meeting.handoff.delay)


def idle_in_time(first: PrefillStage, second: DecodeStage, handing: Any = 0.0) -> bool:
    """Whether two idle workers keep the promises on the first token and on the whole answer, the handoff taking `handing` s."""
    load, lone = first.load, float(second.pool.step(1.0))
    alone = Delay(first.pool.service + handing, load.lengths.weight, no_wait(), no_wait())
    whole = alone.after(answer_seconds(load, lone))
    kept = [alone.keeps(goal.quantile, goal.limit) for goal in load.slo.of("ttft")]
    kept += [whole.keeps(goal.quantile, goal.limit) for goal in load.slo.of("e2e")]
    return all(bool(margin >= 0) for margin in kept)


def _fewest_prefill(meeting: Meeting, rate: float, decode_workers: int, start: int, below: float) -> int | None:
    """The fewest prefill workers beside `decode_workers` whose bill stays below `below`; None when there are none."""
    most = _affordable(meeting.usd_beside(decode_workers=decode_workers), meeting.prefill, below, start)
    if most < start or not _keeps(meeting, rate, _endless(most), decode_workers):
        return None
    return fewest(lambda workers: meeting.keeps(rate, workers, decode_workers), start, most)


def _affordable(bill: Callable[[int], float], candidate: Candidate, below: float, start: int) -> int:
    """The most workers of a candidate with which the `bill` stays below `below`; MOST_WORKERS when it does not bound them."""
    hourly = candidate.share_per_hour(1)
    if math.isinf(below) or hourly <= 0:
        return MOST_WORKERS
    workers = min(math.ceil(below / hourly), MOST_WORKERS)
    low = start - 1
    while workers - low > 1:  # the bill grows with the count
        middle = (low + workers) // 2
        low, workers = (middle, workers) if bill(middle) < below else (low, middle)
    return low


def cheapest_on_nodes(
    meeting: Meeting, rate: float, prefill_least: int, decode_least: int, below: float = math.inf
) -> Sized | None:
    """The cheapest count of equal servers that each hold x prefill and y decode workers, over all x and y that fit.

    Fewer workers than a pooled fleet needs never suffice, since splitting a queue only lengthens waits; so n ≥ N_P/x and N_D/y.
    """
    offer, best = meeting.prefill.offer, None
    for x, y in _server_splits(meeting):
        limit = best.usd_per_hour if best else below
        start = max(-(-prefill_least // x), -(-decode_least // y))
        if start * offer.usd_per_hour >= limit:
            continue
        if not _possible(meeting):
            return None
        most = (
            MOST_WORKERS
            if math.isinf(limit) or not offer.usd_per_hour
            else math.ceil(limit / offer.usd_per_hour - 1e-9) - 1
        )
        nodes = _fewest_nodes(meeting, rate, x, y, start, min(most, MOST_WORKERS))
        if nodes is not None:
            best = Sized(meeting, nodes * x, nodes * y, nodes * offer.usd_per_hour, nodes)
    return best


def _server_splits(meeting: Meeting) -> Iterator[tuple[int, int]]:
    """(prefill, decode) workers that fit in one server together."""
    gpus, sizes = meeting.prefill.offer.gpus, (meeting.prefill.worker.accelerators, meeting.decode.worker.accelerators)
    for x in range(1, gpus // sizes[0] + 1):
        for y in range(1, (gpus - x * sizes[0]) // sizes[1] + 1):
            yield x, y


def _fewest_nodes(meeting: Meeting, rate: float, x: int, y: int, start: int, most: int) -> int | None:
    def keeps(nodes: int) -> bool:
        return _keeps(meeting, rate / nodes, float(x), float(y))

    if start > most or not keeps(most):
        return None
    low, high = start - 1, most
    step = 1
    while low + step < high and not keeps(low + step):
        low, step = low + step, step * 2
    high = min(low + step, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def _next_decode(meeting: Meeting, rate: float, prefill_least: int, start: int, below: float) -> int | None:
    """The fewest decode workers from `start` that do beside as many prefill workers as could be paid for; None for none.

    With more decode workers fewer prefill workers can be paid for, so what fails beside those of `start` fails further on.
    """
    prefill = _affordable(meeting.usd_beside(decode_workers=start), meeting.prefill, below, prefill_least)
    decode = _affordable(meeting.usd_beside(prefill_workers=prefill_least), meeting.decode, below, start)
    if prefill < prefill_least or decode < start:
        return None
    most = _endless(prefill), _endless(decode)
    if not meeting.arrives(rate, *most) or not _keeps(meeting, rate, *most):
        return None
    return fewest(lambda workers: meeting.keeps(rate, most[0], workers), start, decode)


def _keeps(meeting: Meeting, rate: float, prefill_workers: float, decode_workers: float) -> bool:
    return bool(meeting.keeps(rate, prefill_workers, decode_workers)[0])


def _endless(workers: int) -> float:
    return math.inf if workers >= MOST_WORKERS else workers
