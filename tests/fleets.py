"""A toy fleet of real processes under the supervisor, clients that know every right token, and what must be at rest after."""

import asyncio
import json
import os
import random
import socket
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil

from diptych.runtime.engines.toy import ToyModel
from diptych.runtime.gateway.settings import Endpoint, Limits, Settings
from diptych.runtime.launch.fleet import Fleet, Pool
from diptych.runtime.launch.program import Turn
from diptych.runtime.launch.run_dir import new_token, run_directory
from diptych.runtime.launch.supervisor import Patience, Supervisor
from diptych.runtime.worker.config import LimitsConfig, TierConfig, Toy

MODEL = ToyModel(b"toy")
LEASE = 1.0


def free_port():
    with socket.socket() as trying:
        trying.bind(("127.0.0.1", 0))
        return trying.getsockname()[1]


def toy_fleet(
    ownership="push",
    *,
    prefill=2,
    decode=2,
    step=0.03,
    blocks=192,
    store=4 << 20,
    environment=None,
    pools=None,
    limits=None,
    transport="unix",
    **more,
):
    """Fast leases; few blocks, so that tiers are used; a pace at which a fault finds something under way."""
    engine = Toy(blocks=blocks, prefill_token_s=0.0005, decode_step_s=step)
    settings = Settings(model="toy", workers=(Endpoint("none", "decode", "unix:/none"),), port=free_port(),
                        ownership=ownership, lease_seconds=LEASE, limits=Limits(**(limits or {})), **more)  # fmt: skip
    tiers = (TierConfig("dram", 64 << 10),) if store else ()
    pools = pools or (Pool("prefill", prefill, engine), Pool("decode", decode, engine))
    return Fleet(pools, settings, tiers, store, limits=LimitsConfig(wait_ms=3000, stall_ms=300), drain=5.0,
                 environment=environment or {}, transport=transport)  # fmt: skip


PATIENT = Patience(start=60, drain=6, pause=0.02, longest_pause=0.05, crashes=10_000)


@dataclass
class Living:
    """A running fleet and how it is asked."""

    fleet: Fleet
    folder: Path
    supervisor: Supervisor
    session: aiohttp.ClientSession
    said: list
    token: str

    @property
    def url(self):
        return self.fleet.url

    def pid(self, name):
        return self.supervisor.running[name].process.pid

    def logs(self):
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted((self.folder / "logs").iterdir())
        )

    async def get(self, path):
        async with self.session.get(self.url + path, headers={"authorization": f"Bearer {self.token}"}) as answer:
            return json.loads(await answer.read())

    async def settled(self, seconds=30.0):
        """Wait until every process is up and every ledger is zero; the ledgers."""
        end, last = time.monotonic() + seconds, None
        while True:
            try:
                up, last = (await self.get("/health"))["up"], await self.get("/debug/ledger")
                counts = [*last["gateway"].values(), *(n for each in last["workers"].values() for n in each.values())]
                alive = all(each.code is None and each.program.serves() for each in self.supervisor.running.values()
                            if each.program.turn is not Turn.GATEWAY)  # fmt: skip
                spare = self.supervisor.spares.get("gateway")
                alive = alive and spare is not None and spare.code is None
                if alive and up == self.fleet.workers == len(last["workers"]) and not any(counts):
                    data = await self.get("/ui/data")
                    taken = {each["name"]: each["blocks"] - each["blocks_free"] for each in data["workers"]}
                    if not any(taken.values()):
                        return last
                    last = taken
            except (aiohttp.ClientError, OSError):
                pass
            assert time.monotonic() < end, f"not at rest: {last}; {self.said[-8:]}"
            await asyncio.sleep(0.05)

    def belongings(self):
        """Processes, files of the run directory, shared memory."""
        commands = [each.cmdline()[4:] for each in psutil.Process().children(recursive=True)]
        children = sorted(next((word for word in command if word != "-"), "") for command in commands)
        files = sorted(path.name for path in self.folder.iterdir())
        return {"children": children, "files": files, "shm": shared_memory()}

    def mapped(self):
        """Lent memory that each worker has mapped: its own layers, and what others have lent it."""
        return {
            each.name: _mapped(self.pid(each.name)) for each in self.supervisor.programs if each.turn is Turn.WORKER
        }

    def open_files(self):
        """Descriptors of each process."""
        return {name: psutil.Process(self.pid(name)).num_fds() for name in self.supervisor.running}


def _mapped(pid):
    with open(f"/proc/{pid}/maps") as file:
        return sum("memfd:diptych" in line for line in file)


def shared_memory():
    """What diptych could have left in /dev/shm."""
    return sorted(name for name in os.listdir("/dev/shm") if "diptych" in name) if Path("/dev/shm").is_dir() else []


