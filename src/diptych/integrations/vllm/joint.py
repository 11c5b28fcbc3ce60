"""One vLLM worker's half of every handoff: a thread that runs the protocol's two sides over vLLM's own blocks.

The rules are not here. `runtime.handoff` says what is to be done, `runtime.peer` moves frames, `boundary` converts; this runs
them beside vLLM's engine, which asks in passing and is told what has finished.

Nothing that is received is vLLM's to read before every byte of a prompt is here, counted and right, and the source, still holding
it under the same epoch, has said that it is done. Both sides use blocks that vLLM gives to others only when this says so.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from diptych.boundary import serial
from diptych.boundary.frame import MAX_PAYLOAD, OLDEST_VERSION, VERSION
from diptych.boundary.messages import Hello, Speaker
from diptych.boundary.wire_table import WireTable
from diptych.errors import Finding, InvalidInput
from diptych.integrations.vllm.arriving import Arriving
from diptych.integrations.vllm.counts import Counts, added, nothing
from diptych.integrations.vllm.doorbell import Doorbell, Ring, ring
from diptych.integrations.vllm.host import STALL_MS, Blocks, Rank
from diptych.integrations.vllm.jobs import Fetch, Finished, Keep, Made, Make, Tell
from diptych.integrations.vllm.leaving import Leaving
from diptych.integrations.vllm.settings import WHERE, Settings
from diptych.runtime.peer import events
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.peers import Peers
from diptych.runtime.worker.lingering import Lingering

_BUSY_S, _IDLE_S = 0.01, 0.5
SHORT = 60
"""Bytes of a directory's name with room for a socket file's in it."""


class Joint:
    """Both sides of this worker's handoffs. Its methods may be called from any thread; the work is done on one of its own."""

    def __init__(
        self,
        rank: Rank,
        blocks: Blocks,
        settings: Settings,
        log: Callable[[str], None],
        speaker: Speaker = Speaker.PREFILL,
    ) -> None:
        self.rank, self.blocks, self.settings, self.log = rank, blocks, settings, log
        self.state, self.kept = blocks.state, blocks.kept()
        self.kept_own, self.kept_digest = self.kept.own(), serial.digest(self.kept.state)
        self.table, self.events = WireTable(), SimpleQueue[events.Event | Callable[[], None] | None]()
        digest, life = bytes.fromhex(serial.digest(self.state)), time.time_ns() & ((1 << 62) - 1)
        hello = Hello(speaker, rank.name, life, OLDEST_VERSION, VERSION, digest, MAX_PAYLOAD, rank.number, rank.ranks)
        self.peers = Peers(hello, self.table, self.events.put, settings.tls)
        self._finished, self._counts, self._gate = Finished(), nothing(), threading.Lock()
        self._news = threading.Event()
        self._began = time.monotonic_ns()
        self.lingering = Lingering(self.peers, STALL_MS)
        self.leaving, self.arriving = Leaving(self), Arriving(self)
        near = "/tmp" if len(tempfile.gettempdir()) > SHORT else None  # noqa: S108 (a directory of its own in it)
        self._folder = "" if settings.host else tempfile.mkdtemp(prefix="diptych-", dir=near)
        self.listening = str(self.peers.listen(self._address("peer", 0)))
        bell = self._address("bell", settings.port)
        try:
            self._doorbell = Doorbell(bell, self.leaving.rung, settings.tls)
        except OSError as error:
            self.peers.close()
            raise InvalidInput(
                Finding(f"{WHERE}.port", f"{bell}: {error}"[:200], "an address that is free here")
            ) from None
        self.doorbell = str(self._doorbell.address)
        self._thread = threading.Thread(target=self._run, name="joint", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _address(self, name: str, port: int) -> Address:
        """Where something of this worker's listens: a socket file that only its user reaches, unless a host or port is wanted."""
        if not self.settings.host and not port:
            return Address(path=f"{self._folder}/{name}.sock")
        return Address(host=self.settings.host or "127.0.0.1", port=port and port + self.rank.number)

    # --- from vLLM, on any thread -------------------------------------------------------------------------------------

    def make(self, job: Make) -> None:
        """Push: a prompt is to be made; `take` tells when there is room for it, or never will be."""
        self.events.put(partial(self.leaving.make, job))

    def made(self, job: Made, layer: int) -> None:
        """Push: a forward pass has filled this layer's blocks."""
        self.events.put(partial(self.leaving.made, job, layer, self.blocks.fence()))

    def keep(self, job: Keep) -> None:
        """A prompt is computed here."""
        self.events.put(partial(self.leaving.keep, job))

    def halt(self, request: str, tell: bool) -> None:
        """Push: a prompt that was being made is given up. Where vLLM is not to be told, wait until nothing reads its blocks."""
        self.events.put(partial(self.leaving.halt, request, tell))
        while not tell and not self._ask(partial(self.leaving.is_quiet, request)):
            time.sleep(0.001)

    def fetch(self, job: Fetch) -> None:
        """A prompt is wanted here; `take` tells when it is here or failed."""
        self.events.put(partial(self.arriving.fetch, job))

    def say(self, job: Tell) -> None:
        """Say something short to prefill's ranks, without waiting for them."""
        question = Ring(job.deed, *job.key)  # type: ignore[arg-type]
        for doorbell in job.doorbells:
            asked = (Address.of(doorbell), question, self.settings.tls)
            threading.Thread(target=ring, args=asked, name="tell", daemon=True).start()

    def cancel(self, request: str) -> None:
        """Nobody waits for this request any more."""
        self.events.put(partial(self.arriving.cancel, request))

    def take(self, patience: float = 0.0) -> Finished:
        """What has finished since this was last called. With nothing finished and something open, wait so long for it.

        vLLM's thread asks while it has nothing to compute, and spins for its next step; a spinning thread that gives the
        interpreter away and takes it back at once keeps this joint's threads from it while it spins. A wait lets them work.
        """
        if patience and (self.leases or self.arriving.open):
            self._news.wait(patience)
        with self._gate:
            found, self._finished = self._finished, Finished()
            self._news.clear()
        return found

    def counted(self) -> Counts:
        """What was counted since this was last called, with what is open now."""
        with self._gate:
            found, self._counts = self._counts, nothing()
        return {**found, "open_leases": float(self.leases), "open_transfers": float(self.arriving.open)}

    @property
    def leases(self) -> int:
        """Prompts whose blocks vLLM may not reuse."""
        return self.leaving.leases

    def close(self) -> None:
        """End everything; connections are cut."""
        atexit.unregister(self.close)
        self.events.put(None)
        self._doorbell.close()
        self.peers.close()
        self._thread.join(5)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- from the two halves ------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Milliseconds of this process's monotonic clock."""
        return (time.monotonic_ns() - self._began) // 1_000_000

    def count(self, **counts: float) -> None:
        """Add to the counters of these names."""
        with self._gate:
            self._counts = added(self._counts, counts)

    def tell(
        self, *, sent: str = "", received: str = "", failed: str = "", roomy: str = "", forsaken: str = ""
    ) -> None:
        """vLLM may have a request's blocks back; its prompt is here, or never will be; may be made, or goes to nobody."""
        with self._gate:
            for name, request in (
                ("sent", sent),
                ("received", received),
                ("failed", failed),
                ("roomy", roomy),
                ("forsaken", forsaken),
            ):
                if request:
                    getattr(self._finished, name).add(request)
                    self._news.set()

    def _ask(self, question: Callable[[], bool]) -> bool:
        """Have something looked at on the joint's thread; True once that has ended."""
        answered, box = threading.Event(), list[bool]()

        def answer() -> None:
            box.append(question())
            answered.set()

        self.events.put(answer)
        while not answered.wait(0.1):
            if not self._thread.is_alive():
                return True
        return box[0]

    # --- its thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        ticked = 0.0
        while True:
            try:
                event = self.events.get(timeout=_BUSY_S if self.leases or self.arriving.open else _IDLE_S)
                if event is None:
                    return
                self._on(event)
            except Empty:
                pass
            except Exception as error:  # one handoff's trouble must not end the others'
                self.log(f"a handoff failed: {error!r}")
            if time.monotonic() - ticked >= _BUSY_S:
                ticked = time.monotonic()
                self.leaving.tick()
                self.arriving.tick()
                self.lingering.tick(self.now())

    def _on(self, event: events.Event | Callable[[], None]) -> None:
        source, target = self.leaving, self.arriving
        match event:
            case events.Heard():
                said = (event.peer, event.id, event.epoch, event.message, self.now())
                if event.dialed:
                    source.carry(source.source.heard(*said))
                else:
                    target.carry(target.target.heard(*said))
            case events.Lost() if event.dialed:
                source.lost(event.peer, event.link)
            case events.Lost():
                target.carry(target.target.lost(event.peer))
            case events.Spoiled():
                target.spoiled((event.id, event.epoch))
            case events.Unread():
                self.lingering.let_go((event.id, event.epoch), dialed=True)
            case events.Freed():
                self.lingering.let_go((event.id, event.epoch), dialed=False)
            case _:
                event()
