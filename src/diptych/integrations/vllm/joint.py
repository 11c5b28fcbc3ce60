"""One vLLM worker's half of every handoff: a thread that runs the protocol's two sides over vLLM's own blocks.

The rules are not here. `runtime.handoff` says what is to be done, `runtime.peer` moves frames, `boundary` converts; this runs
them beside vLLM's engine, which asks in passing and is told what has finished.

Nothing is written into vLLM's blocks before every byte of a prompt is here, counted and right, and the source, still holding it
under the same epoch, has said that it is done. The source reads blocks that vLLM gives back only when this says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from diptych.boundary import serial
from diptych.boundary.frame import OLDEST_VERSION, VERSION
from diptych.boundary.messages import Hello, Speaker
from diptych.boundary.wire_table import WireTable
from diptych.integrations.vllm.arriving import Arriving
from diptych.integrations.vllm.counts import Counts, added, nothing
from diptych.integrations.vllm.doorbell import Doorbell, Ring, ring
from diptych.integrations.vllm.host import Blocks
from diptych.integrations.vllm.jobs import Fetch, Finished, Keep, Tell
from diptych.integrations.vllm.leaving import Leaving
from diptych.integrations.vllm.settings import Settings
from diptych.runtime.peer import events
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.peers import Peers

_BUSY_S, _IDLE_S = 0.01, 0.5


class Joint:
    """Both sides of this worker's handoffs. Its methods may be called from any thread; the work is done on one of its own."""

    def __init__(
        self,
        name: str,
        blocks: Blocks,
        settings: Settings,
        log: Callable[[str], None],
        speaker: Speaker = Speaker.PREFILL,
    ) -> None:
        self.name, self.blocks, self.settings, self.log = name, blocks, settings, log
        self.state = blocks.state
        self.table, self.events = WireTable(), SimpleQueue[events.Event | Callable[[], None] | None]()
        digest = bytes.fromhex(serial.digest(self.state))
        hello = Hello(speaker, name, time.time_ns() & ((1 << 62) - 1), OLDEST_VERSION, VERSION, digest)
        self.peers = Peers(hello, self.table, self.events.put)
        self._finished, self._counts, self._gate = Finished(), nothing(), threading.Lock()
        self._began = time.monotonic_ns()
        self.leaving, self.arriving = Leaving(self), Arriving(self)
        here = Address(host=settings.host)
        self.listening = str(self.peers.listen(here))
        self._doorbell = Doorbell(here, self.leaving.rung)
        self.doorbell = str(self._doorbell.address)
        self._thread = threading.Thread(target=self._run, name="joint", daemon=True)
        self._thread.start()

    # --- from vLLM, on any thread -------------------------------------------------------------------------------------

    def keep(self, job: Keep) -> None:
        """A prompt is computed here."""
        self.events.put(partial(self.leaving.keep, job))

    def fetch(self, job: Fetch) -> None:
        """A prompt is wanted here; `take` tells when it is here or failed."""
        self.events.put(partial(self.arriving.fetch, job))

    def tell(self, job: Tell) -> None:
        """Say something short to a prefill worker, without waiting for it."""
        question = Ring(job.deed, *job.key)  # type: ignore[arg-type]
        threading.Thread(target=ring, args=(Address.of(job.doorbell), question), name="tell", daemon=True).start()

    def cancel(self, request: str) -> None:
        """Nobody waits for this request any more."""
        self.events.put(partial(self.arriving.cancel, request))

    def take(self) -> Finished:
        """What has finished since this was last called."""
        with self._gate:
            found, self._finished = self._finished, Finished()
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
        self.events.put(None)
        self._doorbell.close()
        self.peers.close()
        self._thread.join(5)

    # --- from the two halves ------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Milliseconds of this process's monotonic clock."""
        return (time.monotonic_ns() - self._began) // 1_000_000

    def count(self, **counts: float) -> None:
        """Add to the counters of these names."""
        with self._gate:
            self._counts = added(self._counts, counts)

    def tell_sent(self, request: str) -> None:
        """vLLM may have this request's blocks back."""
        with self._gate:
            self._finished.sent.add(request)

    def tell_received(self, request: str, failed: bool = False) -> None:
        """This request's prompt is here, or never will be."""
        with self._gate:
            self._finished.received.add(request)
            if failed:
                self._finished.failed.add(request)

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
                source.carry(source.source.lost(event.peer, self.now()))
            case events.Lost():
                target.carry(target.target.lost(event.peer))
            case events.Spoiled():
                target.spoiled((event.id, event.epoch))
            case events.Unread():
                source.unread((event.id, event.epoch))
            case events.Freed():
                pass  # what arrives lies in memory of its own, which nobody else gets
            case _:
                event()
