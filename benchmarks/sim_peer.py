"""Our simulator and a published peer on the same 10,000 requests, one after the other; writes benchmarks/sim_speed.md.

The peer is the fastest we know: NVIDIA Dynamo's mocker, step by step in Rust (PyPI `ai-dynamo-runtime`, Apache-2.0). It needs
an environment of its own, which `--install` makes; without one the peer is skipped and the page says so.

    python benchmarks/sim_peer.py --install FOLDER     # make FOLDER with the peer in it, then run beside it
    python benchmarks/sim_peer.py --peer FOLDER        # run beside the peer that is there
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np
from sim_speed import COMPILED, ROOT, apart, fixed_loop, save_trace

PEER = "ai-dynamo-runtime==1.6.1"
COUNT, HASH = 10_000, 512
HERE = Path(__file__).parent
PAGE = """# Simulation speed beside a peer

The first 10,000 requests of the Azure 2023 conversation trace (12.4 M tokens in, 2.2 M out) through one prefill and one decode
worker, and through one colocated worker: router, 16-token blocks, prefix cache, links, latencies of every request. CPU-seconds of
one process, the best of {repeat} runs, ours and the peer's in turn on the same machine ({machine}; a loop of additions runs
{loop:.0f} M/CPU-s there). Each has its own model of time (ours: Llama-3.1-8B on H100; the peer's: its fixed polynomial), so steps
differ in number; the peer simulates every step, ours skips runs of steps whose end it can compute, with the same result bit for
bit (`tests/laws/test_sim_exact.py`). Compiled is the same source through mypyc
(`make compiled`), with the same results. Written by `benchmarks/sim_peer.py`; more of our own numbers: `benchmarks/sim_speed.py`.

{table}
"""


def mooncake(trace: Path, folder: Path) -> Path:
    """The requests in the format that the peer reads: milliseconds, and hashes that nobody shares."""
    path, used = folder / "conversation.jsonl", 0
    with np.load(trace) as columns, path.open("w", encoding="utf-8") as lines:
        for arrival, isl, osl in zip(
            *(columns[name][:COUNT].tolist() for name in ("arrival", "isl", "osl")), strict=True
        ):
            blocks = -(-isl // HASH)
            row = {"timestamp": arrival * 1e3, "input_length": isl, "output_length": osl}
            lines.write(json.dumps(row | {"hash_ids": list(range(used, used + blocks))}) + "\n")
            used += blocks
    return path


def peer_run(python: Path, trace: Path, shape: str) -> dict[str, float]:
    command = [str(python), str(HERE / "peer_replay.py"), str(trace), shape]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    assert found["completed_requests"] == COUNT, found
    return found


def python_in(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    subprocess.run([str(python_in(folder)), "-m", "pip", "install", "--quiet", PEER], check=True)


def row(name: str, shape: str, rate: float, megabytes: float) -> str:
    return f"| {name} | {shape} | {rate:,.0f} | {megabytes:.0f} |"


def fastest(runs: list[dict[str, object]]) -> float:
    return max(float(str(run["per_cpu_s"])) for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", type=Path, help="make an environment with the peer here")
    parser.add_argument("--peer", type=Path, help="an environment that has it")
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    if asked.install:
        install(asked.install)
    home = asked.install or asked.peer
    lines = ["| simulator | pools | requests per CPU-second | peak MB |", "| --- | --- | ---: | ---: |"]
    with tempfile.TemporaryDirectory() as folder:
        trace = save_trace(Path(folder))
        jsonl = mooncake(trace, Path(folder))
        for shape in ("disaggregated", "colocated"):
            ours, theirs, built = [], [], []
            for _ in range(asked.repeat):
                ours.append(apart(shape, COUNT, 3, ROOT / "src", trace))
                if COMPILED.is_dir():
                    built.append(apart(shape, COUNT, 3, COMPILED, trace))
                if home:
                    theirs.append(peer_run(python_in(home), jsonl, shape))
            best = fastest(ours)
            lines.append(row("diptych", shape, best, float(str(ours[0]["peak_mb"]))))
            if built:
                lines.append(row("diptych, compiled", shape, fastest(built), float(str(built[0]["peak_mb"]))))
            if theirs:
                rate = COUNT / min(run["cpu_s"] for run in theirs)
                lines.append(row(f"ai-dynamo-runtime {theirs[0]['version']}", shape, rate, theirs[0]["mb"]))
                faster = f", compiled {fastest(built) / rate:.1f}×" if built else ""
                lines.append(f"| *ratio* | {shape} | {best / rate:.1f}×{faster} | |")
            else:
                lines.append(f"| ai-dynamo-runtime | {shape} | skipped: no environment given (`--install FOLDER`) | |")
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    page = PAGE.format(repeat=asked.repeat, machine=machine, loop=fixed_loop(), table="\n".join(lines))
    (HERE / "sim_speed.md").write_text(page, encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
