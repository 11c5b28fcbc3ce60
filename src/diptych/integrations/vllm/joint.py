"""One vLLM worker's half of every handoff: a thread that runs the protocol's two sides over vLLM's own blocks.

The rules are not here. `runtime.handoff` says what is to be done, `runtime.peer` moves frames, `boundary` converts; this runs
them beside vLLM's engine, which asks in passing and is told what has finished.

Nothing is written into vLLM's blocks before every byte of a prompt is here, counted and right, and the source, still holding it
under the same epoch, has said that it is done. The source reads blocks that vLLM gives back only when this says so.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from diptych.boundary import serial
from diptych.boundary.descriptor import KVState
from diptych.boundary.frame import OLDEST_VERSION, VERSION
from diptych.boundary.messages import Hello, Offer, Reason, Reserve, Speaker
from diptych.boundary.wire_table import Reservation, WireTable
from diptych.design.boundary import Ownership, Side
from diptych.errors import InvalidInput
from diptych.integrations.vllm.counts import Counts, added, nothing
from diptych.integrations.vllm.doorbell import Doorbell, Ring, Told, ring
from diptych.integrations.vllm.jobs import Fetch, Finished, Incoming, Keep, Key, Outgoing, Tell
from diptych.integrations.vllm.settings import Settings
from diptych.runtime.failpoints import hit
from diptych.runtime.handoff import deeds
from diptych.runtime.handoff.source import Parcel, Source
from diptych.runtime.handoff.target import Phase, Target
from diptych.runtime.memory import LayerMemory, allocate
from diptych.runtime.peer import events
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.outflow import Outflow, Run
from diptych.runtime.peer.peers import Peers
from diptych.runtime.worker.rewriting import Passage, crossing, passage, rewrite_layer
from diptych.serving.blocks import blocks_for

AT_ONCE = 64
"""Blocks of a layer that are read at one time."""
STALL_MS = 2_000
"""How long a connection may go on reading blocks of a handoff that has ended."""
_BUSY_S, _IDLE_S = 0.01, 0.5


class Blocks(Protocol):
    """vLLM's blocks, in the canonical order of `state`."""

    @property
    def state(self) -> KVState: ...

    def like(self, count: int) -> tuple[LayerMemory, ...]: ...

    def read(self, layer: int, blocks: list[int]) -> LayerMemory: ...

    def write(self, layer: int, blocks: list[int], memory: LayerMemory) -> None: ...


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
        self.across, refused = crossing(self.state, settings.wire)
        if refused:
            log(f"prompts are sent as they are kept: {refused}")
        self.source, self.target = Source(), Target(int(settings.wait_s * 1000))
        self._table, self._events = WireTable(), SimpleQueue[events.Event | Callable[[], None] | None]()
        digest = bytes.fromhex(serial.digest(self.state))
        hello = Hello(speaker, name, time.time_ns() & ((1 << 62) - 1), OLDEST_VERSION, VERSION, digest)
        self.peers = Peers(hello, self._table, self._events.put)
        self.kept: dict[Key, tuple[Keep, int]] = {}
        self._out: dict[Key, Outgoing] = {}
        self._in: dict[Key, Incoming] = {}
        self._rooms: deque[deeds.MakeRoom] = deque()
        self._dying: dict[Key, tuple[Outgoing, int]] = {}
        self._finished, self._counts, self._gate = Finished(), nothing(), threading.Lock()
        self._began = time.monotonic_ns()
        here = Address(host=settings.host)
        self.listening = str(self.peers.listen(here))
        self._doorbell = Doorbell(here, self._rung)
        self.doorbell = str(self._doorbell.address)
        self._thread = threading.Thread(target=self._run, name="joint", daemon=True)
        self._thread.start()

    # --- any thread -------------------------------------------------------------------------------------------------

    def keep(self, job: Keep) -> None:
        """A prompt is computed here."""
        self._events.put(partial(self._keep, job))

    def fetch(self, job: Fetch) -> None:
        """A prompt is wanted here; `take` tells when it is here or failed."""
        self._events.put(partial(self._fetch, job))

    def tell(self, job: Tell) -> None:
        """Say something short to a prefill worker, without waiting for it."""
        question = Ring(job.deed, *job.key)  # type: ignore[arg-type]
        threading.Thread(target=ring, args=(Address.of(job.doorbell), question), name="tell", daemon=True).start()

    def cancel(self, request: str) -> None:
        """Nobody waits for this request any more."""
        self._events.put(partial(self._cancel, request))

    def take(self) -> Finished:
        """What has finished since this was last called."""
        with self._gate:
            found, self._finished = self._finished, Finished()
        return found

    def counted(self) -> Counts:
        """What was counted since this was last called, with what is open now."""
        with self._gate:
            found, self._counts = self._counts, nothing()
        return {**found, "open_leases": float(self.leases), "open_transfers": float(len(self._in))}

    @property
    def leases(self) -> int:
        """Prompts whose blocks vLLM may not reuse."""
        return len(self.kept) + len(self._out) + len(self._dying)

    def close(self) -> None:
        """End everything; connections are cut."""
        self._events.put(None)
        self._doorbell.close()
        self.peers.close()
        self._thread.join(5)

    # --- its thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        ticked = 0.0
        while True:
            open_ = self._out or self._in or self.kept or self._dying
            try:
                event = self._events.get(timeout=_BUSY_S if open_ else _IDLE_S)
                if event is None:
                    return
                self._on(event)
            except Empty:
                pass
            except Exception as error:  # one handoff's trouble must not end the others'
                self.log(f"a handoff failed: {error!r}")
            if time.monotonic() - ticked >= _BUSY_S:
                ticked = time.monotonic()
                self._tick()

    def _now(self) -> int:
        return (time.monotonic_ns() - self._began) // 1_000_000

    def _on(self, event: events.Event | Callable[[], None]) -> None:
        match event:
            case events.Heard():
                said = (event.peer, event.id, event.epoch, event.message, self._now())
                if event.dialed:
                    self._source(self.source.heard(*said))
                else:
                    self._target(self.target.heard(*said))
            case events.Lost() if event.dialed:
                self._source(self.source.lost(event.peer, self._now()))
            case events.Lost():
                self._target(self.target.lost(event.peer))
            case events.Spoiled():
                if (event.id, event.epoch) in self._in:
                    self._in[event.id, event.epoch].spoiled = True
            case events.Unread():
                self._unread((event.id, event.epoch))
            case events.Freed():
                pass  # what arrives lies in memory of its own, which nobody else gets
            case _:
                event()

    def _tick(self) -> None:
        now = self._now()
        for key, (job, until) in list(self.kept.items()):
            if until <= now:
                del self.kept[key]
                self._count(expired=1)
                self.log(
                    f"{job.request}: nobody asked for its KV within {self.settings.lease_s:g} s; its blocks are free"
                )
                self._tell_sent(job.request)
        self._source(self.source.tick(now))
        self._target(self.target.tick(now))
        self._serve()
        for key, (out, until) in list(self._dying.items()):
            if until <= now:
                self._dying[key] = (out, now + STALL_MS)
                self.peers.drop(out.peer, True)

    # --- prefill ----------------------------------------------------------------------------------------------------

    def _keep(self, job: Keep) -> None:
        self.kept[job.key] = (job, self._now() + int(self.settings.lease_s * 1000))

    def _rung(self, question: Ring) -> Told:
        """On the doorbell's thread: have it answered on the joint's."""
        answered, box = threading.Event(), [Told("fault")]

        def answer() -> None:
            box[0] = self._answer(question)
            answered.set()

        self._events.put(answer)
        return box[0] if answered.wait(5.0) else Told("draining")

    def _answer(self, question: Ring) -> Told:
        key = (question.id, question.epoch)
        standing = self.kept.get(key)
        if standing is None:
            return Told("stale epoch: this prompt is not kept here, or no longer")
        job, _ = standing
        if question.deed == "keep":
            self._keep(job)
        elif question.deed == "drop":
            del self.kept[key]
            self._tell_sent(job.request)
        else:
            try:
                address = Address.of(question.address)
            except InvalidInput as error:
                return Told(str(error)[:300])
            if not address.is_local or not question.worker:
                return Told("the asker's address leaves this host")
            del self.kept[key]
            self._offer(key, job, question)
        return Told()

    def _offer(self, key: Key, job: Keep, question: Ring) -> None:
        wire = None if self.across is self.state else allocate(self.across, 0)
        until = self._now() + STALL_MS
        flow = Outflow(*key, lambda: self._events.put(events.Unread(*key)))
        self._out[key] = Outgoing(job, self.across, flow, question.worker, question.address, until, wire)
        total = blocks_for(job.tokens, self.state.storage.block_tokens) * self._block_bytes
        parcel = Parcel(
            *key, question.worker, Ownership.PULL, job.tokens, total, serial.to_msgpack(self.across),
            int(self.settings.lease_s * 1000), int(self.settings.wait_s * 1000),
        )  # fmt: skip
        self._source(self.source.submit(parcel, self._now()))
        self._source(self.source.produced(*key, 0, self._now()))

    @property
    def _block_bytes(self) -> int:
        return allocate(self.across, 0).bytes_per_block

    def _source(self, asked: Iterable[deeds.Deed]) -> None:
        for deed in asked:
            key = (deed.id, deed.epoch)
            match deed:
                case deeds.Say():
                    if isinstance(deed.message, Reserve | Offer):
                        self.peers.dial(deed.peer, Address.of(self._out[key].address))
                    self.peers.say(deed.peer, True, *key, deed.message)
                case deeds.Send():
                    self._send(key)
                case deeds.FreeSource():
                    self._free_source(key)
                case deeds.Report():
                    self._count(failed=1)
                    self.log(f"a prompt was not handed over: {deed.reason} {deed.detail}".strip())
                case deeds.Handed():
                    self._count(sent=1)

    def _send(self, key: Key) -> None:
        out = self._out[key]
        hit("vllm.prefill.send")
        begin, end = self.source.held_blocks(key[0]), blocks_for(out.keep.tokens, self.state.storage.block_tokens)
        layers = len(self.blocks.like(0))
        frames = 0
        for layer in range(layers):
            for at in range(begin, end, AT_ONCE):
                count = min(AT_ONCE, end - at)
                self.peers.send(
                    out.peer, Run(out.flow, partial(self._crossing, key, out, layer, at, count), layer, at, count)
                )
                frames += 1
        total = (end - begin) * self._block_bytes
        self._count(sent_bytes=total, conversions=float(out.wire is not None and not out.sent))
        out.sent = True
        self._source(self.source.sent(*key, frames, total))

    def _crossing(self, key: Key, out: Outgoing, layer: int, begin: int, count: int) -> Reservation:
        """On a connection's thread: blocks of a layer in the form that crosses."""
        mine = self.blocks.read(layer, list(out.keep.blocks[begin : begin + count]))
        if out.wire is None:
            return Reservation(*key, {layer: mine.table(range(count), begin)})
        began = time.monotonic()
        like = out.wire.layers[layer]
        room = replace(like, bytes=memoryview(bytearray(count * like.stride)))
        size = self.state.storage.block_tokens
        places = range(-begin, count)  # the sequence's block `begin` is the first here
        rewrite_layer(mine, places, room, places, begin * size, min((begin + count) * size, out.keep.tokens))
        self._count(conversion_seconds=time.monotonic() - began)
        return Reservation(*key, {layer: room.table(range(count), begin)})

    def _free_source(self, key: Key) -> None:
        out = self._out.pop(key, None)
        if out is None:
            return
        if out.flow.stop():
            self._tell_sent(out.keep.request)
        else:
            self._dying[key] = (out, self._now() + STALL_MS)

    def _unread(self, key: Key) -> None:
        dying = self._dying.pop(key, None)
        if dying is not None:
            self._tell_sent(dying[0].keep.request)

    # --- decode -----------------------------------------------------------------------------------------------------

    def _fetch(self, job: Fetch) -> None:
        self._in[job.key] = Incoming(job, self._now())
        if job.refused:
            self._fail(job.key, job.refused)
            return
        self._target(self.target.expect(*job.key, job.peer, self._now()))
        if job.key in self._in:
            threading.Thread(target=self._ask, args=(job,), name="ask", daemon=True).start()

    def _ask(self, job: Fetch) -> None:
        try:
            address = Address.of(job.doorbell)
            told = ring(address, Ring("fetch", *job.key, self.name, self.listening))
        except InvalidInput as error:
            told = Told(str(error)[:300])
        if told.refused:
            self._events.put(partial(self._not_fetched, job.key, told.refused))

    def _not_fetched(self, key: Key, why: str) -> None:
        self._target(self.target.cancelled(*key))
        self._fail(key, why)

    def _cancel(self, request: str) -> None:
        for key in [key for key, each in self._in.items() if each.fetch.request == request]:
            self._target(self.target.cancelled(*key))
            self._fail(key, "nobody waits for it")

    def _fail(self, key: Key, why: str) -> None:
        incoming = self._in.pop(key, None)
        if incoming is None:
            return
        with self.peers.turn:
            self._table.end(*key)
        self._count(failed=1, refused=float(incoming.reservation is None))
        self.log(f"{incoming.fetch.request}: its KV was not taken over: {why}")
        with self._gate:
            self._finished.received.add(incoming.fetch.request)
            self._finished.failed.add(incoming.fetch.request)
        self._serve()

    def _target(self, asked: Iterable[deeds.Deed]) -> None:
        for deed in sorted(
            asked, key=lambda deed: isinstance(deed, deeds.FreeTarget)
        ):  # a report says why, so it is first
            key = (deed.id, deed.epoch)
            match deed:
                case deeds.Say():
                    self.peers.say(deed.peer, False, *key, deed.message)
                case deeds.MakeRoom():
                    self._rooms.append(deed)
                    self._serve()
                case deeds.Count():
                    self._arrived(key)
                case deeds.Activate():
                    self._activate(key)
                case deeds.FreeTarget():
                    self._fail(key, "the handoff ended")
                case deeds.Report():
                    self._fail(key, f"{deed.reason} {deed.detail}".strip())

    def _serve(self) -> None:
        while self._rooms and self._make_room(self._rooms[0]):
            self._rooms.popleft()

    def _make_room(self, wanted: deeds.MakeRoom) -> bool:
        """Host memory for what comes, or why it must not; whether it waits no more."""
        key = (wanted.id, wanted.epoch)
        incoming = self._in.get(key)
        if incoming is None or self.target.phase(wanted.id) is not Phase.WAITING:
            return True
        found = self._passage(wanted, incoming.fetch)
        if isinstance(found, str):
            self._target(self.target.no_room(*key, Reason.INCOMPATIBLE, 0, found))
            return True
        there = found.arriving.storage.block_tokens
        count, held = blocks_for(wanted.tokens, there), incoming.fetch.held_tokens // there
        size = allocate(found.arriving, 0).bytes_per_block * count
        limit = int(self.settings.staging_gib * (1 << 30))
        if size > limit:
            self._target(self.target.no_room(*key, Reason.TOO_LARGE, 0, f"{size:,} bytes of host memory"))
            return True
        if sum(each.staged for each in self._in.values()) + size > limit:
            return False
        incoming.staging, incoming.passage, incoming.staged = allocate(found.arriving, count), found, size
        tables = incoming.staging.tables(range(held, count), held)
        incoming.reservation = Reservation(*key, dict(enumerate(tables)))
        with self.peers.turn:
            refused = self._table.reserve(incoming.reservation)
        if refused is not None:
            self._target(self.target.no_room(*key, Reason.STALE_EPOCH, 0, str(refused)))
            return True
        hit("vllm.decode.reserve")
        self._target(self.target.room(*key, held, incoming.reservation.expected_bytes, self._now()))
        return True

    def _passage(self, wanted: deeds.MakeRoom, job: Fetch) -> Passage | str:
        if wanted.tokens != job.tokens:
            return f"{wanted.tokens} tokens are offered of a prompt of {job.tokens}"
        try:
            return passage(serial.from_msgpack(wanted.state).state, self.state, Side.DECODE)
        except InvalidInput as error:
            return f"its KV state cannot be read: {error}"[:480]

    def _arrived(self, key: Key) -> None:
        """The source is done and still holds it: count what is here; when it is everything, put it into vLLM's blocks."""
        incoming = self._in.get(key)
        if incoming is None or incoming.reservation is None:
            return
        with self.peers.turn:
            arrived = incoming.reservation.arrived_bytes
        missing, spoiled = incoming.reservation.expected_bytes - arrived, incoming.spoiled
        if not missing and not spoiled:
            hit("vllm.decode.write")
            try:
                self._write(incoming)
            except InvalidInput as error:
                self.log(str(error))
                spoiled = True
        self._target(self.target.counted(*key, arrived, missing, corrupt=spoiled))

    def _write(self, incoming: Incoming) -> None:
        job, began = incoming.fetch, time.monotonic()
        assert incoming.staging is not None
        size = self.state.storage.block_tokens
        begin, end = job.held_tokens // size, blocks_for(job.tokens, size)
        places = range(-begin, end - begin)
        for number, room in enumerate(self.blocks.like(end - begin)):
            layer = incoming.staging.layers[number]
            rewrite_layer(layer, range(incoming.staging.blocks), room, places, begin * size, job.tokens)
            self.blocks.write(number, list(job.blocks[begin:end]), room)
        assert incoming.passage is not None
        self._count(conversions=float(not incoming.passage.is_copy), conversion_seconds=time.monotonic() - began)

    def _activate(self, key: Key) -> None:
        incoming = self._in.pop(key)
        assert incoming.reservation is not None
        with self.peers.turn:
            self._table.end(*key)
        took = (self._now() - incoming.began) / 1000
        self._count(received=1, received_bytes=incoming.reservation.expected_bytes, seconds=took)
        with self._gate:
            self._finished.received.add(incoming.fetch.request)
        self._serve()

    # --- within -----------------------------------------------------------------------------------------------------

    def _tell_sent(self, request: str) -> None:
        with self._gate:
            self._finished.sent.add(request)

    def _count(self, **counts: float) -> None:
        with self._gate:
            self._counts = added(self._counts, counts)
