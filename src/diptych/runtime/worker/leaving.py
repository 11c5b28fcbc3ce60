"""What leaves this worker: prompts computed here are pinned, sent as their layers are made, and freed when others have them.

Everything is on the engine's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from diptych.boundary import serial
from diptych.boundary.messages import Commit, Offer, Reason, Reserve
from diptych.design.boundary import Ownership
from diptych.errors import InvalidInput
from diptych.runtime.failpoints import hit
from diptych.runtime.handoff import deeds
from diptych.runtime.handoff.source import Parcel, Source
from diptych.runtime.peer import events
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.outflow import Outflow
from diptych.runtime.peer.peers import Peers
from diptych.runtime.sampling import Sampled
from diptych.runtime.worker.half import Half, Key
from diptych.runtime.worker.lingering import Lingering
from diptych.runtime.worker.owner import Limits, Owner, report
from diptych.runtime.worker.rewriting import crossing
from diptych.runtime.worker.sending import Outgoing
from diptych.runtime.worker.sharing import Sharing
from diptych.runtime.worker.stepper import Stepper
from diptych.serving.blocks import blocks_for


class Leaving:
    """The source's side of this worker's handoffs, with what it holds."""

    def __init__(
        self, owner: Owner, stepper: Stepper, peers: Peers, limits: Limits, lingering: Lingering, sharing: Sharing
    ) -> None:
        self.owner, self.stepper, self.peers, self.limits, self.lingering = owner, stepper, peers, limits, lingering
        self.sharing = sharing
        sharing.due.append(self._due)
        self.source = Source()
        self._state = serial.to_msgpack(stepper.engine.state)
        self._layers = len(stepper.engine.memory.layers)
        self._out: dict[Key, Outgoing] = {}
        self._prefills: deque[Key] = deque()
        stepper.before_reuse = self._before_reuse

    @property
    def waiting(self) -> int:
        return len(self._prefills)

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
        self._carry(self.source.submit(parcel, self.owner.now()))

    def cancel(self, id: bytes, epoch: int) -> None:
        """Nobody waits for it any more."""
        self._carry(self.source.cancelled(id, epoch, self.owner.now()))

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
        self._carry(self.source.produced(*half.key, sampled.token, self.owner.now()))

    def faulted(self, half: Half) -> None:
        """A prompt cannot be computed; its blocks are given back already."""
        self._carry(self.source.failed(*half.key, self.owner.now()))

    # --- from connections, and time ---------------------------------------------------------------------------------

    def heard(self, said: events.Heard) -> None:
        """A target has said something."""
        if isinstance(said.message, Commit):
            hit("prefill.commit")
        self._carry(self.source.heard(said.peer, said.id, said.epoch, said.message, self.owner.now()))

    def lost(self, peer: str, link: int) -> None:
        """A connection to a target is gone. Handoffs that began after it ended are on another one."""
        used = {id for (id, _), out in self._out.items() if out.link == link}
        self._carry(self.source.lost(peer, self.owner.now(), used))

    def tick(self, now: int) -> None:
        """Leases and waits."""
        self._carry(self.source.tick(now))

    def serve(self) -> None:
        """Start prompts that waited because too many were pinned, or for what is to arrive here first."""
        waiting, self._prefills = self._prefills, deque()
        self._prefills.extendleft(reversed([key for key in waiting if not self._begin_prefill(key)]))

    def yield_to(self, id: bytes) -> None:
        """What arrives waits for memory: large prompts in it that wait for their targets, and come after it, are given up."""
        for key, out in list(self._out.items()):
            waits = out.half.submit.ownership == "pull" and out.holding is not None and not self.source.has_room(key[0])
            if waits and key[0] > id and self.sharing.is_large(self.stepper.need(out.half)):
                self.cancel(*key)
                self.owner.failed(
                    out.half, str(Reason.NO_ROOM), "it waited for a worker that waited for this one's memory"
                )

    # --- deeds --------------------------------------------------------------------------------------------------------

    def _carry(self, asked: Iterable[deeds.Deed]) -> None:
        for deed in asked:
            key = (deed.id, deed.epoch)
            match deed:
                case deeds.Say():
                    if isinstance(deed.message, Reserve | Offer):
                        self._out[key].link = self.peers.dial(deed.peer, self._out[key].address)
                    self.peers.say(deed.peer, True, *key, deed.message)
                case deeds.Prefill():
                    hit("prefill.reserve")
                    self._prefills.append(key)
                    self.serve()
                case deeds.Send():
                    self._send(key)
                case deeds.FreeSource():
                    self._free(key)
                case deeds.Report():
                    report(self.owner, deed)
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
        pulled = out.half.submit.ownership == "pull"
        if pulled and (begun >= self.limits.pinned or not self.sharing.promise(key[0], self.stepper.need(out.half))):
            return False
        out.begun = True
        hit("prefill.queue")
        self.stepper.add(out.half)
        return True

    def _due(self, id: bytes) -> int:
        """Blocks of the largest prompt to be computed here for a target that has room, or might have before `id` is served."""
        pushed = [
            out.half
            for (other, _), out in self._out.items()
            if out.holding is None
            and out.half.submit.ownership == "push"
            and (other < id or self.source.has_room(other))
        ]
        return max(map(self.stepper.need, pushed), default=0)

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
        self._carry(self.source.sent(*key, out.frames, out.total_bytes))

    def _free(self, key: Key) -> None:
        out = self._out.pop(key, None)
        if out is None:
            return
        hit("prefill.release")
        half = out.half
        self.sharing.keep(key[0])
        holding = self.stepper.withdraw(half) if out.holding is None else out.holding
        if out.flow.stop():
            self.stepper.free(half, holding)
        else:
            release = partial(self.stepper.free, half, holding)
            self.lingering.keep(key, True, half.submit.peer, self.owner.now(), release)

    def _outflow(self, key: Key) -> Outflow:
        return Outflow(*key, lambda: self.peers.tell(events.Unread(*key)))

    def _before_reuse(self, half: Half) -> None:
        """A prompt that was being streamed is preempted: nothing may read its blocks any more, and it starts anew."""
        out = self._out.get(half.key)
        if out is not None and half.hands_off:
            if not out.flow.stop():
                self.peers.quiet(half.submit.peer, out.flow, self.limits.stall_ms / 1000)
            out.begin_again(self._outflow(half.key))
