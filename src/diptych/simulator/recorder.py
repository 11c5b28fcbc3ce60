"""What a run writes down: a row per request, samples over time, and what bound. Memory stays flat when rows go to a sink."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from diptych.design.axes import Role
from diptych.metrics.measurements import COUNTS, TIMES, RequestColumns, Series
from diptych.simulator.clock import LOOK, NEVER, PS
from diptych.simulator.cluster import Cluster
from diptych.simulator.gateway import Gateway, Row

FIELDS = ("id", *TIMES, "isl", "osl", "retries", "outcome", "prefill_worker", "decode_worker")
BUFFER = 8192
MOST_SAMPLES = 512
Columns = Callable[[RequestColumns], None]


class Recorder:
    """Rows of requests that ended, packed every `BUFFER`; kept, or handed to `sink` and forgotten."""

    def __init__(self, sink: Columns | None = None) -> None:
        self.rows: list[Row] = []
        self.packed: list[NDArray[np.int64]] = []
        self.sink = sink
        self.count = 0
        self.first, self.last = NEVER, 0  # arrival, finish

    def flush_if_full(self) -> None:
        """Pack what is there when there is enough of it."""
        if len(self.rows) >= BUFFER:
            self.flush()

    def flush(self) -> None:
        """Pack what is there."""
        if not self.rows:
            return
        count = len(self.rows) * len(FIELDS)
        block = np.fromiter(chain.from_iterable(self.rows), np.int64, count).reshape(-1, len(FIELDS))
        self.count += len(block)
        self.rows.clear()
        self.first = min(self.first, int(block[:, 1].min()))
        self.last = max(self.last, int(block[:, 6].max()))
        if self.sink is None:
            self.packed.append(block)
        else:
            self.sink(columns(block))

    def requests(self) -> RequestColumns:
        """Everything kept, in order of id."""
        self.flush()
        table = np.concatenate(self.packed) if self.packed else np.empty((0, len(FIELDS)), np.int64)
        return columns(table[np.argsort(table[:, 0], kind="stable")])


def columns(table: NDArray[np.int64]) -> RequestColumns:
    """Rows of ps as columns of seconds."""
    named: dict[str, NDArray[np.int64]] = {name: table[:, at] for at, name in enumerate(FIELDS)}
    times = {name: np.where(named[name] < 0, np.nan, named[name] / PS) for name in TIMES}
    return RequestColumns(**times, **{name: named[name].copy() for name in COUNTS})  # type: ignore[arg-type]


class Sampler:
    """Looks at the fleet every `step` ps; when it has `MOST_SAMPLES` it keeps every other one and looks half as often."""

    def __init__(self, cluster: Cluster, gateway: Gateway, step: int) -> None:
        self.cluster, self.gateway, self.step = cluster, gateway, max(step, 1)
        self.times: list[int] = []
        self.rows: list[dict[str, float]] = []
        self.bound: dict[str, int] = {}
        self.looks = 0
        self.more = True  # requests are still to come
        cluster.clock.at(0, LOOK, self._look)

    def _look(self, now: int, about: object) -> None:
        self.times.append(now)
        self.rows.append(self._sample(now))
        self.looks += 1
        if len(self.times) >= MOST_SAMPLES:
            self.times, self.rows = self.times[::2], self.rows[::2]
            self.step *= 2
        if self.more or self.cluster.clock.awaits:
            self.cluster.clock.at(now + self.step, LOOK, self._look)

    def _sample(self, now: int) -> dict[str, float]:
        row: dict[str, float] = {}
        for role, pool in self.cluster.pools.items():
            if pool:
                self._sample_pool(role, row, now)
        if self.cluster.boundary is not None:
            row["kv_in_flight"] = sum(len(route.transfers) for route in self.cluster.network.routes)
            row["kv_bytes_moved"] = sum(route.moved for route in self.cluster.network.routes)
        row["live"] = len(self.gateway.live)
        row["held"] = len(self.gateway.held)
        return row

    def _sample_pool(self, role: Role, row: dict[str, float], now: int) -> None:
        pool = self.cluster.pools[role]
        queue = running = busy = occupied = cached = capacity = 0
        for worker in pool:
            queue += len(worker.waiting) + len(worker.asking)
            running += worker.batch + len(worker.ready) + len(worker.partial)
            busy += worker.busy_until(now)
            occupied += worker.occupied(now)
            cached += worker.cached(now)
            capacity += worker.pool.capacity
        row[f"{role}_queue"], row[f"{role}_running"], row[f"{role}_busy_s"] = queue, running, busy / PS
        row[f"{role}_kv_hbm"], row[f"{role}_kv_cached"] = occupied / capacity, cached / capacity
        for index, tier in enumerate(self.cluster.policy.tiers):
            stations = [self.cluster.stations[worker.index] for worker in pool]
            kept = [s.residency.tiers[index] for s in stations if s.residency is not None]
            room = sum(t.capacity for t in kept)
            row[f"{role}_kv_{tier.kind}"] = sum(len(t.blocks) for t in kept) / room if room else 0.0
        self._bind(role)

    def _bind(self, role: Role) -> None:
        """Which limits somebody waits at, each counted once however many workers it binds."""
        pool = self.cluster.pools[role]
        found = set()
        for worker in pool:
            if worker.batch + len(worker.ready) + len(worker.partial) >= worker.rules.sequences:
                found.add("sequences per step")
            elif worker.asking or (worker.waiting and not worker.chunks and worker.batch):
                found.add("KV blocks")
            elif worker.waiting:
                found.add("prefill tokens per step" if worker.chunks else "KV blocks")
        for what in sorted(found):
            self.bound[f"{role}: {what}"] = self.bound.get(f"{role}: {what}", 0) + 1

    def series(self) -> Series:
        """The samples by name; what did not exist at some time is NaN there."""
        names = sorted({name for row in self.rows for name in row})
        values = {name: np.array([row.get(name, np.nan) for row in self.rows], dtype=float) for name in names}
        return Series(np.array(self.times, dtype=float) / PS, values)
