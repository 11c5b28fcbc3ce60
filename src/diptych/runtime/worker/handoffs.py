"""Handoffs carried out: what the pure sides ask is done here with blocks, connections and the batch.

Everything is on the engine's thread. Blocks that a connection may still read or write are not given back before it says so; a
connection that does not say so in time is ended, which frees them.
"""

from __future__ import annotations

from diptych.boundary.wire_table import WireTable
from diptych.runtime.peer import events
from diptych.runtime.peer.peers import Peers
from diptych.runtime.worker.arriving import Arriving
from diptych.runtime.worker.leaving import Leaving
from diptych.runtime.worker.lingering import Lingering
from diptych.runtime.worker.owner import Limits, Owner
from diptych.runtime.worker.sharing import Sharing
from diptych.runtime.worker.stepper import Stepper


class Handoffs:
    """Both sides of this worker's handoffs, with what they hold."""

    def __init__(
        self,
        owner: Owner,
        stepper: Stepper,
        peers: Peers,
        table: WireTable,
        limits: Limits,
        gives_and_takes: bool = True,
    ) -> None:
        self.owner, self.stepper = owner, stepper
        self.lingering = Lingering(peers, limits.stall_ms)
        sharing = Sharing(stepper.pool.capacity if gives_and_takes else 0)
        sharing.due.append(lambda id: stepper.due())
        self.leaving = Leaving(owner, stepper, peers, limits, self.lingering, sharing)
        self.arriving = Arriving(owner, stepper, peers, table, limits, self.lingering, sharing)

    # --- what is held -----------------------------------------------------------------------------------------------

    @property
    def open(self) -> int:
        return self.leaving.source.open + self.arriving.target.open + self.lingering.open

    @property
    def reservations(self) -> int:
        return self.arriving.target.reservations + self.lingering.written

    @property
    def leases(self) -> int:
        return self.leaving.source.pins

    @property
    def pins(self) -> int:
        return self.leaving.source.pins + self.lingering.read

    @property
    def transfers(self) -> int:
        return self.leaving.source.transfers + self.arriving.rewriting

    @property
    def waiting(self) -> int:
        return self.arriving.waiting + self.leaving.waiting

    # --- events -----------------------------------------------------------------------------------------------------

    def cancel(self, id: bytes, epoch: int) -> None:
        """Nobody waits for it any more."""
        self.leaving.cancel(id, epoch)
        self.arriving.cancel(id, epoch)

    def on(self, event: events.Event) -> None:
        """What a connection's thread has told."""
        match event:
            case events.Heard():
                (self.leaving if event.dialed else self.arriving).heard(event)
            case events.Lost():
                if event.dialed:
                    self.leaving.lost(event.peer, event.link)
                else:
                    self.arriving.lost(event.peer)
            case events.Spoiled():
                self.arriving.spoiled((event.id, event.epoch))
            case events.Freed():
                self.lingering.let_go((event.id, event.epoch), dialed=False)
            case events.Unread():
                self.lingering.let_go((event.id, event.epoch), dialed=True)

    def tick(self) -> None:
        """Leases, heartbeats, waits; connections that keep blocks too long are ended."""
        now = self.owner.now()
        self.leaving.tick(now)
        self.arriving.tick(now)
        self.lingering.tick(now)
        starved, self.arriving.starved = self.arriving.starved, set()
        if not self.stepper.computing:  # else memory comes back by itself
            for id in starved:
                self.leaving.yield_to(id)

    def serve(self) -> None:
        """Start what waited for room, as far as there is some: targets' reservations, and prompts to be pulled."""
        self.arriving.serve()
        self.leaving.serve()
