"""Workers on a bench: reached over their control sockets, given halves of requests, and heard with the time of every token."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from random import Random

from diptych.boundary import serial
from diptych.boundary.descriptor import KVState
from diptych.errors import DiptychError
from diptych.runtime.gateway.link import Link
from diptych.runtime.messages import Cancel, Ended, Failed, FromWorker, Hello, Params, Ready, Submit, Tokens
from diptych.runtime.peer.address import Address

HELLO_SECONDS = 10.0
ANSWER_SECONDS = 120.0


class ProbeFailed(DiptychError):
    """A worker did not do what it was asked."""


@dataclass(slots=True, eq=False)
class Heard:
    """One half under way: when its tokens came (s of this process's clock), and how many prompt tokens were in KV already."""

    began: float
    times: list[float] = field(default_factory=list)
    cached: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)
    first: asyncio.Event = field(default_factory=asyncio.Event)
    failed: str = ""

    @property
    def ttft(self) -> float:
        return self.times[0] - self.began


class Reached:
    """One worker. `ready` is what it said of itself."""

    def __init__(self, name: str, role: str) -> None:
        self.name, self.role = name, role
        self.ready: Ready | None = None
        self._come = asyncio.Event()
        self._open: dict[bytes, Heard] = {}
        self._link = Link(self._hear, self._lost)

    async def connect(self, address: Address) -> None:
        """Raises ProbeFailed when it does not answer."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await asyncio.get_running_loop().create_unix_connection(lambda: self._link, address.path)
                self._link.send(Hello("probe", "gateway", time.time_ns()))
                await self._come.wait()
        except (OSError, TimeoutError) as error:
            raise ProbeFailed(f"{self.name} does not answer: {error or 'nothing within 10 s'}") from None

    def close(self) -> None:
        self._link.end("the probe is over")

    def begin(
        self, request: bytes, prompt: tuple[int, ...], tokens: int, half: str, peer: Reached | None, how: str
    ) -> Heard:
        """Give it a half; an answer has exactly `tokens` tokens."""
        params = Params(tokens, ignore_eos=True)
        address = peer.ready.address if peer is not None and peer.ready is not None else ""
        name = peer.name if peer is not None else ""
        heard = self._open[request] = Heard(time.perf_counter())
        self._link.send(Submit(request, 1, half, prompt, params, (), name, address, how))
        return heard

    def stop(self) -> None:
        """Nobody waits for anything of it any more."""
        for request in self._open:
            self._link.send(Cancel(request, 1))
        self._open.clear()

    def _hear(self, message: FromWorker) -> None:
        now = time.perf_counter()
        match message:
            case Ready():
                self.ready = message
                self._come.set()
            case Tokens() if message.request in self._open:
                heard = self._open[message.request]
                heard.times.extend(now for _ in message.tokens)
                heard.first.set()
                if message.finish:
                    heard.done.set()
            case Ended() if message.request in self._open:
                heard = self._open.pop(message.request)
                heard.cached = message.cached
                heard.done.set()
            case Failed() if message.request in self._open:
                heard = self._open.pop(message.request)
                heard.failed = f"{message.reason}: {message.detail}" if message.detail else message.reason
                heard.first.set()
                heard.done.set()

    def _lost(self, why: str) -> None:
        for heard in self._open.values():
            heard.failed = f"{self.name} is gone: {why}"
            heard.first.set()
            heard.done.set()
        self._open.clear()


class Bench:
    """All workers of a fleet, and prompts that no prefix cache knows."""

    def __init__(self, ownership: str, seed: int = 0) -> None:
        self.ownership, self._numbers = ownership, Random(seed)  # noqa: S311 - prompts, not secrets
        self.workers: list[Reached] = []

    async def reach(self, name: str, role: str, address: Address) -> None:
        """Connect to one more worker."""
        worker = Reached(name, role)
        self.workers.append(worker)
        await worker.connect(address)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def of(self, role: str) -> list[Reached]:
        return [worker for worker in self.workers if worker.role == role]

    @property
    def ready(self) -> Ready:
        """What the first worker said of itself."""
        found = self.workers[0].ready
        assert found is not None
        return found

    @property
    def state(self) -> KVState:
        """How the first worker stores KV."""
        return serial.from_msgpack(self.ready.state).state

    def prompt(self, tokens: int) -> tuple[int, ...]:
        """Tokens drawn anew."""
        return tuple(self._numbers.choices(range(self.ready.vocabulary), k=tokens))

    async def whole(self, worker: Reached, prompt: tuple[int, ...], tokens: int = 1) -> Heard:
        """An answer of one worker alone, until it has ended."""
        heard = worker.begin(secrets.token_bytes(16), prompt, tokens, "whole", None, self.ownership)
        return await finished(heard)

    async def together(self, worker: Reached, prompts: list[tuple[int, ...]], tokens: int) -> list[Heard]:
        """Answers of one worker at the same time, until all have ended."""
        begun = [worker.begin(secrets.token_bytes(16), each, tokens, "whole", None, self.ownership) for each in prompts]
        return [await finished(heard) for heard in begun]

    async def handed(
        self, source: Reached, target: Reached, prompt: tuple[int, ...], tokens: int = 2
    ) -> tuple[Heard, Heard]:
        """A prompt computed by one and answered by the other, until both have ended: what each said."""
        request = secrets.token_bytes(16)
        answered = target.begin(request, prompt, tokens, "decode", source, self.ownership)
        computed = source.begin(request, prompt, tokens, "prefill", target, self.ownership)
        return await finished(computed), await finished(answered)


async def finished(heard: Heard) -> Heard:
    """What was heard, complete. Raises ProbeFailed."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await heard.done.wait()
    except TimeoutError:
        raise ProbeFailed(f"no answer within {ANSWER_SECONDS:g} s") from None
    if heard.failed or not heard.times:
        raise ProbeFailed(heard.failed or "an answer without tokens")
    return heard
