"""Handoffs carried out: what the pure sides ask is done here with blocks, connections and the batch.

Everything is on the engine's thread. Blocks that a connection may still read or write are not given back before it says so; a
connection that does not say so in time is ended, which frees them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from diptych.boundary import serial
from diptych.boundary.messages import Commit, Offer, Reason, Reserve
from diptych.boundary.wire_table import Reservation, WireTable
from diptych.design.boundary import Ownership, Side
from diptych.errors import InvalidInput
from diptych.runtime import messages
from diptych.runtime.failpoints import hit
from diptych.runtime.handoff import deeds
from diptych.runtime.handoff.source import Parcel, Source
from diptych.runtime.handoff.target import Phase, Target
from diptych.runtime.memory import KVMemory, allocate
from diptych.runtime.peer import events
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.outflow import Outflow
from diptych.runtime.peer.peers import Peers
from diptych.runtime.sampling import Sampled
from diptych.runtime.worker.blocks import Table
from diptych.runtime.worker.half import Half, Key
from diptych.runtime.worker.rewriting import Passage, crossing, passage, rewrite
from diptych.runtime.worker.sending import Outgoing
from diptych.runtime.worker.stepper import Stepper
from diptych.serving.batching import Holding
from diptych.serving.blocks import blocks_for

log = logging.getLogger(__name__)

STAGED_AT_MOST = 16
"""What arrives to be rewritten is at most so many times as large as what becomes of it: fp32 beside int4 with scales is 7."""


class Owner(Protocol):
    """Whom the handoffs tell: the worker's core."""

    def half(self, key: Key) -> Half | None: ...

    def failed(self, half: Half, reason: str, detail: str = "", retry: bool = True, after_ms: int = 0) -> None: ...

    def handed(self, half: Half) -> None: ...

    def activated(self, half: Half, first_token: int) -> None: ...

    def say(self, half: Half, message: messages.Message) -> None: ...

    def later(self, work: Callable[[], None], then: Callable[[], None]) -> None: ...

    def now(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """`pinned`: finished prompts that wait for a target under pull. `stall_ms`: how long a connection may keep given-up blocks.

    `wait_ms`: how long either side waits for the other.
    """

    pinned: int = 32
    wait_ms: int = 60_000
    stall_ms: int = 2_000


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


@dataclass(slots=True)
class _Dying:
    """Blocks that wait for a connection to let them go."""

    release: Callable[[], None]
    peer: str
    dialed: bool
    until: int


class Handoffs:
    """Both sides of this worker's handoffs, with what they hold."""

    def __init__(self, owner: Owner, stepper: Stepper, peers: Peers, table: WireTable, limits: Limits) -> None:
        self.owner, self.stepper, self.peers, self.table, self.limits = owner, stepper, peers, table, limits
        self.source, self.target = Source(), Target(limits.wait_ms)
        self._state = serial.to_msgpack(stepper.engine.state)
        self._layers = len(stepper.engine.memory.layers)
        self._out: dict[Key, Outgoing] = {}
        self._in: dict[Key, Incoming] = {}
        self._rooms: deque[deeds.MakeRoom] = deque()
        self._prefills: deque[Key] = deque()
        self._dying: dict[tuple[Key, bool], _Dying] = {}
        stepper.before_reuse = self._before_reuse

    # --- what is held -----------------------------------------------------------------------------------------------

    @property
    def open(self) -> int:
        return self.source.open + self.target.open + len(self._dying)

    @property
    def reservations(self) -> int:
        return self.target.reservations + sum(not dialed for _, dialed in self._dying)

    @property
    def pins(self) -> int:
        return self.source.pins + sum(dialed for _, dialed in self._dying)

    @property
    def transfers(self) -> int:
        return self.source.transfers + sum(each.rewriting for each in self._in.values())

    @property
    def waiting(self) -> int:
        return len(self._rooms) + len(self._prefills)

    # --- from the gateway -------------------------------------------------------------------------------------------

    def give(self, half: Half) -> None:
        """This worker computes a prompt and hands it to the half's peer."""
        submit, state = half.submit, self.stepper.engine.state
        across, refused = crossing(state, submit.wire)
        if refused:
            self.owner.failed(half, str(Reason.INCOMPATIBLE), refused, retry=False)
            return
        try:
            address = Address.of(submit.peer_address)
        except InvalidInput as error:
            self.owner.failed(half, "bad request", str(error), retry=False)
            return
        out = self._out[half.key] = Outgoing(half, address, across, self._outflow(half.key), self.stepper.engine.memory)
        parcel = Parcel(
            *half.key,
            submit.peer,
            Ownership(submit.ownership),
            half.prompt,
            out.total_bytes,
            self._state if across is state else serial.to_msgpack(across),
            max(submit.lease_ms, 1),
            self.limits.wait_ms,
        )
        self._source(self.source.submit(parcel, self.owner.now()))

    def expect(self, half: Half) -> None:
        """This worker is to be given a prompt's KV and answers."""
        self._target(self.target.expect(*half.key, half.submit.peer, self.owner.now()))

    def cancel(self, id: bytes, epoch: int) -> None:
        """Nobody waits for it any more."""
        self._source(self.source.cancelled(id, epoch, self.owner.now()))
        self._target(self.target.cancelled(id, epoch))

    # --- from the engine --------------------------------------------------------------------------------------------

    def stream(self, chunks: Sequence[tuple[Half, int]], layer: int) -> None:
        """A layer of these chunks is in memory: full blocks of what is pushed go out while the next layer is computed."""
        for half, tokens in chunks:
            out = self._out.get(half.key) if half.hands_off else None
            if out is None:
                continue
            if layer == 0:
                hit("prefill.prefill")
            if half.submit.ownership == "push":
                upto = self._ready_blocks(half, tokens)
                self._send_layer(out, layer, upto)
                if layer == self._layers - 1:
                    out.streamed = max(out.streamed, upto)

    def produced(self, half: Half, sampled: Sampled) -> None:
        """A prompt is computed and its first token chosen."""
        out = self._out[half.key]
        out.holding = self.stepper.batch.detach(half)
        self._source(self.source.produced(*half.key, sampled.token, self.owner.now()))

    def faulted(self, half: Half) -> None:
        """A prompt cannot be computed; its blocks are given back already."""
        self._source(self.source.failed(*half.key, self.owner.now()))

    # --- from connections -------------------------------------------------------------------------------------------

    def on(self, event: events.Event) -> None:
        """What a connection's thread has told."""
        match event:
            case events.Heard():
                said = (event.peer, event.id, event.epoch, event.message, self.owner.now())
                if event.dialed:
                    if isinstance(event.message, Commit):
                        hit("prefill.commit")
                    self._source(self.source.heard(*said))
                else:
                    self._target(self.target.heard(*said))
            case events.Lost():
                if event.dialed:
                    self._source(self.source.lost(event.peer, self.owner.now()))
                else:
                    self._target(self.target.lost(event.peer))
            case events.Spoiled():
                if (event.id, event.epoch) in self._in:
                    self._in[event.id, event.epoch].spoiled = True
            case events.Freed():
                self._released((event.id, event.epoch), dialed=False)
            case events.Unread():
                self._released((event.id, event.epoch), dialed=True)

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Leases, heartbeats, waits; connections that keep blocks too long are ended."""
        now = self.owner.now()
        self._source(self.source.tick(now))
        self._target(self.target.tick(now))
        for dying in self._dying.values():
            if dying.until <= now:
                dying.until = now + self.limits.stall_ms
                self.peers.drop(dying.peer, dying.dialed)

    def serve(self) -> None:
        """Start what waited for room, as far as there is some: targets' reservations, and prompts to be pulled."""
        while self._rooms and self._make_room(self._rooms[0]):
            self._rooms.popleft()
        while self._prefills and self._begin_prefill(self._prefills[0]):
            self._prefills.popleft()

    # --- the source's deeds -----------------------------------------------------------------------------------------

    def _source(self, asked: Iterable[deeds.Deed]) -> None:
        for deed in asked:
            key = (deed.id, deed.epoch)
            match deed:
                case deeds.Say():
                    if isinstance(deed.message, Reserve | Offer):
                        self.peers.dial(deed.peer, self._out[key].address)
                    self.peers.say(deed.peer, True, *key, deed.message)
                case deeds.Prefill():
                    hit("prefill.reserve")
                    self._prefills.append(key)
                    self.serve()
                case deeds.Send():
                    self._send(key)
                case deeds.FreeSource():
                    self._free_source(key)
                case deeds.Report():
                    self._report(key, deed)
                case deeds.Handed():
                    half = self.owner.half(key)
                    if half is not None:
                        self.owner.handed(half)

    def _begin_prefill(self, key: Key) -> bool:
        """Into the batch's queue, unless too many prompts that nobody has taken are pinned; whether it waits no more."""
        out = self._out.get(key)
        if out is None:
            return True
        begun = sum(each.begun and each.half.submit.ownership != "push" for each in self._out.values())
        if out.half.submit.ownership == "pull" and begun >= self.limits.pinned:
            return False
        out.begun = True
        hit("prefill.queue")
        self.stepper.add(out.half)
        return True

    def _ready_blocks(self, half: Half, tokens: int) -> int:
        """Blocks that nobody writes any more once `tokens` more are computed."""
        size, done = self.stepper.pool.size, half.computed + tokens
        return blocks_for(done, size) if done == half.todo else done // size

    def _send_layer(self, out: Outgoing, layer: int, upto: int) -> None:
        begin = max(out.streamed, self.source.held_blocks(out.half.submit.request))
        for run in out.runs(layer, begin, upto):
            self.peers.send(out.half.submit.peer, run)

    def _send(self, key: Key) -> None:
        """Everything that the target lacks; what was streamed is not sent again unless it arrived damaged."""
        out = self._out[key]
        if out.sent:
            out.streamed = 0
        out.sent = True
        for layer in range(self._layers):
            self._send_layer(out, layer, out.blocks)
        self._source(self.source.sent(*key, out.frames, out.total_bytes))

    def _free_source(self, key: Key) -> None:
        out = self._out.pop(key, None)
        if out is None:
            return
        hit("prefill.release")
        half = out.half
        holding = self.stepper.withdraw(half) if out.holding is None else out.holding
        if out.flow.stop():
            self.stepper.free(half, holding)
        else:
            self._die(key, True, half.submit.peer, lambda: self.stepper.free(half, holding))

    def _outflow(self, key: Key) -> Outflow:
        return Outflow(*key, lambda: self.peers.tell(events.Unread(*key)))

    def _before_reuse(self, half: Half) -> None:
        """A prompt that was being streamed is preempted: nothing may read its blocks any more, and it starts anew."""
        out = self._out.get(half.key)
        if out is not None and half.hands_off:
            if not out.flow.stop():
                self.peers.quiet(half.submit.peer, out.flow, self.limits.stall_ms / 1000)
            out.begin_again(self._outflow(half.key))

    # --- the target's deeds -----------------------------------------------------------------------------------------

    def _target(self, asked: Iterable[deeds.Deed]) -> None:
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
                    self._free_target(key)
                case deeds.Report():
                    self._report(key, deed)

    def _make_room(self, wanted: deeds.MakeRoom) -> bool:
        """Reserve blocks for what comes, or say why there never will be any; whether it waits no more."""
        key = (wanted.id, wanted.epoch)
        half = self.owner.half(key)
        if half is None or self.target.phase(wanted.id) is not Phase.WAITING:
            return True
        found = self._passage(wanted, half)
        if isinstance(found, str):
            self._target(self.target.no_room(*key, Reason.INCOMPATIBLE, 0, found))
            return True
        peak = self._peak(found, wanted.tokens)
        if blocks_for(half.todo + 1, self.stepper.pool.size) + peak > self.stepper.pool.capacity:
            self._target(self.target.no_room(*key, Reason.TOO_LARGE, 0, f"{half.todo} tokens in this worker's memory"))
            return True
        holding = self.stepper.reserve(half)
        if holding is None:
            return False
        table = self.stepper.hold(peak)
        if table is None:
            self.stepper.free(half, holding)
            return False
        hit("decode.reserve")
        self._expect_blocks(half, holding, found, table)
        return True

    def _passage(self, wanted: deeds.MakeRoom, half: Half) -> Passage | str:
        """How what arrives becomes this worker's KV, or why it must not."""
        if wanted.tokens != half.todo:
            return f"{wanted.tokens} tokens are offered of a prompt of {half.todo}"
        if wanted.state == self._state:
            return Passage(self.stepper.engine.state, self.stepper.engine.state)
        try:
            arriving = serial.from_msgpack(wanted.state).state
            found = passage(arriving, self.stepper.engine.state, Side.DECODE)
            if isinstance(found, Passage) and not found.is_copy:
                here = self.stepper.engine.memory.bytes_per_block / self.stepper.pool.size
                there = allocate(arriving, 0)
                if there.bytes_per_block * blocks_for(wanted.tokens, there.block_tokens) > (
                    STAGED_AT_MOST * here * max(wanted.tokens, self.stepper.pool.size)
                ):
                    return "its blocks are out of all proportion"
        except InvalidInput as error:
            return f"its KV state cannot be read: {error}"[:480]
        return found

    def _peak(self, found: Passage, tokens: int) -> int:
        """Blocks of this worker that weigh as much as what must lie beside them until it is rewritten."""
        if found.is_copy:
            return 0
        there = allocate(found.arriving, 0)
        size = there.bytes_per_block * blocks_for(tokens, there.block_tokens)
        return -(-size // self.stepper.engine.memory.bytes_per_block)

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
        self._target(self.target.room(*key, held, reservation.expected_bytes, self.owner.now()))

    def _count(self, key: Key) -> None:
        """What is here of a handoff whose source says that it is done."""
        incoming = self._in[key]
        with self.peers.turn:
            arrived = incoming.reservation.arrived_bytes
        missing = incoming.reservation.expected_bytes - arrived
        if missing or incoming.spoiled or incoming.passage.is_copy:
            self._target(self.target.counted(*key, arrived, missing, corrupt=incoming.spoiled))
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
                self._release_incoming(incoming)
                return
            half.convert_ms = self.owner.now() - began
            self._target(self.target.counted(*key, arrived, 0, corrupt=bool(failed)))

        incoming.rewriting = True
        self.owner.later(work, then)

    def _activate(self, key: Key, first_token: int) -> None:
        """The KV is this worker's own."""
        incoming = self._in.pop(key)
        half = incoming.half
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

    def _free_target(self, key: Key) -> None:
        incoming = self._in.pop(key, None)
        if incoming is None:
            return
        with self.peers.turn:
            free = self.table.end(*key) is True
        incoming.ended = True
        if incoming.rewriting:
            return  # `then` releases
        if free:
            self._release_incoming(incoming)
        else:
            self._die(key, False, incoming.half.submit.peer, lambda: self._release_incoming(incoming))

    def _release_incoming(self, incoming: Incoming) -> None:
        hit("decode.release")
        self.stepper.let_go(incoming.peak)
        self.stepper.free(incoming.half, incoming.holding)

    # --- within -----------------------------------------------------------------------------------------------------

    def _report(self, key: Key, report: deeds.Report) -> None:
        half = self.owner.half(key)
        if half is not None:
            self.owner.failed(half, report.reason, report.detail, report.retry, report.after_ms)

    def _die(self, key: Key, dialed: bool, peer: str, release: Callable[[], None]) -> None:
        self._dying[key, dialed] = _Dying(release, peer, dialed, self.owner.now() + self.limits.stall_ms)

    def _released(self, key: Key, dialed: bool) -> None:
        dying = self._dying.pop((key, dialed), None)
        if dying is not None:
            dying.release()
