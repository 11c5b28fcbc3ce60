"""A fleet as it was asked for, and the processes that it comes to: one configuration file each, in a private directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from diptych.runtime.gateway.settings import Endpoint, Settings
from diptych.runtime.launch.program import Program, Turn, answers, listens
from diptych.runtime.launch.run_dir import write_secretly
from diptych.runtime.worker.config import BatchConfig, Config, LimitsConfig, TierConfig, Torch, Toy

STORE = "kvstore"
TRANSPORTS = ("unix", "tcp", "shm", "nixl")
"""How KV goes between workers of this machine: a socket file, loopback, or memory that the source lends, as it is or by NIXL."""
CPU_BUDGET = 512
"""Prompt tokens of a step on a CPU, which computes as many a second as it ever will from about 256 on: in a longer step prompts
only wait for each other."""
ADMIN_TOKEN = "admin.token"  # noqa: S105 - a file's name


@dataclass(frozen=True, slots=True)
class Pool:
    """`count` workers of one role that are alike. `threads` of one computation; `usd` an hour of one worker."""

    role: str
    count: int
    engine: Toy | Torch
    threads: int = 1
    usd: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.role}-{number}" for number in range(self.count))


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything of it. `gateway` lacks what only the run directory knows: the workers' addresses and the admin token.

    `store` is the size in bytes of a store of the fleet's own, 0 for none; `tiers` are those of every worker, disk folders
    being shared out among them. `elsewhere` are workers that run already, on this machine or another.
    """

    pools: tuple[Pool, ...]
    gateway: Settings
    tiers: tuple[TierConfig, ...] = ()
    store: int = 0
    batch: BatchConfig | None = None
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    drain: float = 30.0
    environment: Mapping[str, str] = field(default_factory=dict)
    elsewhere: tuple[Endpoint, ...] = ()
    transport: str = "unix"

    @property
    def workers(self) -> int:
        return sum(pool.count for pool in self.pools) + len(self.elsewhere)

    @property
    def url(self) -> str:
        return self.gateway.url

    def batch_of(self, pool: Pool) -> BatchConfig:
        """How a pool's workers fill their steps, by what they compute on where nothing was said."""
        is_slow = isinstance(pool.engine, Torch) and pool.engine.device == "cpu"
        return self.batch or (BatchConfig(budget=CPU_BUDGET) if is_slow else BatchConfig())

    def programs(self, folder: Path, admin_token: str) -> tuple[Program, ...]:
        """The processes, after writing what each is told into `folder`."""
        made = [self._store(folder)] if self.store else []
        for pool in self.pools:
            made += [self._worker(pool, name, folder) for name in pool.names]
        return (*made, self._gateway(folder, admin_token))

    def _store(self, folder: Path) -> Program:
        path = folder / f"{STORE}.socket"
        arguments = ("kvstore", "--listen", f"unix:{path}", "--capacity", f"{self.store} B")
        return Program(STORE, Turn.STORE, "diptych", arguments, lambda: listens(path), (path,), more=self.environment)

    def _worker(self, pool: Pool, name: str, folder: Path) -> Program:
        config = Config(
            name=name,
            role=pool.role,
            run_dir=str(folder),
            engine=pool.engine,
            peer="tcp:127.0.0.1:0" if self.transport == "tcp" else f"{self.transport}:{folder / name}.peer",
            batch=self.batch_of(pool),
            limits=self.limits,
            residency=tuple(self._tiers_of(name, folder)),
            drain_s=self.drain,
        )
        file = write_secretly(folder / f"{name}.json", msgspec.json.encode(config))
        control = Path(config.control_address.path)
        files = (control, Path(config.peer_address.path)) if config.peer_address.path else (control,)
        arguments = ("--config", str(file))
        return Program(
            name, Turn.WORKER, "diptych.runtime.worker", arguments, lambda: listens(control), files,
            pool.threads, self.environment,
        )  # fmt: skip

    def _tiers_of(self, name: str, folder: Path) -> Iterator[TierConfig]:
        for tier in self.tiers:
            yield msgspec.structs.replace(tier, place=f"{tier.place}/{name}") if tier.kind == "nvme" else tier
        if self.store:
            yield TierConfig("remote", self.store, f"unix:{folder / STORE}.socket")

    def _gateway(self, folder: Path, admin_token: str) -> Program:
        endpoints = tuple(
            Endpoint(name, pool.role, f"unix:{folder / name}.control", pool.usd)
            for pool in self.pools
            for name in pool.names
        )
        settings = msgspec.structs.replace(self.gateway, workers=(*endpoints, *self.elsewhere), admin_token=admin_token)
        settings.check()
        told = msgspec.json.encode(settings)
        return gateway("diptych.runtime.gateway", told, admin_token, folder, self._serves, self.environment)

    def _serves(self) -> bool:
        """Whether the gateway has found every worker."""
        _, body = answers(self.gateway.reached, self.gateway.port, "/health", secure=bool(self.gateway.tls_certificate))
        try:
            return int(json.loads(body)["up"]) >= self.workers
        except (ValueError, KeyError, TypeError):
            return False


def gateway(
    module: str, told: bytes, admin_token: str, folder: Path, serves: Callable[[], bool], environment: Mapping[str, str]
) -> Program:
    """A gateway's process, after writing what it is told and the admin token into `folder`; `serves` is asked once it listens."""
    write_secretly(folder / ADMIN_TOKEN, admin_token + "\n")
    file, ready = write_secretly(folder / "gateway.json", told), folder / "gateway.port"
    arguments = (str(file), str(ready))
    return Program(
        "gateway", Turn.GATEWAY, module, arguments, lambda: ready.is_file() and serves(), (ready,), more=environment, spare=True
    )  # fmt: skip
