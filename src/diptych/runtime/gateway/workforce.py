"""The gateway's side of its workers: connections made and kept, strangers turned away, silence noticed.

What a worker says of requests is passed on; what it says of itself ends in the roster.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import ssl
from collections.abc import Callable

from diptych.runtime.gateway.link import HELLO_SECONDS, Link, agreed_version, keep
from diptych.runtime.gateway.prefix_index import PrefixIndex
from diptych.runtime.gateway.roster import Condition, Roster, Worker
from diptych.runtime.gateway.settings import Settings
from diptych.runtime.messages import Ask, Drain, Drained, Ended, Failed, FromWorker, Handed, Hello, Load, Ready, Tokens
from diptych.runtime.peer.address import Address

log = logging.getLogger("diptych.gateway")

OfRequests = Tokens | Ended | Failed | Handed


class Workforce:
    """The connections. `on_work` gets what is said of requests, `on_lost` a worker that was up and is gone, and why."""

    def __init__(
        self,
        settings: Settings,
        roster: Roster,
        now: Callable[[], float],
        on_work: Callable[[Worker, OfRequests], None],
        on_lost: Callable[[Worker, str], None],
    ) -> None:
        self._settings, self._roster, self._now = settings, roster, now
        self._on_work, self._on_lost = on_work, on_lost
        self._life = secrets.randbits(62)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Connect to every worker and keep at it."""
        loop = asyncio.get_running_loop()
        hello = Hello("gateway", "gateway", self._life, token=self._settings.worker_token)
        for worker in self._roster:
            address = Address.of(worker.endpoint.address)
            by_tls = not address.path and (self._settings.worker_ca or not address.is_local)
            tls = worker_tls(self._settings) if by_tls else None
            keeping = keep(address, hello, tls, lambda worker=worker: self._new_link(worker))  # type: ignore[misc]
            self._tasks.append(loop.create_task(keeping))

    async def stop(self) -> None:
        """Close every link; that is no loss of a worker."""
        for worker in self._roster:
            worker.link = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _new_link(self, worker: Worker) -> Link:
        link = Link(lambda message: self._said(worker, message), lambda why: self._closed(worker, link, why))
        worker.link, worker.heard, worker.hello, worker.last = link, self._now(), None, None
        return link

    def _closed(self, worker: Worker, link: Link, why: str) -> None:
        if worker.link is not link:
            return
        was_up = worker.condition in (Condition.UP, Condition.DRAINING)
        worker.forgets()
        if worker.condition is not Condition.REFUSED:
            worker.becomes(Condition.DOWN, self._now(), why)
        if was_up:
            log.warning("lost %s %s: %s", worker.role, worker.name, why)
            self._on_lost(worker, why)

    def _said(self, worker: Worker, message: FromWorker) -> None:
        match message:
            case Tokens() | Ended() | Failed() | Handed():
                self._on_work(worker, message)
            case Load():
                worker.hears(message, self._now())
            case Hello():
                self._greeted(worker, message)
            case Ready():
                self._readied(worker, message)
            case Drained():
                worker.becomes(Condition.DRAINING, self._now(), "drained")

    def _greeted(self, worker: Worker, said: Hello) -> None:
        worker.hello = said
        version = agreed_version(said)
        if version is None:
            return self._turn_away(worker, f"it speaks versions {said.oldest} to {said.newest} of the protocol")
        if (said.name, said.role) != (worker.name, worker.role):
            return self._turn_away(
                worker, f"{said.role} {said.name!r} answers at the address of {worker.role} {worker.name!r}"
            )
        wanted = self._settings.worker_token
        if not Address.of(worker.endpoint.address).is_local and not hmac.compare_digest(said.token, wanted):
            return self._turn_away(worker, "it does not know the workers' token")
        if worker.life not in (None, said.life):
            worker.restarts += 1
            worker.prefixes = PrefixIndex(worker.prefixes.capacity)
        worker.life = said.life
        return None

    def _turn_away(self, worker: Worker, why: str) -> None:
        worker.becomes(Condition.REFUSED, self._now(), why)
        log.error("%s %s refused: %s", worker.role, worker.name, why)
        if worker.link is not None:
            worker.link.end(why)

    def _readied(self, worker: Worker, said: Ready) -> None:
        if worker.hello is None:
            return self._turn_away(worker, "it did not say hello")
        others = {each.ready.vocabulary for each in self._roster if each.up and each.ready and each is not worker}
        if others and said.vocabulary not in others:
            return self._turn_away(worker, f"a vocabulary of {said.vocabulary} beside others of {sorted(others)}")
        now = self._now()
        worker.ready, worker.heard, worker.moved, worker.failures = said, now, now, 0
        worker.prefixes.capacity = max(1, said.blocks * said.block_tokens // 32)
        worker.becomes(Condition.UP, now)
        log.info("%s %s is up: %s %s", worker.role, worker.name, said.hardware, said.precision)
        return None

    def drain(self, name: str) -> bool:
        """Ask a worker to finish what it has; False when it is not there."""
        worker = self._roster.workers.get(name)
        if worker is None or worker.link is None or not worker.link.send(Drain()):
            return False
        worker.becomes(Condition.DRAINING, self._now(), "asked to")
        return True

    def listen_for_silence(self, now: float) -> None:
        """Links to workers that have missed their heartbeats are closed."""
        patience = self._settings.heartbeat_seconds * self._settings.missing
        for worker in self._roster:
            if worker.link is None:
                continue
            up = worker.condition in (Condition.UP, Condition.DRAINING)
            if now - worker.heard > (patience if up else HELLO_SECONDS):
                worker.link.end("no heartbeat")

    def excuse(self, now: float) -> None:
        """It was this process that stood still: nobody is silent for it."""
        for worker in self._roster:
            worker.heard = max(worker.heard, now)

    def ask_ledgers(self) -> None:
        """Every worker says its load now."""
        for worker in self._roster:
            if worker.link is not None and worker.up:
                worker.link.send(Ask())

    def stuck(self) -> list[str]:
        """Workers that have work and make no steps."""
        now = self._now()
        return [each.name for each in self._roster if each.up and now - each.moved > self._settings.stuck_seconds]


def worker_tls(settings: Settings) -> ssl.SSLContext:
    """Whom this gateway believes to be a worker, and what it shows of itself."""
    context = ssl.create_default_context(cafile=settings.worker_ca or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if settings.worker_certificate:
        context.load_cert_chain(settings.worker_certificate, settings.worker_key or None)
    return context
