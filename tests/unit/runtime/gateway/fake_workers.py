"""Workers in this process that speak the real messages over real socket files; their tokens are the toy model's."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from pathlib import Path

from diptych.runtime.engines.toy import ToyModel
from diptych.runtime.gateway.server import Listening
from diptych.runtime.gateway.service import Service
from diptych.runtime.gateway.settings import Endpoint, Limits, Settings
from diptych.runtime.messages import (
    Ask,
    Cancel,
    Chosen,
    Drain,
    Drained,
    Ended,
    Failed,
    Handed,
    Hello,
    Load,
    Params,
    Ready,
    Submit,
    Tier,
    Tokens,
    decode_at_worker,
    encode,
    length,
)
from diptych.runtime.sampling import Sampling

MODEL = ToyModel()


@dataclass
class Pace:
    """Seconds before the first token, per token after it, and tokens said at a time."""

    first: float = 0.0
    each: float = 0.0
    at_once: int = 1


@dataclass
class FakeWorker:
    """One worker. `fails` are answers to come: (reason, retry) of the next submissions."""

    name: str
    role: str
    address: str
    model: ToyModel = MODEL
    pace: Pace = field(default_factory=Pace)
    beats: bool = True
    beat: float = 0.05
    life: int = 1
    oldest: int = 1
    newest: int = 1
    most: int = 1 << 30
    state: bytes = b""
    max_context: int = 4096
    advances: bool = True
    hello_name: str = ""
    tiers: tuple[Tier, ...] = ()
    fails: list[tuple[str, bool]] = field(default_factory=list)
    submitted: list[Submit] = field(default_factory=list)
    cancelled: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.running: dict[bytes, asyncio.Task[None]] = {}
        self.slots = asyncio.Semaphore(self.most)
        self.steps = self.output = self.prompts = 0
        self.server: asyncio.Server | None = None
        self.writers: set[asyncio.StreamWriter] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.draining = False
        self.partners: dict[str, FakeWorker] = {}

    async def start(self) -> None:
        self.server = await asyncio.start_unix_server(self._serve, self.address.removeprefix("unix:"))

    async def stop(self) -> None:
        """Die: everything is lost, nothing is said."""
        if self.server is not None:
            self.server.close()
        for task in [*self.running.values(), *self.tasks]:
            task.cancel()
        for writer in self.writers:
            writer.transport.abort()
        self.running.clear()
        Path(self.address.removeprefix("unix:")).unlink(missing_ok=True)
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        self._say(writer, Hello(self.hello_name or self.name, self.role, self.life, self.oldest, self.newest))
        beating = asyncio.create_task(self._beat(writer))
        self.tasks.add(beating)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                body = await reader.readexactly(length(await reader.readexactly(4)))
                self._heard(writer, decode_at_worker(body))
        beating.cancel()
        for task in self.running.values():
            task.cancel()
        self.running.clear()
        self.writers.discard(writer)
        writer.transport.abort()

    def _say(self, writer: asyncio.StreamWriter, message: object) -> None:
        if not writer.transport.is_closing():
            writer.write(encode(message))  # type: ignore[arg-type]

    def load(self) -> Load:
        if self.advances:
            self.steps += 1
        waiting = 0 if self.slots._value else len(self.slots._waiters or ())
        return Load(
            waiting,
            len(self.running) - waiting,
            0,
            1000 - len(self.running),
            1000,
            self.steps,
            self.prompts,
            self.output,
            tiers=self.tiers,
        )

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        while True:
            if self.beats:
                self._say(writer, self.load())
            await asyncio.sleep(self.beat)

    def _heard(self, writer: asyncio.StreamWriter, message: object) -> None:
        match message:
            case Hello():
                ready = Ready(
                    self.state,
                    f"{self.address}.peer",
                    max(1000, self.max_context // 16),
                    16,
                    self.model.vocabulary,
                    self.max_context,
                    "toy",
                    "int8",
                    "cpu",
                )
                self._say(writer, ready)
                self._say(writer, self.load())
            case Submit():
                self.submitted.append(message)
                if self.fails:
                    reason, retry = self.fails.pop(0)
                    self._say(writer, Failed(message.request, message.epoch, reason, "", retry))
                    return
                task = asyncio.create_task(self._run(writer, message))
                self.running[message.request] = task
                task.add_done_callback(lambda _: self._forget(message.request, task))
            case Cancel():
                self.cancelled.append(message.request)
                task = self.running.pop(message.request, None)
                if task is not None:
                    task.cancel()
            case Ask():
                self._say(writer, self.load())
            case Drain():
                self.draining = True
                self._say(writer, Drained())

    def _forget(self, request: bytes, task: asyncio.Task[None]) -> None:
        if self.running.get(request) is task:
            del self.running[request]
        if not task.cancelled() and (error := task.exception()):
            raise error

    async def _run(self, writer: asyncio.StreamWriter, said: Submit) -> None:
        async with self.slots:
            await self._answer(writer, said)

    async def _answer(self, writer: asyncio.StreamWriter, said: Submit) -> None:
        most = len(said.generated) + 1 if said.half == "prefill" else said.params.max_tokens
        answer = expected(self.model, said.prompt, said.params, most)
        have, at = len(said.generated), len(said.generated)
        self.prompts += len(said.prompt)
        if said.half != "decode" and self.pace.first:
            await asyncio.sleep(self.pace.first)
        prompt = prompt_told(self.model, said) if said.half != "decode" else ()
        cached = len(said.prompt) // 2
        if said.half == "prefill":
            self._say(
                writer,
                Tokens(
                    said.request, said.epoch, have, (told(self.model, answer[have], said.params),), "", prompt, cached
                ),
            )
            self._say(writer, Ended(said.request, said.epoch, "handed", cached=cached))
            self.output += 1
            partner = self.partners.get(said.peer)
            if partner is not None:
                partner.handed(said.request)
            return
        if said.half == "decode":
            await self._await_handoff(said.request)
            self._say(
                writer,
                Handed(said.request, said.epoch, 1000 * len(said.prompt), 0.001, "int8 to bf16", 0.0001, said.peer),
            )
        while at < len(answer):
            if self.pace.each and at > have:
                await asyncio.sleep(self.pace.each)
            some = answer[at : at + self.pace.at_once]
            end = at + len(some) == len(answer)
            reason = ("stop" if some[-1] == self.model.eos and not said.params.ignore_eos else "length") if end else ""
            chosen = tuple(told(self.model, token, said.params) for token in some)
            self._say(writer, Tokens(said.request, said.epoch, at, chosen, reason, prompt))
            prompt = ()
            at += len(some)
            self.output += len(some)
            if at % 64 == 0:
                await writer.drain()
        self._say(writer, Ended(said.request, said.epoch, reason, len(answer), 0))

    async def _await_handoff(self, request: bytes) -> None:
        arrived = self.arrivals.setdefault(request, asyncio.Event())
        await arrived.wait()

    def handed(self, request: bytes) -> None:
        self.arrivals.setdefault(request, asyncio.Event()).set()

    @property
    def arrivals(self) -> dict[bytes, asyncio.Event]:
        if not hasattr(self, "_arrivals"):
            self._arrivals: dict[bytes, asyncio.Event] = {}
        return self._arrivals


def expected(model: ToyModel, prompt: tuple[int, ...], params: Params, most: int) -> list[int]:
    """The first `most` tokens of what the answer must be."""
    sampling = Sampling(params.temperature, seed=params.seed, min_tokens=params.min_tokens)
    return model.expected(prompt, most, sampling)


def told(model: ToyModel, token: int, params: Params) -> Chosen:
    sampled = model.told(token, params.logprobs)
    return Chosen(sampled.token, sampled.logprob, sampled.top)


def prompt_told(model: ToyModel, said: Submit) -> tuple[Chosen, ...]:
    asked = said.params.prompt_logprobs
    if asked is None:
        return ()
    found = [model.told(token, asked) for token in said.prompt[1:]]
    return tuple(Chosen(each.token, each.logprob, each.top) for each in found)


@dataclass
class Fleet:
    """A gateway over fake workers, listening."""

    workers: dict[str, FakeWorker]
    settings: Settings
    service: Service
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def quiet(self, seconds: float = 3.0) -> None:
        """Until nothing is open anywhere."""
        until = asyncio.get_running_loop().time() + seconds
        while any(self.service.ledger().values()) or any(each.running for each in self.workers.values()):
            assert asyncio.get_running_loop().time() < until, (
                self.service.ledger(),
                {each.name: len(each.running) for each in self.workers.values()},
            )
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def fleet(
    folder: Path,
    roles: str = "prefill decode",
    *,
    tune=None,
    model: ToyModel = MODEL,
    model_name: str = "toy",
    **settings,
):
    """Start workers, one per word of `roles`, and a gateway; `tune(workers)` changes workers before they start."""
    workers: dict[str, FakeWorker] = {}
    for role in roles.split():
        name = f"{role}{sum(each.role == role for each in workers.values())}"
        workers[name] = FakeWorker(name, role, f"unix:{folder}/{name}.s", model)
    for each in workers.values():
        each.partners = workers
    if tune is not None:
        tune(workers)
    for each in workers.values():
        await each.start()
    endpoints = tuple(Endpoint(each.name, each.role, each.address, 1.0) for each in workers.values())
    made = Settings(
        **{"model": model_name, "workers": endpoints, "port": 0, "admin_token": "operator", "heartbeat_seconds": 0.5}
        | settings
    )
    service = Service(made)
    async with Listening(service) as listening:
        running = Fleet(workers, made, service, listening.port)
        until = asyncio.get_running_loop().time() + 5
        while settings.pop("wait", True) and not all(
            each.up or each.condition == "refused" for each in service.roster if workers[each.name].beats
        ):
            assert asyncio.get_running_loop().time() < until, [each.condition for each in service.roster]
            await asyncio.sleep(0.01)
        try:
            yield running
        finally:
            pass
    for each in workers.values():
        await each.stop()


def pick_prompt(seed: int, size: int) -> list[int]:
    return [random.Random(seed * 1000 + place).randrange(255) for place in range(size)]


SMALL = Limits(body_bytes=100_000, header_bytes=8192, header_seconds=1.0, body_seconds=1.0, idle_seconds=2.0)
