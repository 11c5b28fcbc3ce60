"""Two real vLLM processes on this machine's CPUs, with NIXL over loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

READY_SECONDS = 600


@dataclass
class Server:
    """One vLLM server: how it is started, and the process.

    In float32: decode computes a prompt's last token in a step of its own, and in 16 bit that alone flips near ties.
    """

    role: str
    port: int
    dtype: str = "float32"
    flags: tuple[str, ...] = ()
    extra: dict[str, object] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connector(self) -> dict[str, object]:
        kind = {"prefill": "kv_producer", "decode": "kv_consumer"}[self.role]
        base = {"kv_connector": "NixlConnector", "kv_role": kind, "kv_buffer_device": "cpu"}
        return {**base, **self.extra}

    def command(self, model: str) -> list[str]:
        """The launch command, as `diptych check` would read it."""
        connector = [] if self.role == "alone" else ["--kv-transfer-config", json.dumps(self.connector)]
        return ["-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "m",
                "--host", "127.0.0.1", "--port", str(self.port), "--dtype", self.dtype, "--max-model-len", "1024",
                "--enforce-eager", "--no-enable-prefix-caching", *connector, *self.flags]  # fmt: skip

    def start(self, python: str, model: str, folder: Path) -> None:
        self.log = folder / f"{self.role}-{self.port}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [python, *self.command(model)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                start_new_session=True,
            )

    def environment(self) -> dict[str, str]:
        own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
               "HF_HUB_OFFLINE": "1", "VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
               "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}  # fmt: skip
        return {**os.environ, **own}

    def wait(self) -> None:
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            assert self.process is not None
            assert self.log is not None
            assert self.process.poll() is None, f"{self.role} ended:\n{self.log.read_text(errors='replace')[-3000:]}"
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=2):
                return
            time.sleep(1)
        raise AssertionError(f"{self.role} is not ready after {READY_SECONDS} s")

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)

    def ask(self, prompt: str, tokens: int = 16) -> str:
        """Its own answer, without anyone else."""
        body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0}).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return str(json.load(answer)["choices"][0]["text"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(python: str, model: str, folder: Path, *servers: Server) -> Iterator[None]:
    """All of them started together, killed at the end."""
    try:
        for server in servers:
            server.start(python, model, folder)
        for server in servers:
            server.wait()
        yield
    finally:
        for server in servers:
            server.kill()
