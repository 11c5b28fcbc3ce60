"""The middle of a gateway over another engine's workers: requests driven, workers watched, what came of them counted."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress

from diptych.errors import DiptychError
from diptych.runtime.gateway.history import Finished, History
from diptych.runtime.gateway.meters import Meters, OfWorkers
from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.remote.answer import Answer
from diptych.runtime.remote.canary import Canary, send
from diptych.runtime.remote.drive import Driver
from diptych.runtime.remote.halves import Body
from diptych.runtime.remote.settings import Foreign
from diptych.runtime.remote.tally import Tally, with_usage
from diptych.runtime.remote.watching import Watching
from diptych.runtime.remote.wire import Broken, Wire

log = logging.getLogger("diptych.gateway")

TICK = 0.25


class ForeignService:
    """What `Listening` and `snapshot` need. `start` it in the loop that it is to run in."""

    def __init__(self, foreign: Foreign) -> None:
        self.foreign, self.settings = foreign, foreign.listen
        self.fleet = foreign.fleet
        self.roster = self.fleet.roster
        self.meters = Meters(self.settings.model)
        self.meters.registry.register(OfWorkers(self.roster, self.settings.model))
        self.meters.open.set_function(lambda: self.open)
        if self.settings.alternative_usd is not None:
            self.meters.alternative.labels(self.settings.alternative_name).set(self.settings.alternative_usd)
        self.history = History(self)
        self.models = b""
        self.open = 0
        self.draining = False
        self.started = time.time()
        self._driver: Driver | None = None
        self._watching: Watching | None = None
        self._ticking: asyncio.Task[None] | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the model, and send the canary. Raises DiptychError where KV does not cross, or crosses as something else."""
        wire = Wire(self.settings.worker_token, self.foreign.tls)
        self._driver = Driver(self.fleet, wire)
        try:
            self.models = await self._models()
            if self.foreign.canary:
                told = await self.canary()
                self._believe(told)
                log.info("canary: %s", told)
        except DiptychError:
            await self.stop()
            raise
        self._watching = Watching(self.fleet, wire, self.history, self.meters.worker_losses)
        self._watching.start()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    def _believe(self, told: Canary) -> None:
        """Raises DiptychError: what the canary tells forbids to serve."""
        if not told.crossed and not self.foreign.recompute:
            raise DiptychError(
                "the canary's KV did not cross: decode computes prompts itself; nothing is served unless "
                "--policy prefill=recompute allows that"
            )
        if not told.is_right:
            raise DiptychError(
                "the canary's text is not that of the decode worker alone: KV arrives as something else than was sent. "
                f"Alone {told.alone!r}, with prefill's KV {told.through!r}; nothing is served"
            )

    async def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        if self._watching is not None:
            await self._watching.stop()
        if self._driver is not None:
            await self._driver.close()

    async def drain(self, seconds: float) -> None:
        """Take nothing new; wait for what is open."""
        self.draining = True
        end = self.now() + seconds
        while self.open and self.now() < end:
            await asyncio.sleep(0.05)

    async def _tick(self) -> None:
        while True:
            self.history.tick(self.now())
            await asyncio.sleep(TICK)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def ask(self, path: str, body: Body) -> Answer:
        """The answer of both halves together. Raises Refusal."""
        if self.draining:
            raise self.refused(Refusal(503, "this server is about to stop", "draining", after=5))
        if self.open >= self.settings.limits.requests:
            raise self.refused(
                Refusal(429, "too many requests are open; try again later", "too_many_requests", after=1)
            )
        try:
            return await self.driver.ask(path, with_usage(body))
        except Refusal as refusal:
            raise self.refused(refusal) from None

    def refused(self, refusal: Refusal) -> Refusal:
        """The same, counted."""
        code = refusal.code or refusal.kind
        self.meters.refused.labels(code).inc()
        self.history.refused(code)
        return refusal

    def finished(self, tally: Tally) -> None:
        """An answer that a client has had whole."""
        now, meters = self.now(), self.meters
        meters.prompt_tokens.inc(tally.prompt_tokens)
        meters.output_tokens.inc(tally.output_tokens)
        meters.prompt_length.observe(tally.prompt_tokens)
        meters.answer_length.observe(tally.output_tokens)
        meters.ttft.observe(tally.first - tally.began)
        meters.e2e.observe(now - tally.began)
        if tally.tpot is not None:
            meters.tpot.observe(tally.tpot)
        meters.done.labels(self.settings.model, tally.ended or "stop").inc()
        self.history.told += tally.output_tokens
        self.history.lasted(Finished(now, tally.first - tally.began, tally.tpot, now - tally.began))

    def left(self) -> None:
        """A client that did not wait."""
        self.meters.cancelled.labels("client gone").inc()
        self.history.count("cancelled")

    # --- what is known ------------------------------------------------------------------------------------------------

    async def canary(self) -> Canary:
        """One long prompt through both roles. Raises DiptychError where they do not answer."""
        try:
            return await send(self.driver, first_name(self.models))
        except (Refusal, *Broken) as error:
            raise DiptychError(f"the canary got no answer: {error or type(error).__name__}") from None

    @property
    def driver(self) -> Driver:
        assert self._driver is not None
        return self._driver

    @property
    def is_ready(self) -> bool:
        """Whether a request could be served now."""
        able = {each.role for each in self.roster if each.up}
        return not self.draining and ({"prefill", "decode"} <= able or ("decode" in able and self.foreign.recompute))

    @property
    def retries_refused(self) -> int:
        return 0

    def stuck(self) -> list[str]:
        """Workers that have work and make no steps."""
        now = self.now()
        return [
            each.name
            for each in self.roster
            if each.up and each.last and now - each.moved > self.settings.stuck_seconds and each.last.running
        ]

    def ledger(self) -> dict[str, int]:
        """What is open here."""
        load = sum(each.load for each in self.roster)
        return {"attempts": self.open, "held": 0, "answers": self.open, "load": load}

    def now(self) -> float:
        return time.monotonic()

    async def _models(self) -> bytes:
        """What the first decode worker that answers says of its models. Raises DiptychError."""
        why = ""
        for url in self.foreign.decodes:
            try:
                status, body = await self.driver.wire.get(f"{url}/v1/models")
            except (Refusal, *Broken) as error:
                why = f"{url}: {type(error).__name__}"
                continue
            if status == 200 and first_name(body):
                return body
            why = f"{url} answered {status}"
        raise DiptychError(f"no decode worker says what it serves: {why}")


def first_name(models: bytes) -> str:
    """The first model in an answer of /v1/models; '' where there is none."""
    with suppress(ValueError, KeyError, TypeError, IndexError):
        return str(json.loads(models)["data"][0]["id"])
    return ""