@asynccontextmanager
async def running(fleet, under=None, patience=PATIENT):
    """The fleet from start to end; at the end nothing of it is left."""
    said, token = [], new_token()
    with run_directory(under) as folder:
        (folder / "logs").mkdir()
        supervisor = Supervisor(fleet.programs(folder, token), folder / "logs", said.append, patience)
        await supervisor.start()
        pids = []
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                living = Living(fleet, folder, supervisor, session, said, token)
                await living.settled()
                yield living
        finally:
            pids = [each.process.pid for each in supervisor.running.values()]
            await supervisor.stop()
        left = [path.name for path in folder.iterdir() if path.is_socket()]
        assert not left, left
        assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not folder.exists()


# --- clients ----------------------------------------------------------------------------------------------------------


@dataclass
class Stream:
    """One request as its client saw it. `error` is a typed one; `cut` is a connection that ended before its time.

    `after`: what a refusal says of when to come back.
    """

    prompt: list
    wanted: int
    began: float = field(default_factory=time.monotonic)
    tokens: list = field(default_factory=list)
    times: list = field(default_factory=list)
    finish: str = ""
    error: str = ""
    cut: str = ""
    done: bool = False
    status: int = 0
    after: str = ""
    ended: float = 0.0

    @property
    def served(self):
        return self.done and self.finish == "length" and len(self.tokens) == self.wanted

    def wrong(self):
        """What is wrong with what the client was given; '' when it is right as far as it goes."""
        expected = MODEL.expected(self.prompt, self.wanted)
        if self.tokens != expected[: len(self.tokens)]:
            place = next(
                (n for n, (a, b) in enumerate(zip(self.tokens, expected, strict=False)) if a != b), len(expected)
            )
            return f"token {place} of {len(self.tokens)} is wrong, lost or doubled"
        if not (self.served or self.error or self.cut):
            return f"ended silently after {len(self.tokens)} of {self.wanted} tokens"
        return ""


async def stream(session, url, prompt, wanted, said=None):
    """Ask for a stream; whatever comes of it is in the answer, which `said` holds from the start."""
    said = said or Stream(prompt, wanted)
    body = {"model": "toy", "prompt": prompt, "max_tokens": wanted, "temperature": 0, "stream": True,
            "return_token_ids": True}  # fmt: skip
    try:
        async with session.post(f"{url}/v1/completions", json=body, timeout=aiohttp.ClientTimeout(total=60)) as answer:
            said.status = answer.status
            if answer.status != 200:
                told = json.loads(await answer.read())
                said.error, said.after = (
                    f"{answer.status} {told['error']['code']}",
                    answer.headers.get("retry-after", ""),
                )
                return said
            async for line in answer.content:
                if line.startswith(b"data: "):
                    _take(said, line[6:].strip())
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        said.cut = f"{type(error).__name__}: {error}"
    finally:
        said.ended = time.monotonic()
    return said


def _take(said, line):
    if line == b"[DONE]":
        said.done = True
        return
    told = json.loads(line)
    if "error" in told:
        said.error = f"stream {told['error']['code']}"
        return
    choice = told["choices"][0]
    fresh = choice.get("token_ids") or []
    said.tokens += fresh
    said.times += [time.monotonic()] * len(fresh)
    said.finish = choice.get("finish_reason") or said.finish


class Load:
    """`count` clients, each asking again as soon as it was answered, until `end`. A cut or refused request is asked again."""

    def __init__(self, living, count=32, wanted=24, seed=0):
        self.living, self.wanted, self.random = living, wanted, random.Random(seed)
        self.shared = [[self.random.randrange(255) for _ in range(48)] for _ in range(6)]
        self.streams, self.given_up = [], []
        self._ending = asyncio.Event()
        self._tasks = [asyncio.create_task(self._client(n)) for n in range(count)]

    def prompt(self):
        head = self.random.choice(self.shared) if self.random.random() < 0.6 else []
        return [*head, *(self.random.randrange(255) for _ in range(self.random.randrange(8, 48)))]

    async def _client(self, number):
        await asyncio.sleep(number * 0.01)
        while not self._ending.is_set():
            prompt, tries = self.prompt(), 0
            until = time.monotonic() + 15
            while True:
                said = Stream(prompt, self.wanted)
                self.streams.append(said)
                await stream(self.living.session, self.living.url, prompt, self.wanted, said)
                if said.served:
                    break
                tries += 1
                if time.monotonic() > until:
                    self.given_up.append(said)
                    break
                await asyncio.sleep(0.05)

    @property
    def flowing(self):
        """Streams that have begun and not ended."""
        return sum(bool(each.tokens) and not (each.done or each.error or each.cut) for each in self.streams)

    async def end(self, seconds=60):
        self._ending.set()
        await asyncio.wait_for(asyncio.gather(*self._tasks), seconds)

    def recoveries(self, fault):
        """For each stream that was under way at `fault`, seconds until its next token; a cut one's is that of its next try."""
        found = []
        for place, each in enumerate(self.streams):
            if each.began > fault or (each.done and each.times[-1] <= fault):
                continue
            tries = [each, *(other for other in self.streams[place + 1 :] if other.prompt is each.prompt)]
            after = (moment for one in tries for moment in one.times if moment > fault)
            found.append(next(after, float("inf")) - fault)
        return found
