"""Prompts that arrive, in as many shares as prefill's ranks hold of them: received, counted, and told when all are here.

Where both sides keep blocks alike a share's bytes are written where they will lie, in blocks that vLLM has set aside for it and
neither reads nor gives to anybody before it is told. Else they are received beside vLLM's blocks, and rewritten in their form.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from diptych.boundary import serial
from diptych.boundary.messages import Reason
from diptych.boundary.wire_table import Reservation
from diptych.design.boundary import Side
from diptych.errors import InvalidInput
from diptych.integrations.vllm.doorbell import Ring, Told, ring
from diptych.integrations.vllm.host import Host, shares
from diptych.integrations.vllm.jobs import Fetch, Incoming, Wanted
from diptych.integrations.vllm.ticket import Key, Place, share_key
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
        self._wanted: dict[str, Wanted] = {}
        self._in: dict[Key, Incoming] = {}
        self._rooms: deque[deeds.MakeRoom] = deque()

    @property
    def open(self) -> int:
        """Prompts on their way here."""
        return len(self._wanted)

    # --- from vLLM ------------------------------------------------------------------------------------------------------

    def fetch(self, job: Fetch) -> None:
        """A prompt is wanted here."""
        wanted = self._wanted[job.request] = Wanted(job, self.joint.now())
        if job.refused:
            self._fail(wanted, job.refused)
        elif job.meeting:
            threading.Thread(target=self._meet, args=(wanted,), name="ask", daemon=True).start()
        else:
            self._begin(wanted, job.ranks)

    def cancel(self, request: str) -> None:
        """Nobody waits for this request any more."""
        if request in self._wanted:
            self._fail(self._wanted[request], "nobody waits for it")

    # --- asking for it --------------------------------------------------------------------------------------------------

    def _meet(self, wanted: Wanted) -> None:
        """On a thread of its own: who makes it, of how many ranks. The next ranks are asked at the next ports."""
        first = Address.of(wanted.fetch.meeting)
        told = ring(first, Ring("who", *wanted.fetch.key), self.joint.settings.tls)
        if told.refused or not told.worker:
            self.joint.events.put(partial(self._fail, wanted, told.refused or "source lost: it does not say who it is"))
            return
        engine, _, _ = told.worker.rpartition("-")
        places = [Place(f"{engine}-{rank}", str(replace(first, port=first.port + rank))) for rank in range(told.ranks)]
        self.joint.events.put(partial(self._begin, wanted, places))

    def _begin(self, wanted: Wanted, places: Sequence[Place]) -> None:
        if wanted.failed:
            return
        rank = self.joint.rank
        try:
            pieces = shares(len(places), rank.ranks, self.joint.blocks.heads_total)
        except InvalidInput as error:
            self._fail(wanted, str(error)[:300])
            return
        asked = []
        for piece in pieces:
            if piece.target == rank.number:
                key = share_key(wanted.fetch.key, piece.source, rank.number)
                place, target = places[piece.source], self.joint.blocks.narrowed(piece.target_at, len(piece.heads))
                self._in[key] = Incoming(wanted, place.worker, target)
                wanted.left.add(key)
                asked.append((key, place.doorbell))
        for key in list(wanted.left):
            self.carry(self.target.expect(*key, self._in[key].peer, self.joint.now()))
        idle = set(range(len(places))) - {piece.source for piece in pieces}
        if rank.number == 0:  # copies of heads that nobody takes from there
            asked += [(wanted.fetch.key, places[each].doorbell) for each in sorted(idle)]
        for key, doorbell in asked:
            threading.Thread(target=self._ask, args=(wanted, key, doorbell), name="ask", daemon=True).start()

    def _ask(self, wanted: Wanted, key: Key, doorbell: str) -> None:
        joint, job = self.joint, wanted.fetch
        deed: Literal["reserve", "fetch"] = "reserve" if job.meeting else "fetch"
        question = Ring(deed, *job.key, joint.rank.name, joint.listening, joint.rank.number, joint.rank.ranks,
                        joint.kept_digest, job.digest)  # fmt: skip
        try:
            told = ring(Address.of(doorbell), question, joint.settings.tls)
        except InvalidInput as error:
            told = Told(str(error)[:300])
        if told.refused:
            joint.events.put(partial(self._refused, wanted, key, told.refused))

    def _refused(self, wanted: Wanted, key: Key, why: str) -> None:
        if key in wanted.left:
            self._fail(wanted, why)

    # --- the ways it ends -----------------------------------------------------------------------------------------------

    def _fail(self, wanted: Wanted, why: str) -> None:
        """It will not be here: its other shares end too, and vLLM is told once nothing writes into its blocks."""
        if wanted.failed or self._wanted.get(wanted.fetch.request) is not wanted:
            return
        wanted.failed = True
        incoming = [self._in[key] for key in wanted.left]
        is_refused = all(each.reservation is None for each in incoming)
        self.joint.count(failed=1, refused=float(is_refused))
        self.joint.log(f"{wanted.fetch.request}: its KV was not taken over: {why}")
        for key in list(wanted.left):
            self.carry(self.target.cancelled(*key))
            self._end(key)
        self._tell(wanted)
        self._serve()

    def _end(self, key: Key) -> Incoming:
        """A share ends here, whole or not. Its memory may be written until the last connection that holds some says so."""
        incoming = self._in.pop(key)
        incoming.wanted.left.discard(key)
        with self.joint.peers.turn:
            is_free = incoming.reservation is None or self.joint.table.end(*key) is not False
        if incoming.is_direct and not is_free:
            incoming.wanted.writing.add(key)
            self.joint.lingering.keep(key, False, incoming.peer, self.joint.now(), partial(self._freed, key, incoming))
        return incoming

    def _freed(self, key: Key, incoming: Incoming) -> None:
        """Nothing writes into a share that has ended any more."""
        incoming.wanted.writing.discard(key)
        self._tell(incoming.wanted)

    def _tell(self, wanted: Wanted) -> None:
        """vLLM is told once every share has ended."""
        if wanted.left or wanted.writing:
            return
        request = wanted.fetch.request
        if self._wanted.pop(request, None) is None:
            return
        if wanted.failed:
            self.joint.tell(received=request, failed=request)
        else:
            took = (self.joint.now() - wanted.began) / 1000
            once = float(self.joint.rank.number == 0)
            self.joint.count(received=once, seconds=took * once)
            self.joint.tell(received=request)

    # --- the protocol ---------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Heartbeats, and waits that are over."""
        now = self.joint.now()
        self.carry(self.target.tick(now))
        self._serve()

    def spoiled(self, key: Key) -> None:
        """A frame came that does not fit: the two sides mean different things."""
        if key in self._in:
            self._in[key].spoiled = True

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
                case deeds.FreeTarget() if key in self._in:
                    self._fail(self._in[key].wanted, "the handoff ended")
                case deeds.Report() if key in self._in:
                    self._fail(self._in[key].wanted, f"{deed.reason} {deed.detail}".strip())

    def _serve(self) -> None:
        while self._rooms and self._make_room(self._rooms[0]):
            self._rooms.popleft()

    def _make_room(self, wanted: deeds.MakeRoom) -> bool:
        """A place for what comes, or why it must not; whether it waits no more."""
        key = (wanted.id, wanted.epoch)
        incoming = self._in.get(key)
        if incoming is None or self.target.phase(wanted.id) is not Phase.WAITING:
            return True
        found = self._passage(wanted, incoming)
        if isinstance(found, str):
            self.carry(self.target.no_room(*key, Reason.INCOMPATIBLE, 0, found))
            return True
        job, there = incoming.wanted.fetch, found.arriving.storage.block_tokens
        count, held = blocks_for(job.tokens, there), job.held_tokens // there
        own = self.joint.kept_own if found.wanted == self.joint.kept.state else None
        if own is not None:
            incoming.is_direct = True
            tables = tuple(layer.table(job.blocks[held:count], held) for layer in own)
        else:
            size = allocate(found.arriving, 0).bytes_per_block * count
            limit = int(self.joint.settings.staging_gib * (1 << 30))
            if size > limit:
                self.carry(self.target.no_room(*key, Reason.TOO_LARGE, 0, f"{size:,} bytes of host memory"))
                return True
            if sum(each.staged for each in self._in.values()) + size > limit:
                return False
            incoming.staging, incoming.staged = allocate(found.arriving, count), size
            tables = incoming.staging.tables(range(held, count), held)
        incoming.passage, incoming.reservation = found, Reservation(*key, dict(enumerate(tables)))
        with self.joint.peers.turn:
            refused = self.joint.table.reserve(incoming.reservation)
        if refused is not None:
            self.carry(self.target.no_room(*key, Reason.STALE_EPOCH, 0, str(refused)))
            return True
        hit("vllm.decode.reserve")
        self.carry(self.target.room(*key, held, incoming.reservation.expected_bytes, self.joint.now()))
        return True

    def _passage(self, wanted: deeds.MakeRoom, incoming: Incoming) -> Passage | str:
        """From what is offered to what is kept here: in vLLM's own order of a block if that is offered, else in the canonical."""
        job, kept = incoming.wanted.fetch, self.joint.kept.state
        if wanted.tokens != job.tokens:
            return f"{wanted.tokens} tokens are offered of a prompt of {job.tokens}"
        try:
            offered = serial.from_msgpack(wanted.state).state
        except InvalidInput as error:
            return f"its KV state cannot be read: {error}"[:480]
        is_kept = bool(offered.storage.packing) and incoming.target is self.joint.blocks
        return passage(offered, kept if is_kept else incoming.target.state, Side.DECODE)

    def _arrived(self, key: Key) -> None:
        """The source is done and still holds it: count what is here; when it is everything, have it in vLLM's blocks."""
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
        if incoming.staging is None:
            return
        job, found, began = incoming.wanted.fetch, incoming.passage, time.monotonic()
        assert found is not None
        is_kept = found.wanted == self.joint.kept.state
        blocks = self.joint.kept if is_kept else incoming.target
        size = found.wanted.storage.block_tokens
        begin, end = job.held_tokens // size, blocks_for(job.tokens, size)
        is_same = found.is_copy and found.arriving.storage == found.wanted.storage
        rooms = blocks.like(0 if is_same else end - begin)
        for number, room in enumerate(rooms):
            layer = incoming.staging.layers[number]
            if is_same:
                room = replace(layer, bytes=layer.bytes[begin * layer.stride :])
            else:
                places = range(-begin, end - begin)
                rewrite_layer(layer, range(incoming.staging.blocks), room, places, begin * size, job.tokens)
            blocks.write(number, job.blocks[begin:end], room)
        blocks.settle()
        if not found.is_copy:
            self.joint.count(conversions=1, conversion_seconds=time.monotonic() - began)

    def _activate(self, key: Key) -> None:
        hit("vllm.decode.activate")
        incoming = self._end(key)
        assert incoming.reservation is not None
        self.joint.count(received_bytes=incoming.reservation.expected_bytes)
        self._tell(incoming.wanted)
        self._serve()
