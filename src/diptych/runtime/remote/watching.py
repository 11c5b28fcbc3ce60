"""Looking at another engine's workers once a second: which answer, what they have to do, what they handed over."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import Counter

from diptych.runtime.gateway.history import History
from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.gateway.roster import Worker
from diptych.runtime.remote.fleet import Fleet, answers, fails
from diptych.runtime.remote.reading import Moved, Reading, read
from diptych.runtime.remote.wire import Broken, Wire

EVERY = 1.0
"""Seconds between looks at one worker."""
MISSED = 2
"""Looks in a row without an answer, and a worker is down."""


class Watching:
    """One task per worker. `start` it in a running loop, and `stop` it."""

    def __init__(self, fleet: Fleet, wire: Wire, history: History, losses: Counter) -> None:
        self._fleet, self._wire, self._history, self._losses = fleet, wire, history, losses
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.get_running_loop().create_task(self._watch(each)) for each in self._fleet.roster]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, worker: Worker) -> None:
        before: Moved | None = None
        missed, was_up = 0, worker.up
        while True:
            try:
                reading = await self._look(worker)
            except (*Broken, Refusal) as error:
                missed += 1
                if missed >= MISSED:
                    fails(worker, f"does not answer: {type(error).__name__}")
                    worker.last = None
            else:
                missed = 0
                self._note(worker, reading, before)
                before = reading.moved
            if was_up and not worker.up:
                self._history.lost_worker(worker.name, worker.why)
                self._losses.labels(worker.name, worker.role, "does not answer").inc()
            was_up = worker.up
            await asyncio.sleep(EVERY)

    async def _look(self, worker: Worker) -> Reading:
        """Raises ClientError, TimeoutError, or Refusal where it says that it is not well."""
        status, _ = await self._wire.get(f"{worker.endpoint.address}/health")
        if status != 200:
            raise Refusal(502, f"answered {status}")
        _, text = await self._wire.get(f"{worker.endpoint.address}/metrics")
        return read(self._fleet.engine, text.decode(errors="replace"))

    def _note(self, worker: Worker, reading: Reading, before: Moved | None) -> None:
        if not worker.up:
            answers(worker)
        worker.hears(reading.load, time.monotonic())
        if before is not None:
            more = reading.moved.since(before)
            source, target = (worker.name, "") if worker.role == "prefill" else ("", worker.name)
            if more.count:
                self._history.moved(source, target, more.count, more.bytes, more.seconds)
            if more.converted:
                self._history.conversions["inside the engine"] += round(more.converted)
            for why in ("refused", "failed", "expired"):
                if lost := round(getattr(more, why)):
                    self._fleet.counts["handoff", f"{why} at {worker.role}"] += lost
