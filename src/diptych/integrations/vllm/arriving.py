"""Prompts that arrive: received beside vLLM's blocks, counted, rewritten in their form, and only then put into them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from functools import partial

from diptych.boundary import serial
from diptych.boundary.messages import Reason
from diptych.boundary.wire_table import Reservation
from diptych.design.boundary import Side
from diptych.errors import InvalidInput
from diptych.integrations.vllm.doorbell import Ring, Told, ring
from diptych.integrations.vllm.host import Host
from diptych.integrations.vllm.jobs import Fetch, Incoming, Key
from diptych.runtime.failpoints import hit
from diptych.runtime.handoff import deeds
from diptych.runtime.handoff.target import Phase, Target
from diptych.runtime.memory import allocate
from diptych.runtime.peer.address import Address
from diptych.runtime.worker.rewriting import Passage, passage, rewrite_layer
from diptych.serving.blocks import blocks_for


class Arriving:
    """The target's half, on the joint's thread."""

    def __init__(self, joint: Host) -> None:
        self.joint, self.target = joint, Target(int(joint.settings.wait_s * 1000))
        self._in: dict[Key, Incoming] = {}
        self._rooms: deque[deeds.MakeRoom] = deque()

    @property
    def open(self) -> int:
        """Prompts on their way here."""
        return len(self._in)

    def tick(self) -> None:
        """Heartbeats, and waits that are over."""
        self.carry(self.target.tick(self.joint.now()))
        self._serve()

    def spoiled(self, key: Key) -> None:
        """A frame came that does not fit: the two sides mean different things."""
        if key in self._in:
            self._in[key].spoiled = True

    def fetch(self, job: Fetch) -> None:
        """A prompt is wanted here."""
        self._in[job.key] = Incoming(job, self.joint.now())
        if job.refused:
            self._fail(job.key, job.refused)
            return
        self.carry(self.target.expect(*job.key, job.peer, self.joint.now()))
        if job.key in self._in:
            threading.Thread(target=self._ask, args=(job,), name="ask", daemon=True).start()

    def _ask(self, job: Fetch) -> None:
        try:
            address = Address.of(job.doorbell)
            told = ring(address, Ring("fetch", *job.key, self.joint.name, self.joint.listening))
        except InvalidInput as error:
            told = Told(str(error)[:300])
        if told.refused:
            self.joint.events.put(partial(self._not_fetched, job.key, told.refused))

    def _not_fetched(self, key: Key, why: str) -> None:
        self.carry(self.target.cancelled(*key))
        self._fail(key, why)

    def cancel(self, request: str) -> None:
        """Nobody waits for this request any more."""
        for key in [key for key, each in self._in.items() if each.fetch.request == request]:
            self.carry(self.target.cancelled(*key))
            self._fail(key, "nobody waits for it")

    def _fail(self, key: Key, why: str) -> None:
        incoming = self._in.pop(key, None)
        if incoming is None:
            return
        with self.joint.peers.turn:
            self.joint.table.end(*key)
        self.joint.count(failed=1, refused=float(incoming.reservation is None))
        self.joint.log(f"{incoming.fetch.request}: its KV was not taken over: {why}")
        self.joint.tell_received(incoming.fetch.request, failed=True)
        self._serve()

    def carry(self, asked: Iterable[deeds.Deed]) -> None:
        """Do what the target asks."""
        for deed in sorted(
            asked, key=lambda deed: isinstance(deed, deeds.FreeTarget)
        ):  # a report says why, so it is first
            key = (deed.id, deed.epoch)
            match deed:
                case deeds.Say():
                    self.joint.peers.say(deed.peer, False, *key, deed.message)
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
            self.carry(self.target.no_room(*key, Reason.INCOMPATIBLE, 0, found))
            return True
        there = found.arriving.storage.block_tokens
        count, held = blocks_for(wanted.tokens, there), incoming.fetch.held_tokens // there
        size = allocate(found.arriving, 0).bytes_per_block * count
        limit = int(self.joint.settings.staging_gib * (1 << 30))
        if size > limit:
            self.carry(self.target.no_room(*key, Reason.TOO_LARGE, 0, f"{size:,} bytes of host memory"))
            return True
        if sum(each.staged for each in self._in.values()) + size > limit:
            return False
        incoming.staging, incoming.passage, incoming.staged = allocate(found.arriving, count), found, size
        tables = incoming.staging.tables(range(held, count), held)
        incoming.reservation = Reservation(*key, dict(enumerate(tables)))
        with self.joint.peers.turn:
            refused = self.joint.table.reserve(incoming.reservation)
        if refused is not None:
            self.carry(self.target.no_room(*key, Reason.STALE_EPOCH, 0, str(refused)))
            return True
        hit("vllm.decode.reserve")
        self.carry(self.target.room(*key, held, incoming.reservation.expected_bytes, self.joint.now()))
        return True

    def _passage(self, wanted: deeds.MakeRoom, job: Fetch) -> Passage | str:
        if wanted.tokens != job.tokens:
            return f"{wanted.tokens} tokens are offered of a prompt of {job.tokens}"
        try:
            return passage(serial.from_msgpack(wanted.state).state, self.joint.state, Side.DECODE)
        except InvalidInput as error:
            return f"its KV state cannot be read: {error}"[:480]

    def _arrived(self, key: Key) -> None:
        """The source is done and still holds it: count what is here; when it is everything, put it into vLLM's blocks."""
        incoming = self._in.get(key)
        if incoming is None or incoming.reservation is None:
            return
        with self.joint.peers.turn:
            arrived = incoming.reservation.arrived_bytes
        missing, spoiled = incoming.reservation.expected_bytes - arrived, incoming.spoiled
        if not missing and not spoiled:
            hit("vllm.decode.write")
            try:
                self._write(incoming)
            except InvalidInput as error:
                self.joint.log(str(error))
                spoiled = True
        self.carry(self.target.counted(*key, arrived, missing, corrupt=spoiled))

    def _write(self, incoming: Incoming) -> None:
        job, began = incoming.fetch, time.monotonic()
        assert incoming.staging is not None
        size = self.joint.state.storage.block_tokens
        begin, end = job.held_tokens // size, blocks_for(job.tokens, size)
        places = range(-begin, end - begin)
        for number, room in enumerate(self.joint.blocks.like(end - begin)):
            layer = incoming.staging.layers[number]
            rewrite_layer(layer, range(incoming.staging.blocks), room, places, begin * size, job.tokens)
            self.joint.blocks.write(number, list(job.blocks[begin:end]), room)
        assert incoming.passage is not None
        self.joint.count(conversions=float(not incoming.passage.is_copy), conversion_seconds=time.monotonic() - began)

    def _activate(self, key: Key) -> None:
        incoming = self._in.pop(key)
        assert incoming.reservation is not None
        with self.joint.peers.turn:
            self.joint.table.end(*key)
        took = (self.joint.now() - incoming.began) / 1000
        self.joint.count(received=1, received_bytes=incoming.reservation.expected_bytes, seconds=took)
        self.joint.tell_received(incoming.fetch.request)
        self._serve()
