"""Cores in this process, a gateway's ear, and what every stream must be."""

import importlib.util
import os
import random
import threading
import time

import pytest

from diptych.runtime.engines.toy import Pace, ToyEngine, ToyModel
from diptych.runtime.messages import Cancel, Ended, Failed, Load, Params, Submit, Tokens
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.arena import Arena
from diptych.runtime.peer.nixl import Registered
from diptych.runtime.worker.commands import Command, Setup, Stop
from diptych.runtime.worker.core import Core
from diptych.runtime.worker.owner import Limits
from diptych.serving.batching import BatchRules
from worker_ear import Ear

MODEL = ToyModel(layers=3)
RULES, LIMITS = BatchRules(budget=64, sequences=64), Limits()
ROUTE = 1
without_nixl = pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="the package nixl is not installed")
TRANSPORTS = ("unix", "tcp", "shm", pytest.param("nixl", marks=without_nixl))
LENDERS = {"shm": Arena, "nixl": Registered}


class Worker(Ear):
    """A core on its thread, and everything that it has said. `transport` is how its peers reach it and it lends."""

    transport = "unix"

    def __init__(
        self,
        folder,
        name,
        role="colocated",
        *,
        rules=RULES,
        limits=LIMITS,
        engine=None,
        make=None,
        tiers=None,
        prefixes=True,
        tls=None,
        listen="",
        **toy,
    ):
        lender = LENDERS.get(self.transport)
        self.arena = arena = lender and lender()
        made = {"model": MODEL, "blocks": 64, "block_tokens": 4, "room": arena and arena.room}
        engine = make(made["room"]) if make else engine or ToyEngine(**made | toy)
        self.name, self.said, self.heard = name, [], threading.Condition()
        setup = Setup(name, role, 1, rules, limits, prefixes)
        self.core = Core(engine, setup, self._emit, tls=tls, arena=arena, tiers=tiers)
        here = "tcp:127.0.0.1:0" if self.transport == "tcp" else f"{self.transport}:{folder}/{name}.peer"
        self.address = str(self.core.peers.listen(Address.of(listen or here)))
        self.thread = threading.Thread(target=self.core.run, daemon=True)
        self.thread.start()

    def _emit(self, said):
        with self.heard:
            self.said += [message for _, message in said]
            self.heard.notify_all()

    def tell(self, message):
        self.core.tell(Command(ROUTE, message))

    def wait(self, found, seconds=8.0):
        """Until `found` says something of what was said."""
        end = time.monotonic() + seconds
        with self.heard:
            while not (answer := found(self.said)):
                left = end - time.monotonic()
                assert left > 0, f"{self.name} said {self.said[-5:]}"
                self.heard.wait(left)
            return answer

    def at_rest(self, seconds=10.0):
        """Until nothing is held; every block is free or cached."""
        load = super().at_rest(seconds)
        stepper = self.core.stepper
        cached = len(stepper.pool.cache.idle) if stepper.pool.cache else 0
        assert len(stepper.blocks.free) + cached == load.blocks
        return load

    def stop(self):
        self.core.tell(Stop())
        self.thread.join(10)
        assert not self.thread.is_alive()
        if self.arena is not None:
            self.arena.close()


def prompt(length, seed=0):
    chance = random.Random(seed * 1000 + length)
    return tuple(chance.randrange(MODEL.vocabulary - 1) for _ in range(length))


def submit(tokens, count, half="whole", request=None, epoch=1, **more):
    params = Params(
        max_tokens=count, **{name: more.pop(name) for name in list(more) if name in Params.__struct_fields__}
    )
    return Submit(request or os.urandom(16), epoch, half, tuple(tokens), params, **more)


def both(source, target, tokens, count, ownership="push", **more):
    """The two halves of one request, given to both."""
    second = submit(tokens, count, "decode", peer=source.name, ownership=ownership, **more)
    more.pop("request", None)
    first = submit(
        tokens,
        count,
        "prefill",
        second.request,
        peer=target.name,
        peer_address=target.address,
        ownership=ownership,
        **more,
    )
    target.tell(second)
    source.tell(first)
    return second.request


def cancel(request, epoch=1):
    return Cancel(request, epoch)


__all__ = ["MODEL", "Ended", "Failed", "Load", "Pace", "Tokens", "Worker", "both", "cancel", "prompt", "submit"]
