"""The process of one worker: its run directory, its two sockets, its signals, its end."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from diptych.boundary import serial
from diptych.errors import DiptychError, Finding, InvalidInput
from diptych.runtime.engine import Engine
from diptych.runtime.messages import Drain, Drained, Hello, Ready
from diptych.runtime.peer.address import Address
from diptych.runtime.peer.arena import Arena, Lender
from diptych.runtime.peer.nixl import Registered
from diptych.runtime.worker.below import below
from diptych.runtime.worker.commands import EVERYBODY, Command, Out, Setup, Stop
from diptych.runtime.worker.config import Config, Torch, read
from diptych.runtime.worker.control import Control, Door
from diptych.runtime.worker.core import Core

log = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """`--config FILE`. 0 after a drain, 2 for input that cannot be used, 1 for what this machine refuses."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    if len(argv) != 2 or argv[0] != "--config":
        print("usage: python -m diptych.runtime.worker --config FILE", file=sys.stderr)
        return 2
    try:
        config = read(Path(argv[1]))
        _follow_parent(config.parent)
        make_run_dir(Path(config.run_dir))
        arena = _lender(config.peer_address.lends)
        engine = config.engine.make(arena.room if arena is not None else None)
        return asyncio.run(serve(config, engine, arena))
    except InvalidInput as error:
        print(error, file=sys.stderr)
        return 2
    except (DiptychError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


async def serve(config: Config, engine: Engine, arena: Lender | None = None) -> int:
    """Run a worker until it has drained after SIGTERM, or its engine's thread has died. `arena`: where the engine's KV lies."""
    token, tls = _token(config), _tls(config)
    ended = asyncio.Event()
    life = time.time_ns()
    parts: list[Control] = []

    def emit(said: Out) -> None:
        parts[0].emit(said)
        if any(isinstance(message, Drained) for _, message in said) and leaving.is_set():
            loop.call_soon_threadsafe(ended.set)

    loop, leaving = asyncio.get_running_loop(), threading.Event()
    setup = Setup(config.name, config.role, life, config.rules, config.handoff_limits, config.prefixes)
    tiers = below(config.residency, engine, config.peer_tls)
    core = Core(engine, setup, emit, tls=config.peer_tls, arena=arena, tiers=tiers)
    reached = core.peers.listen(_fresh(config.peer_address))
    door = Door(Hello(config.name, config.role, life), _ready(config, engine, str(reached)), token, tls)
    control = Control(door, core.tell)
    parts.append(control)

    def leave() -> None:
        """Drain, then go; at once when it takes too long or is asked again."""
        if leaving.is_set():
            ended.set()
            return
        leaving.set()
        core.tell(Command(EVERYBODY, Drain()))
        loop.call_later(config.drain_s, ended.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    died: list[BaseException] = []
    thread = threading.Thread(
        target=_run, args=(core, died, lambda: loop.call_soon_threadsafe(ended.set)), name="engine"
    )
    thread.start()
    await control.listen(_fresh(config.control_address))
    log.info("%s serves on %s, peers on %s", config.name, config.control_address, reached)
    await ended.wait()
    core.tell(Stop())
    await asyncio.to_thread(thread.join, 10)
    if tiers is not None and not thread.is_alive():
        tiers.close()
    if arena is not None:
        arena.close()
    await control.close()
    _fresh(config.control_address)
    return 1 if died else 0


def _run(core: Core, died: list[BaseException], ended: Callable[[], object]) -> None:
    """The engine's thread. A broken law ends the process: nothing that it would say could be trusted."""
    try:
        core.run()
    except BaseException as error:
        log.exception("the engine's thread has died")
        died.append(error)
    finally:
        ended()


def make_run_dir(path: Path) -> None:
    """The directory of sockets and secrets: its owner's alone.

    Raises:
        InvalidInput: somebody else's, or open to others.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InvalidInput(Finding("run_dir", f"{path} is open to others", "a directory of mode 0700 of this user"))


def _lender(kind: str) -> Lender | None:
    """Memory of the kind that peers read. Raises InvalidInput where there is no such."""
    return Registered() if kind == "nixl" else Arena() if kind == "shm" else None


def _fresh(address: Address) -> Address:
    """The address without the socket file that a killed predecessor left."""
    path = Path(address.path)
    if address.path and path.is_socket():
        path.unlink()
    return address


def _ready(config: Config, engine: Engine, reached: str) -> Ready:
    memory = engine.memory
    precision = (
        f"{config.engine.weights} weights, {config.engine.kv} KV"
        if isinstance(config.engine, Torch)
        else (f"{config.engine.kv} KV")
    )
    return Ready(
        serial.to_msgpack(engine.state),
        reached,
        memory.blocks,
        memory.block_tokens,
        engine.vocabulary,
        engine.max_context,
        (engine.state.identity.model or "model")[:128],
        precision[:128],
        config.engine.device if isinstance(config.engine, Torch) else "cpu",
    )


def _token(config: Config) -> str:
    """What a gateway must say, out of its file."""
    if not config.token_file:
        return ""
    token = Path(config.token_file).read_text(encoding="utf-8").strip()
    if not 16 <= len(token) <= 256:
        raise InvalidInput(Finding("token_file", f"{config.token_file} has no usable token", "16 to 256 characters"))
    return token


def _tls(config: Config) -> ssl.SSLContext | None:
    return config.peer_tls.context(server=True) if config.peer_tls and not config.control_address.path else None


def _follow_parent(parent: int) -> None:
    """End when the process that started this one does (Linux)."""
    if not parent:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise DiptychError("the process that started this worker has ended")
