"""Prompts that leave this worker: kept under a lease, handed to whoever has the ticket, and freed when nothing reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from diptych.boundary import serial
from diptych.boundary.messages import Offer, Reserve
from diptych.boundary.wire_table import Reservation
from diptych.errors import InvalidInput
from diptych.integrations.vllm.doorbell import Ring, Told
from diptych.integrations.vllm.host import STALL_MS, Host
from diptych.integrations.vllm.jobs import Keep, Key, Outgoing
from diptych.runtime.failpoints import hit
from diptych.runtime.handoff import deeds
from diptych.runtime.handoff.source import Parcel, Source
from diptych.runtime.memory import allocate
from diptych.runtime.peer import events
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.outflow import Outflow, Run
from diptych.runtime.worker.rewriting import crossing, rewrite_layer
from diptych.serving.blocks import blocks_for

AT_ONCE = 64
"""Blocks of a layer that are read at one time."""
SETTLE_S = 2.0
"""How long a prompt may be asked for before this worker has heard of it."""


class Leaving:
    """The source's half. On the joint's thread, but for `rung` and the reading of blocks."""

    def __init__(self, joint: Host) -> None:
        self.joint, self.source = joint, Source()
        self.across, refused = crossing(joint.state, joint.settings.wire)
        if refused:
            joint.log(f"prompts are sent as they are kept: {refused}")
        self.kept: dict[Key, tuple[Keep, int]] = {}
        self._newest = -1
        self._out: dict[Key, Outgoing] = {}
        self._dying: dict[Key, tuple[Outgoing, int]] = {}

    @property
    def leases(self) -> int:
        """Prompts whose blocks vLLM may not reuse."""
        return len(self.kept) + len(self._out) + len(self._dying)

    def tick(self) -> None:
        """Leases that are over; connections that read on too long."""
        now = self.joint.now()
        for key, (job, until) in list(self.kept.items()):
            if until <= now:
                del self.kept[key]
                self.joint.count(expired=1)
                self.joint.log(
                    f"{job.request}: nobody asked for its KV within {self.joint.settings.lease_s:g} s; its blocks are free"
                )
                self.joint.tell_sent(job.request)
        self.carry(self.source.tick(now))
        for key, (out, until) in list(self._dying.items()):
            if until <= now:
                self._dying[key] = (out, now + STALL_MS)
                self.joint.peers.drop(out.peer, True)

    def keep(self, job: Keep) -> None:
        """A prompt is computed, or still waited for: its lease begins."""
        self._newest = max(self._newest, job.key[1])
        self.kept[job.key] = (job, self.joint.now() + int(self.joint.settings.lease_s * 1000))

    def rung(self, question: Ring) -> Told:
        """On the doorbell's thread: have it answered on the joint's.

        vLLM gives prefill's answer away before its workers hear of the prompt, so that decode may ask too early.
        """
        end = time.monotonic() + SETTLE_S
        while (told := self._asked(question)) is None:
            if time.monotonic() > end:
                return Told("unknown reservation: no such prompt was computed here")
            time.sleep(0.01)
        return told

    def _asked(self, question: Ring) -> Told | None:
        answered, box = threading.Event(), list[Told | None]()

        def answer() -> None:
            box.append(self._answer(question))
            answered.set()

        self.joint.events.put(answer)
        return box[0] if answered.wait(SETTLE_S) else Told("draining")

    def _answer(self, question: Ring) -> Told | None:
        """None: this epoch has not begun here yet. Epochs begin in order."""
        key = (question.id, question.epoch)
        standing = self.kept.get(key)
        if standing is None:
            told = Told("stale epoch: this prompt is not kept here, or no longer")
            return told if question.epoch <= self._newest else None
        job, _ = standing
        if question.deed == "keep":
            self.keep(job)
        elif question.deed == "drop":
            del self.kept[key]
            self.joint.tell_sent(job.request)
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
        wire = None if self.across is self.joint.state else allocate(self.across, 0)
        until = self.joint.now() + STALL_MS
        flow = Outflow(*key, lambda: self.joint.events.put(events.Unread(*key)))
        self._out[key] = Outgoing(job, self.across, flow, question.worker, question.address, until, wire)
        total = blocks_for(job.tokens, self.joint.state.storage.block_tokens) * self._block_bytes
        parcel = Parcel(
            *key, question.worker, self.joint.settings.ownership, job.tokens, total, serial.to_msgpack(self.across),
            int(self.joint.settings.lease_s * 1000), int(self.joint.settings.wait_s * 1000),
        )  # fmt: skip
        self.carry(self.source.submit(parcel, self.joint.now()))
        self.carry(self.source.produced(*key, 0, self.joint.now()))

    @property
    def _block_bytes(self) -> int:
        return allocate(self.across, 0).bytes_per_block

    def carry(self, asked: Iterable[deeds.Deed]) -> None:
        """Do what the source asks."""
        for deed in asked:
            key = (deed.id, deed.epoch)
            match deed:
                case deeds.Say():
                    if isinstance(deed.message, Reserve | Offer):
                        self.joint.peers.dial(deed.peer, Address.of(self._out[key].address))
                    self.joint.peers.say(deed.peer, True, *key, deed.message)
                case deeds.Send():
                    self._send(key)
                case deeds.FreeSource():
                    self._free_source(key)
                case deeds.Report():
                    self.joint.count(failed=1)
                    self.joint.log(f"a prompt was not handed over: {deed.reason} {deed.detail}".strip())
                case deeds.Handed():
                    self.joint.count(sent=1)

    def _send(self, key: Key) -> None:
        out = self._out[key]
        hit("vllm.prefill.send")
        begin, end = self.source.held_blocks(key[0]), blocks_for(out.keep.tokens, self.joint.state.storage.block_tokens)
        layers = len(self.joint.blocks.like(0))
        frames = 0
        for layer in range(layers):
            for at in range(begin, end, AT_ONCE):
                count = min(AT_ONCE, end - at)
                self.joint.peers.send(
                    out.peer, Run(out.flow, partial(self._crossing, key, out, layer, at, count), layer, at, count)
                )
                frames += 1
        total = (end - begin) * self._block_bytes
        self.joint.count(sent_bytes=total, conversions=float(out.wire is not None and not out.sent))
        out.sent = True
        self.carry(self.source.sent(*key, frames, total))

    def _crossing(self, key: Key, out: Outgoing, layer: int, begin: int, count: int) -> Reservation:
        """On a connection's thread: blocks of a layer in the form that crosses."""
        mine = self.joint.blocks.read(layer, list(out.keep.blocks[begin : begin + count]))
        if out.wire is None:
            return Reservation(*key, {layer: mine.table(range(count), begin)})
        began = time.monotonic()
        like = out.wire.layers[layer]
        room = replace(like, bytes=memoryview(bytearray(count * like.stride)))
        size = self.joint.state.storage.block_tokens
        places = range(-begin, count)  # the sequence's block `begin` is the first here
        rewrite_layer(mine, places, room, places, begin * size, min((begin + count) * size, out.keep.tokens))
        self.joint.count(conversion_seconds=time.monotonic() - began)
        return Reservation(*key, {layer: room.table(range(count), begin)})

    def _free_source(self, key: Key) -> None:
        out = self._out.pop(key, None)
        if out is None:
            return
        if out.flow.stop():
            self.joint.tell_sent(out.keep.request)
        else:
            self._dying[key] = (out, self.joint.now() + STALL_MS)

    def unread(self, key: Key) -> None:
        """Nothing reads its blocks any more."""
        dying = self._dying.pop(key, None)
        if dying is not None:
            self.joint.tell_sent(dying[0].keep.request)
