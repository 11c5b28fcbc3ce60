"""Prompts that leave this worker: kept or made, handed in shares to whoever has the ticket, and freed when nothing reads them.

Under pull a prompt is whole before anybody asks for it. Under push those who want it ask first; once all of them have room the
prompt is computed, and each layer's blocks are sent as the forward pass fills them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from diptych.boundary import serial
from diptych.boundary.messages import Abort, Offer, Reason, Reserve
from diptych.boundary.reshard import Piece
from diptych.boundary.wire_table import Reservation
from diptych.design.boundary import Ownership
from diptych.errors import InvalidInput
from diptych.integrations.vllm.doorbell import Ring, Told
from diptych.integrations.vllm.host import Host, shares
from diptych.integrations.vllm.jobs import Keep, Made, Make, Outgoing, Prompt
from diptych.integrations.vllm.ticket import Key, share_key
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
OTHER_PROMPT = "another prompt is made here than is asked for"
MOST_EARLY = 4096
"""Prompts that may be asked for before they are known here."""
SETTLE_S = 2.0
"""How long a prompt may be asked for before this worker has heard of it."""


class Leaving:
    """The source's half. On the joint's thread, but for `rung` and the reading of blocks."""

    def __init__(self, joint: Host) -> None:
        self.joint, self.source = joint, Source()
        _, refused = crossing(joint.state, joint.settings.wire)
        if refused:
            joint.log(f"prompts are sent as they are kept: {refused}")
        self.prompts: dict[Key, Prompt] = {}
        self._early: dict[Key, list[tuple[Ring, int]]] = {}
        self._newest = -1
        self._out: dict[Key, Outgoing] = {}

    @property
    def leases(self) -> int:
        """Prompts whose blocks vLLM may not reuse, or that are waited for."""
        return len(self.prompts)

    # --- from vLLM ------------------------------------------------------------------------------------------------------

    def make(self, job: Make) -> None:
        """Push: a prompt will be made; whoever has asked for it is told to make room."""
        if job.key in self.prompts:
            self.joint.log(f"{job.request}: its transfer_id is in use; it is not handed over")
            self.joint.tell(forsaken=job.request)
            return
        until = self.joint.now() + int(self.joint.settings.wait_s * 1000)
        prompt = Prompt(job.key, job.request, job.tokens, until, job.digest, is_push=True)
        self.prompts[job.key] = prompt
        for ring, _ in self._early.pop(job.key, []):
            told = self._share(prompt, ring)
            if told.refused:
                self._turn_away(prompt, ring, told.refused)

    def made(self, job: Made, layer: int, fence: Any) -> None:
        """Push: a forward pass has filled these blocks of one layer."""
        prompt = self.prompts.get(job.key)
        if prompt is None or prompt.is_over:
            return
        prompt.blocks, size = job.blocks, self.joint.state.storage.block_tokens
        whole = job.tokens >= prompt.tokens
        end = blocks_for(prompt.tokens, size) if whole else job.tokens // size
        for key in prompt.open:
            if (out := self._out.get(key)) is not None and out.has_room:
                self._stream(key, out, layer, end, fence)

    def keep(self, job: Keep) -> None:
        """A prompt is computed, and vLLM waits for its blocks: its lease begins."""
        until = self.joint.now() + int(self.joint.settings.lease_s * 1000)
        prompt = self.prompts.get(job.key)
        if prompt is None:
            self._newest = max(self._newest, job.key[1])
            prompt = self.prompts[job.key] = Prompt(job.key, job.request, job.tokens, until, blocks=job.blocks)
        elif prompt.request != job.request:
            self.joint.tell(sent=job.request)
            return
        prompt.blocks, prompt.is_whole, prompt.is_freed, prompt.until = job.blocks, True, True, until
        for key in list(prompt.open):
            self.carry(self.source.produced(*key, 0, self.joint.now()))
        self._settle(prompt)

    def halt(self, request: str, tell: bool) -> None:
        """vLLM gives a prompt up that is being made; it waits for its blocks if `tell`."""
        found = [each for each in self.prompts.values() if each.request == request]
        if tell and not found:
            self.joint.tell(sent=request)
        for prompt in found:
            prompt.is_freed = True
            prompt.is_whole = True  # there will be no more of it
            prompt.halted, prompt.request = request, request if tell else ""
            self._forsake(prompt, "")

    def is_quiet(self, request: str) -> bool:
        """Whether nothing reads blocks of a request that was halted."""
        return not any(each.halted == request for each in self.prompts.values())

    # --- asked by others ------------------------------------------------------------------------------------------------

    def rung(self, question: Ring) -> Told:
        """On the doorbell's thread: have it answered on the joint's.

        vLLM gives prefill's answer away before its workers hear of the prompt, so that decode may ask too early.
        """
        end = time.monotonic() + SETTLE_S
        while (told := self._asked(question)) is None:
            if time.monotonic() > end:
                return Told("unknown reservation: no such prompt was computed here")
            time.sleep(0.002)
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
        if question.deed == "who":
            return Told(worker=self.joint.rank.name, ranks=self.joint.rank.ranks)
        key = (question.id, question.epoch)
        prompt = self.prompts.get(key)
        if prompt is None or prompt.is_over:
            return self._unknown(key, question)
        match question.deed:
            case "keep":
                prompt.until = max(prompt.until, self.joint.now() + int(self.joint.settings.lease_s * 1000))
            case "drop":
                self._forsake(prompt, "nobody will read it")
            case _:
                return self._share(prompt, question)
        return Told()

    def _unknown(self, key: Key, question: Ring) -> Told | None:
        if question.deed != "reserve":
            told = Told("stale epoch: this prompt is not kept here, or no longer")
            return told if question.epoch <= self._newest or key in self.prompts else None
        if self.joint.settings.ownership is not Ownership.PUSH:
            return Told("this prefill worker hands over by pull: ask it first, and decode with its answer")
        if key in self.prompts or len(self._early) >= MOST_EARLY:
            return Told("stale epoch: this prompt is made without a handoff")
        until = self.joint.now() + int(self.joint.settings.wait_s * 1000)
        self._early.setdefault(key, []).append((question, until))
        return Told()

    def _share(self, prompt: Prompt, ring: Ring) -> Told:
        """The asker's share of a prompt, to be handed to where it listens; or why not."""
        rank = self.joint.rank
        try:
            address = Address.of(ring.address)
            pieces = [
                piece
                for piece in shares(rank.ranks, ring.ranks, self.joint.blocks.heads_total)
                if piece.source == rank.number
            ]
        except InvalidInput as error:
            return Told(str(error)[:300])
        takers = frozenset(piece.target for piece in pieces)
        mine = next((piece for piece in pieces if piece.target == ring.rank), None)
        refused = self._refusal(prompt, ring, address, takers, mine)
        if refused:
            if refused is OTHER_PROMPT:
                self._forsake(prompt, refused)
            return Told(refused)
        prompt.takers = takers
        if mine is not None:
            prompt.asked.add(ring.rank)
            self._offer(prompt, ring, mine)
        self._look_for_room(prompt)
        self._settle(prompt)
        return Told()

    def _refusal(self, prompt: Prompt, ring: Ring, address: Address, takers: frozenset[int], mine: Piece | None) -> str:
        if not ring.worker or not (address.is_local or self.joint.settings.tls):
            return "the asker's address leaves this host"
        if prompt.digest and ring.prompt != prompt.digest:
            return OTHER_PROMPT
        if prompt.takers is not None and prompt.takers != takers:
            return "stale epoch: a worker of another number of ranks asked for it"
        if ring.rank in prompt.asked:
            return "stale epoch: this prompt was asked for already"
        if mine is None and takers:
            return "no head of it is for this rank"
        return ""

    def _offer(self, prompt: Prompt, ring: Ring, piece: Piece) -> None:
        joint, key = self.joint, share_key(prompt.key, piece.source, piece.target)
        source, own = joint.blocks.narrowed(piece.source_at, len(piece.heads)), None
        if not joint.settings.wire and source is joint.blocks and ring.kept == joint.kept_digest:
            source, own, across = joint.kept, joint.kept_own, joint.kept.state
        else:
            across, _ = crossing(source.state, joint.settings.wire)
        shape = allocate(across, 0)
        flow = Outflow(*key, lambda: joint.events.put(events.Unread(*key)))
        wire = None if across is source.state else shape
        streamed = [0] * len(shape.layers)
        self._out[key] = Outgoing(prompt, source, own, across, flow, ring.worker, ring.address, wire, streamed)
        prompt.open.add(key)
        total = blocks_for(prompt.tokens, across.storage.block_tokens) * shape.bytes_per_block
        parcel = Parcel(
            *key, ring.worker, Ownership.PUSH if prompt.is_push else Ownership.PULL, prompt.tokens, total,
            serial.to_msgpack(across), int(joint.settings.lease_s * 1000), int(joint.settings.wait_s * 1000),
        )  # fmt: skip
        self.carry(self.source.submit(parcel, joint.now()))
        if prompt.is_whole:
            self.carry(self.source.produced(*key, 0, joint.now()))

    def _turn_away(self, prompt: Prompt, ring: Ring, why: str) -> None:
        """Tell a worker that asked before the prompt was known why it will not get it, so that it does not wait."""
        self.joint.log(f"{prompt.request}: refused to {ring.worker}: {why}")
        try:
            address = Address.of(ring.address)
        except InvalidInput:
            return
        if address.is_local or self.joint.settings.tls:
            key = share_key(prompt.key, self.joint.rank.number, ring.rank)
            self.joint.peers.dial(ring.worker, address)
            self.joint.peers.say(ring.worker, True, *key, Abort(Reason.INCOMPATIBLE, why[:200]))

    # --- the protocol ---------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Leases that are over."""
        now = self.joint.now()
        for prompt in [each for each in self.prompts.values() if each.until <= now]:
            if not prompt.is_over and not (prompt.is_asked and (prompt.is_whole or prompt.roomy == len(prompt.asked))):
                self.joint.count(expired=self._once)
                self._forsake(prompt, "nobody asked for its KV in time")
        for key, early in list(self._early.items()):
            self._early[key] = [(ring, until) for ring, until in early if until > now]
            if not self._early[key]:
                del self._early[key]
        self.carry(self.source.tick(now))

    def lost(self, peer: str, link: int) -> None:
        """A connection to a worker is gone. Handoffs that began after it ended are on another one."""
        used = {id for (id, _), out in self._out.items() if out.link == link}
        self.carry(self.source.lost(peer, self.joint.now(), used))

    def carry(self, asked: Sequence[deeds.Deed]) -> None:
        """Do what the source asks."""
        handed = {(deed.id, deed.epoch) for deed in asked if isinstance(deed, deeds.Handed)}
        for deed in asked:
            key = (deed.id, deed.epoch)
            out = self._out.get(key)
            match deed:
                case deeds.Say() if out is not None:
                    if isinstance(deed.message, Reserve | Offer):
                        out.link = self.joint.peers.dial(deed.peer, Address.of(out.address))
                    self.joint.peers.say(deed.peer, True, *key, deed.message)
                case deeds.Say():
                    self.joint.peers.say(deed.peer, True, *key, deed.message)
                case deeds.Prefill() if out is not None and out.prompt.is_push:
                    out.has_room = True
                    out.prompt.roomy += 1
                    self._look_for_room(out.prompt)
                case deeds.Send() if out is not None:
                    self._send(key, out)
                case deeds.FreeSource() if out is not None:
                    out.prompt.handed += key in handed
                    self._free_source(key, out)
                case deeds.Report():
                    self.joint.count(failed=1)
                    self.joint.log(f"a prompt was not handed over: {deed.reason} {deed.detail}".strip())

    @property
    def _once(self) -> float:
        """What a prompt counts here: one rank counts it for all."""
        return float(self.joint.rank.number == 0)

    def _look_for_room(self, prompt: Prompt) -> None:
        """Push: once everybody has room, vLLM may compute it."""
        if prompt.is_push and not prompt.is_whole and prompt.is_asked and prompt.roomy == len(prompt.asked):
            self.joint.tell(roomy=prompt.request)

    def _forsake(self, prompt: Prompt, why: str) -> None:
        """It is handed to nobody from here on; what is on its way ends."""
        if why:
            self.joint.log(f"{prompt.request}: not handed over: {why}")
        if not prompt.is_over and not prompt.is_whole:
            self.joint.tell(forsaken=prompt.request)
        prompt.is_over = True
        for key in list(prompt.open):
            self.carry(self.source.cancelled(*key, self.joint.now()))
        self._settle(prompt)

    def _settle(self, prompt: Prompt) -> None:
        """Give vLLM its blocks back once nobody reads them or may ask for them."""
        if not prompt.is_freed or prompt.open or not (prompt.is_over or prompt.is_asked):
            return
        if self.prompts.pop(prompt.key, None) is not None:
            self.joint.count(sent=self._once * (prompt.handed == len(prompt.takers or (None,))))
            self.joint.tell(sent=prompt.request)

    # --- blocks ---------------------------------------------------------------------------------------------------------

    def _send(self, key: Key, out: Outgoing) -> None:
        """What has not been sent; after damage, everything."""
        hit("vllm.prefill.send")
        held, end = self.source.held_blocks(key[0]), blocks_for(out.prompt.tokens, out.across.storage.block_tokens)
        if out.is_sent:
            out.streamed = [held] * len(out.streamed)
        else:
            early = sum(max(0, each - held) for each in out.streamed) * self._layer_bytes(out)
            self.joint.count(early_bytes=early, conversions=float(out.wire is not None))
        for layer in range(len(out.streamed)):
            self._stream(key, out, layer, end, None)
        out.is_sent = True
        self.carry(self.source.sent(*key, out.frames, out.sent_bytes))

    @staticmethod
    def _layer_bytes(out: Outgoing) -> int:
        return allocate(out.across, 0).layers[0].block_bytes

    def _stream(self, key: Key, out: Outgoing, layer: int, end: int, fence: Any) -> None:
        """Blocks of a layer up to `end`, behind those that are on their way."""
        begin = max(out.streamed[layer], self.source.held_blocks(key[0]))
        for at in range(begin, end, AT_ONCE):
            count = min(AT_ONCE, end - at)
            blocks = out.prompt.blocks[at : at + count]
            if out.own is not None:
                lies = Reservation(*key, {layer: out.own[layer].table(blocks, at)})
                run = Run(out.flow, partial(_same, lies), layer, at, count)
            else:
                run = Run(out.flow, partial(self._crossing, key, out, layer, at, blocks, fence), layer, at, count)
            self.joint.peers.send(out.peer, run)
            out.frames += 1
        size = max(0, end - begin) * self._layer_bytes(out)
        out.streamed[layer], out.sent_bytes = max(begin, end), out.sent_bytes + size
        self.joint.count(sent_bytes=size)

    def _crossing(
        self, key: Key, out: Outgoing, layer: int, begin: int, blocks: tuple[int, ...], fence: Any
    ) -> Reservation:
        """On a connection's thread: blocks of a layer in the form that crosses."""
        mine, count = out.source.read(layer, blocks, fence), len(blocks)
        if out.wire is None:
            return Reservation(*key, {layer: mine.table(range(count), begin)})
        began = time.monotonic()
        like = out.wire.layers[layer]
        room = replace(like, bytes=memoryview(bytearray(count * like.stride)))
        size = self.joint.state.storage.block_tokens
        places = range(-begin, count)  # the sequence's block `begin` is the first here
        rewrite_layer(mine, places, room, places, begin * size, min((begin + count) * size, out.prompt.tokens))
        self.joint.count(conversion_seconds=time.monotonic() - began)
        return Reservation(*key, {layer: room.table(range(count), begin)})

    def _free_source(self, key: Key, out: Outgoing) -> None:
        del self._out[key]
        if out.flow.stop():
            self._ended(key, out)
        else:
            self.joint.lingering.keep(key, True, out.peer, self.joint.now(), partial(self._ended, key, out))

    def _ended(self, key: Key, out: Outgoing) -> None:
        prompt = out.prompt
        prompt.open.discard(key)
        if prompt.is_push and not prompt.is_whole and not prompt.is_over:
            self._forsake(prompt, "a decode worker gave it up")
        self._settle(prompt)


def _same(lies: Reservation) -> Reservation:
    return lies
