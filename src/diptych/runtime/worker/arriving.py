"""What arrives at this worker: room is set aside for KV that others computed, counted, rewritten where needed, and taken over.

Everything but the rewriting is on the engine's thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from diptych.boundary.messages import Commit, Reason
from diptych.boundary.wire_table import Reservation, WireTable
from diptych.runtime import messages
from diptych.runtime.failpoints import hit
from diptych.runtime.handoff import deeds
from diptych.runtime.handoff.target import Phase, Target
from diptych.runtime.memory import KVMemory, allocate
from diptych.runtime.peer import events
from diptych.runtime.peer.peers import Peers
from diptych.runtime.worker.blocks import Table
from diptych.runtime.worker.half import Half, Key
from diptych.runtime.worker.lingering import Lingering
from diptych.runtime.worker.looks import Looks
from diptych.runtime.worker.owner import Limits, Owner, report
from diptych.runtime.worker.rewriting import Passage, rewrite
from diptych.runtime.worker.sharing import Sharing
from diptych.runtime.worker.stepper import Stepper
from diptych.serving.batching import Holding
from diptych.serving.blocks import blocks_for

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Incoming:
    """KV on its way to this worker."""

    half: Half
    holding: Holding
    reservation: Reservation
    passage: Passage
    begun: int
    held_tokens: int
    staging: KVMemory | None = None
    peak: Table = field(default_factory=Table)
    spoiled: bool = False
    rewriting: bool = False
    ended: bool = False


class Arriving:
    """The target's side of this worker's handoffs, with what it holds."""

    def __init__(
        self,
        owner: Owner,
        stepper: Stepper,
        peers: Peers,
        table: WireTable,
        limits: Limits,
        lingering: Lingering,
        sharing: Sharing,
    ) -> None:
        self.owner, self.stepper, self.peers, self.table, self.lingering = owner, stepper, peers, table, lingering
        self.sharing = sharing
        self.starved: set[bytes] = set()
        sharing.due.append(self._due)
        self.target = Target(limits.wait_ms)
        self._looks = Looks(stepper.engine)
        self._in: dict[Key, Incoming] = {}
        self._rooms: deque[deeds.MakeRoom] = deque()

    @property
    def waiting(self) -> int:
        return len(self._rooms)

    @property
    def rewriting(self) -> int:
        return sum(each.rewriting for each in self._in.values())

    # --- from the gateway -------------------------------------------------------------------------------------------

    def expect(self, half: Half) -> None:
        """This worker is to be given a prompt's KV and answers."""
        self._carry(self.target.expect(*half.key, half.submit.peer, self.owner.now()))

    def cancel(self, id: bytes, epoch: int) -> None:
        """Nobody waits for it any more."""
        self._carry(self.target.cancelled(id, epoch))

    # --- from connections, and time ---------------------------------------------------------------------------------

    def heard(self, said: events.Heard) -> None:
        """A source has said something."""
        self._carry(self.target.heard(said.peer, said.id, said.epoch, said.message, self.owner.now()))

    def lost(self, peer: str) -> None:
        """The connection to a source is gone."""
        self._carry(self.target.lost(peer))

    def spoiled(self, key: Key) -> None:
        """A frame came that means something else by this reservation."""
        if key in self._in:
            self._in[key].spoiled = True

    def tick(self, now: int) -> None:
        """Heartbeats and waits."""
        self._carry(self.target.tick(now))

    def serve(self) -> None:
        """Reserve for those that waited for room, in their order, as far as there is some."""
        waiting, self._rooms = self._rooms, deque()
        kept, full = [], False
        for wanted in waiting:
            if full or not self._may_reserve(wanted):
                kept.append(wanted)
            elif not self._make_room(wanted):
                kept.append(wanted)
                full = True
            if (wanted.id, wanted.epoch) not in self._in:
                self.sharing.keep(wanted.id)
        self._rooms.extendleft(reversed(kept))

    # --- deeds --------------------------------------------------------------------------------------------------------

    def _carry(self, asked: Iterable[deeds.Deed]) -> None:
        for deed in asked:
            key = (deed.id, deed.epoch)
            match deed:
                case deeds.Say():
                    if isinstance(deed.message, Commit):
                        hit("decode.commit")
                    self.peers.say(deed.peer, False, *key, deed.message)
                case deeds.MakeRoom():
                    self._rooms.append(deed)
                    self.serve()
                case deeds.Count():
                    self._count(key)
                case deeds.Activate():
                    self._activate(key, deed.first_token)
                case deeds.FreeTarget():
                    self._free(key)
                case deeds.Report():
                    report(self.owner, deed)

    def _may_reserve(self, wanted: deeds.MakeRoom) -> bool:
        """Whether a reservation leaves room for what others wait for. KV that is made already waits for nothing else."""
        if self.target.is_made(wanted.id):
            return True
        half = self.owner.half((wanted.id, wanted.epoch))
        longest = 0 if half is None else self.stepper.longest(half)
        return self.sharing.promise(wanted.id, blocks_for(wanted.tokens + 1, self.stepper.pool.size), longest)

    def _make_room(self, wanted: deeds.MakeRoom) -> bool:
        """Reserve blocks for what comes, or say why there never will be any; whether it waits no more."""
        key = (wanted.id, wanted.epoch)
        half = self.owner.half(key)
        if half is None or self.target.phase(wanted.id) is not Phase.WAITING:
            return True
        found = (
            self._looks.passage(wanted.state, wanted.tokens)
            if wanted.tokens == half.todo
            else f"{wanted.tokens} tokens are offered of a prompt of {half.todo}"
        )
        if isinstance(found, str):
            self._carry(self.target.no_room(*key, Reason.INCOMPATIBLE, 0, found))
            return True
        peak = self._looks.peak(found, wanted.tokens)
        if self.stepper.need(half) + peak > self.stepper.pool.capacity:
            self._carry(self.target.no_room(*key, Reason.TOO_LARGE, 0, f"{half.todo} tokens in this worker's memory"))
            return True
        holding = self.stepper.reserve(half)
        table = self.stepper.hold(peak) if holding is not None else None
        if holding is None or table is None:
            if holding is not None:
                self.stepper.free(half, holding)
            if self.target.is_made(wanted.id):
                self.starved.add(wanted.id)
            return False
        hit("decode.reserve")
        self._expect_blocks(half, holding, found, table)
        return True

    def _due(self, id: bytes) -> int:
        """Blocks of the largest prompt that is made and waits to arrive, or might be made before `id` is computed here."""
        return max(
            (
                self.stepper.need(half)
                for other, epoch in self.target.unreserved()
                if (other < id or self.target.is_made(other)) and (half := self.owner.half((other, epoch))) is not None
                if half.submit.ownership == "pull"
            ),
            default=0,
        )

    def _expect_blocks(self, half: Half, holding: Holding, found: Passage, peak: Table) -> None:
        """Room is there: say so, and take what comes into the blocks themselves, or beside them to be rewritten."""
        assert half.table is not None
        memory, key, tokens = self.stepper.engine.memory, half.key, half.todo
        held_tokens = len(holding[1]) * self.stepper.pool.size
        staging = None
        if found.is_copy:
            count, held = blocks_for(tokens, memory.block_tokens), len(holding[1])
            tables = memory.tables(half.table.blocks[held:count], held)
        else:
            size = found.arriving.storage.block_tokens
            count, held = blocks_for(tokens, size), held_tokens // size
            staging = allocate(found.arriving, count)
            tables = staging.tables(range(held, count), held)
        reservation = Reservation(*key, dict(enumerate(tables)))
        incoming = Incoming(half, holding, reservation, found, self.owner.now(), held_tokens, staging, peak)
        self._in[key] = incoming
        with self.peers.turn:
            refused = self.table.reserve(reservation)
        assert refused is None, f"{key} is reserved already: {refused}"
        self._carry(self.target.room(*key, held, reservation.expected_bytes, self.owner.now()))

    def _count(self, key: Key) -> None:
        """What is here of a handoff whose source says that it is done."""
        incoming = self._in[key]
        with self.peers.turn:
            arrived = incoming.reservation.arrived_bytes
        missing = incoming.reservation.expected_bytes - arrived
        if missing or incoming.spoiled or incoming.passage.is_copy:
            self._carry(self.target.counted(*key, arrived, missing, corrupt=incoming.spoiled))
        else:
            self._rewrite(key, incoming, arrived)

    def _rewrite(self, key: Key, incoming: Incoming, arrived: int) -> None:
        """Convert beside the engine's thread, then go on."""
        half, staging, began = incoming.half, incoming.staging, self.owner.now()
        assert half.table is not None
        assert staging is not None
        blocks = list(half.table.blocks)
        failed: list[Exception] = []

        def work() -> None:
            try:
                read = range(staging.blocks)
                rewrite(staging, read, self.stepper.engine.memory, blocks, incoming.held_tokens, half.todo)
            except Exception as error:  # what cannot be converted must not be used, whatever the reason
                log.exception("the KV of %s cannot be converted", key[0].hex())
                failed.append(error)

        def then() -> None:
            incoming.rewriting = False
            if incoming.ended:
                self._release(incoming)
                return
            half.convert_ms = self.owner.now() - began
            self._carry(self.target.counted(*key, arrived, 0, corrupt=bool(failed)))

        incoming.rewriting = True
        self.owner.later(work, then)

    def _activate(self, key: Key, first_token: int) -> None:
        """The KV is this worker's own."""
        incoming = self._in.pop(key)
        half = incoming.half
        self.sharing.keep(key[0])
        with self.peers.turn:
            free = self.table.end(*key)
        assert free is True, f"{key} is written after it was complete"
        self.stepper.let_go(incoming.peak)
        self.stepper.join(half, incoming.holding)
        half.moved = incoming.reservation.expected_bytes
        self.owner.say(half, self._handed(incoming))
        self.owner.activated(half, first_token)

    def _handed(self, incoming: Incoming) -> messages.Handed:
        half = incoming.half
        took = (self.owner.now() - incoming.begun) / 1000
        said = incoming.passage.said[:128]
        return messages.Handed(*half.key, half.moved, took, said, half.convert_ms / 1000, half.submit.peer)

    def _free(self, key: Key) -> None:
        incoming = self._in.pop(key, None)
        if incoming is None:
            return
        with self.peers.turn:
            free = self.table.end(*key) is True
        incoming.ended = True
        if incoming.rewriting:
            return  # `then` releases
        if free:
            self._release(incoming)
        else:
            release = partial(self._release, incoming)
            self.lingering.keep(key, False, incoming.half.submit.peer, self.owner.now(), release)

    def _release(self, incoming: Incoming) -> None:
        hit("decode.release")
        self.sharing.keep(incoming.half.key[0])
        self.stepper.let_go(incoming.peak)
        self.stepper.free(incoming.half, incoming.holding)
