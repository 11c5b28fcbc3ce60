"""The demo's fleet under load, measured by a client, beside `diptych simulate` of the same requests by a short probe.

    diptych calibrate --out here.json
    python benchmarks/measured_beside_simulated.py --calibration here.json            # measured and simulated
    python benchmarks/measured_beside_simulated.py --calibration here.json --write    # and written down beside this file

    python benchmarks/measured_beside_simulated.py --paced            # the same with an engine of a known pace

With `--paced` workers, gateway, sockets and handoffs are the same processes, but a step takes a time that is slept, not computed:
what other work does to the machine hardly enters, and what is left of the difference is the simulator's. The probe is part of the
run then.

An open loop: requests are sent at times drawn before, whether earlier ones are answered or not; prompts are random tokens, so
that no prefix cache helps. The loads are shares of the rate at which prefill would have no rest, by the calibration. What is
simulated is the times at which requests were really sent, and the same lengths. The calibration knows nothing of these runs.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from diptych.cli.serve_inputs import read_setup
from diptych.perf.calibration import Calibration, read_calibration
from diptych.runtime.gateway.settings import Settings
from diptych.runtime.launch.run_dir import new_token, run_directory
from diptych.runtime.launch.supervisor import Supervisor
from diptych.runtime.probe.probe import probe
from diptych.runtime.worker.config import Toy

SHARES = (0.3, 0.6, 0.8)
PROMPT, ANSWER = (96, 0.7, 16, 384), (28, 0.6, 4, 96)
"""Median, sigma of the logarithm, least and most tokens."""


@dataclass(frozen=True)
class Asked:
    """One request: when it is to be sent (s from the beginning), tokens in and out."""

    at: float
    prompt: int
    answer: int


@dataclass
class Seen:
    """When it was sent, and when each of its tokens came (s from the beginning)."""

    asked: Asked
    sent: float = 0.0
    tokens: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Numbers:
    """One run in a few numbers, seconds and requests."""

    rate: float
    ttft_p50: float
    ttft_p90: float
    tpot_p50: float
    tpot_p90: float
    e2e_p50: float
    e2e_p90: float
    prefill_waiting: float
    decode_running: float

    @classmethod
    def of(
        cls, sent: np.ndarray, first: np.ndarray, last: np.ndarray, tokens: np.ndarray, depth: dict[str, float]
    ) -> Numbers:
        ttft, e2e = first - sent, last - sent
        several = tokens > 1
        tpot = (last - first)[several] / (tokens[several] - 1)
        quantiles = [float(np.quantile(values, q)) for values in (ttft, tpot, e2e) for q in (0.5, 0.9)]
        span = float(last.max() - sent.min())
        return cls(len(sent) / span, *quantiles, depth.get("waiting", np.nan), depth.get("running", np.nan))


# --- the load ---------------------------------------------------------------------------------------------------------


def load(rate: float, seconds: float, seed: int) -> list[Asked]:
    """Poisson arrivals, lognormal lengths."""
    numbers = np.random.default_rng(seed)
    count = max(int(rate * seconds), 8)
    times = np.cumsum(numbers.exponential(1.0, count))
    times = times / times[-1] * count / rate
    sizes = [np.clip(np.rint(numbers.lognormal(np.log(mid), sigma, count)), low, high).astype(int)
             for mid, sigma, low, high in (PROMPT, ANSWER)]  # fmt: skip
    return [Asked(float(at), int(isl), int(osl)) for at, isl, osl in zip(times, *sizes, strict=True)]


def capacity(calibration: Calibration) -> float:
    """Requests/s at which prefill has no rest, one prompt a step, decode busy beside it."""
    worker = calibration.design().pools[0].members[0].worker
    some = load(1.0, 4000.0, 99)
    seconds = calibration.perf().prefill(worker, np.array([each.prompt for each in some], dtype=float)).seconds
    return float(1.0 / np.mean(seconds)) / calibration.roles[0].slowed


# --- measuring --------------------------------------------------------------------------------------------------------


async def ask(settings: Settings, one: Seen, began: float, prompt: list[int]) -> None:
    """One streamed completion, each token's time as its event comes."""
    body = json.dumps({
        "model": settings.model, "prompt": prompt, "max_tokens": one.asked.answer, "ignore_eos": True, "stream": True,
        "return_token_ids": True, "temperature": 0,
    }).encode()  # fmt: skip
    reader, writer = await asyncio.open_connection(settings.reached, settings.port)
    one.sent = time.perf_counter() - began
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n")
    writer.write(b"content-length: %d\r\n\r\n%s" % (len(body), body))
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter() - began
        said = json.loads(line[6:])
        if "error" in said:
            raise SystemExit(f"the gateway says {said['error']}")
        for choice in said["choices"]:
            one.tokens.extend(now for _ in choice.get("token_ids") or ())
    writer.close()


async def drive(
    settings: Settings, requests: list[Asked], seed: int, tokens: int = 49_000
) -> tuple[list[Seen], dict[str, float]]:
    """Send each at its time; watch the queues meanwhile."""
    numbers = random.Random(seed)
    prompts = [[numbers.randrange(tokens - 1) for _ in range(each.prompt)] for each in requests]
    seen = [Seen(each) for each in requests]
    began = time.perf_counter()
    depths: dict[str, list[float]] = defaultdict(list)
    watching = asyncio.create_task(_watch(settings, depths))

    async def later(one: Seen, prompt: list[int]) -> None:
        await asyncio.sleep(max(0.0, one.asked.at - (time.perf_counter() - began)))
        await ask(settings, one, began, prompt)

    await asyncio.gather(*(later(one, prompt) for one, prompt in zip(seen, prompts, strict=True)))
    watching.cancel()
    return seen, {name: float(np.mean(values)) for name, values in depths.items()}


async def _watch(settings: Settings, depths: dict[str, list[float]]) -> None:
    """Prefill's queue with what it computes, and decode's batch, once a second."""
    while True:
        await asyncio.sleep(1.0)
        text = await asyncio.to_thread(_metrics, settings)
        found: dict[tuple[str, str], float] = defaultdict(float)
        for line in text.splitlines():
            if line.startswith("diptych_queue_depth{"):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
                found[labels["role"], labels["stage"]] += float(line.rsplit(" ", 1)[1])
        depths["waiting"].append(found["prefill", "queued"] + found["prefill", "running"])
        depths["running"].append(found["decode", "running"])


def _metrics(settings: Settings) -> str:
    with urllib.request.urlopen(f"{settings.url}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


async def measured(loads: list[list[Asked]]) -> list[tuple[list[Seen], dict[str, float]]]:
    """All loads, one after another, on one fleet."""
    setup = read_setup({"host": "127.0.0.1", "port": 0}, print, {})
    found = []
    with run_directory() as folder:
        logs = folder / "logs"
        logs.mkdir()
        supervisor = Supervisor(setup.fleet.programs(folder, new_token()), logs, lambda text: None)
        await supervisor.start()
        try:
            await drive(setup.fleet.gateway, load(2.0, 3.0, 7), 7)  # warm
            for number, requests in enumerate(loads):
                found.append(await drive(setup.fleet.gateway, requests, 100 + number))
                await asyncio.sleep(1.0)
        finally:
            await supervisor.stop(drain=0)
    return found


# --- simulating -------------------------------------------------------------------------------------------------------


def simulated(calibration: Path, seen: list[Seen]) -> Numbers:
    """`diptych simulate` of what was sent."""
    rows = sorted((one.sent, one.asked.prompt, one.asked.answer) for one in seen)
    with tempfile.TemporaryDirectory() as folder:
        trace, out = Path(folder) / "sent.csv", Path(folder) / "run"
        with trace.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("arrival_s", "input_tokens", "output_tokens"))
            writer.writerows((f"{at:.6f}", isl, osl) for at, isl, osl in rows)
        command = ["simulate", "--calibration", str(calibration), "--workload", str(trace), "--out", str(out), "--json"]
        ran = subprocess.run([sys.executable, "-m", "diptych", *command], capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(ran.stderr)
        said = json.loads(ran.stdout)
        requests = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    pools = {pool["role"]: pool for pool in said["pools"]}
    depth = {
        "waiting": pools["prefill"]["queue_mean"] + pools["prefill"]["running_mean"],
        "running": pools["decode"]["running_mean"],
    }
    columns = (np.array([each[name] for each in requests]) for name in ("arrival", "first_token", "finish", "osl"))
    return Numbers.of(*columns, depth)


# --- the page ---------------------------------------------------------------------------------------------------------

ROWS = (
    ("requests/s", "rate", 1.0),
    ("TTFT p50, ms", "ttft_p50", 1e3),
    ("TTFT p90, ms", "ttft_p90", 1e3),
    ("TPOT p50, ms", "tpot_p50", 1e3),
    ("TPOT p90, ms", "tpot_p90", 1e3),
    ("end to end p50, ms", "e2e_p50", 1e3),
    ("end to end p90, ms", "e2e_p90", 1e3),
    ("at prefill, mean", "prefill_waiting", 1.0),
    ("in decode's batch, mean", "decode_running", 1.0),
)


def page(calibration: Calibration, runs: list[tuple[float, int, Numbers, Numbers]]) -> str:
    """What was measured, with the error of every cell."""
    heads = [f"{share:.0%} of prefill, {count} requests" for share, count, _, _ in runs]
    lines = [
        "| measured, simulated, error | " + " | ".join(heads) + " |",
        "| --- |" + " ---: |" * len(runs),
    ]
    for title, name, scale in ROWS:
        cells = [_cell(getattr(seen, name) * scale, getattr(ours, name) * scale) for _, _, seen, ours in runs]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    roles = "; ".join(f"{role.role} {role.device}:{role.weights}, {role.kv} KV" for role in calibration.roles)
    machine = calibration.machine
    model = "SmolLM2-135M-Instruct" if calibration.model.name != "toy" else "An engine of a known pace"
    head = (
        f"{model} on {machine.cores} cores of {machine.cpu}, which the gateway and the client share: {roles}. "
        f"Probed {calibration.made}."
    )
    return head + "\n\n" + "\n".join(lines) + "\n"


PARTS = ("Steps of a known pace", "Steps that are computed")


def merged(old: str, part: str, text: str) -> str:
    """The page with one of its two parts written anew."""
    kept = {piece.partition("\n")[0]: piece.partition("\n")[2].strip() for piece in old.split("\n### ")[1:]}
    kept[part] = text.strip()
    pieces = [f"### {name}\n\n{kept[name]}\n" for name in PARTS if name in kept]
    return "\n".join(["# The demo's fleet beside its simulation\n", *pieces])


def _cell(seen: float, ours: float) -> str:
    return f"{seen:.4g}, {ours:.4g}, {ours / seen - 1:+.1%}" if seen else f"{seen:.4g}, {ours:.4g}"


# --- a known pace -----------------------------------------------------------------------------------------------------

PACED = Toy(layers=8, prefill_token_s=0.0025, decode_step_s=0.03, decode_token_s=0.004)


async def paced(seconds: float) -> tuple[Calibration, list[tuple[float, list[Seen], dict[str, float]]]]:
    """A probe and all loads, one fleet."""
    setup = read_setup({"host": "127.0.0.1", "port": 0, "model": "toy"}, print, {})
    fleet = replace(setup.fleet, pools=tuple(replace(pool, engine=PACED) for pool in setup.fleet.pools))
    with run_directory() as folder:
        (folder / "logs").mkdir()
        supervisor = Supervisor(fleet.programs(folder, new_token()), folder / "logs", lambda text: None)
        await supervisor.start()
        try:
            calibration = await probe(fleet, folder, print)
            full, found = capacity(calibration), []
            for number, share in enumerate(SHARES):
                requests = load(share * full, seconds, 10 + number)
                found.append((share, *await drive(fleet.gateway, requests, 100 + number, PACED.vocabulary)))
                await asyncio.sleep(1.0)
        finally:
            await supervisor.stop(drain=0)
    return calibration, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument(
        "--paced", type=Path, nargs="?", const=Path("paced.json"), help="where its calibration is written"
    )
    parser.add_argument("--seconds", type=float, default=50.0, help="of arrivals, each load")
    parser.add_argument(
        "--keep", type=Path, help="what was seen of every request, as JSON; simulated again if it is there"
    )
    parser.add_argument("--write", action="store_true", help="write benchmarks/measured_beside_simulated.md")
    given = parser.parse_args()
    if given.paced is None and given.calibration is None:
        parser.error("--calibration FILE, or --paced")
    place = given.paced or given.calibration
    calibration = read_calibration(place) if given.paced is None or (given.keep and given.keep.is_file()) else None
    if given.keep is not None and given.keep.is_file():
        runs = [(share, [Seen(Asked(*each[0]), *each[1:]) for each in seen], depth)
                for share, seen, depth in json.loads(given.keep.read_text())]  # fmt: skip
    elif calibration is None:
        calibration, runs = asyncio.run(paced(given.seconds))
        place.write_text(calibration.to_json())
    else:
        full = capacity(calibration)
        loads = [load(share * full, given.seconds, 10 + number) for number, share in enumerate(SHARES)]
        found = asyncio.run(measured(loads))
        runs = [(share, *each) for share, each in zip(SHARES, found, strict=True)]
    if given.keep is not None and not given.keep.is_file():
        kept = [[share, [[[o.asked.at, o.asked.prompt, o.asked.answer], o.sent, o.tokens] for o in seen], depth]
                for share, seen, depth in runs]  # fmt: skip
        given.keep.write_text(json.dumps(kept))
    told = []
    for share, seen, depth in runs:
        short = sum(len(one.tokens) != one.asked.answer for one in seen)
        if short:
            print(f"{short} answers do not have the tokens that were asked for")
        columns = (
            np.array([one.sent for one in seen]), np.array([one.tokens[0] for one in seen]),
            np.array([one.tokens[-1] for one in seen]), np.array([one.asked.answer for one in seen]),
        )  # fmt: skip
        told.append((share, len(seen), Numbers.of(*columns, depth), simulated(place, seen)))
    assert calibration is not None
    text = page(calibration, told)
    print(text)
    if given.write:
        file = Path(__file__).with_suffix(".md")
        file.write_text(merged(file.read_text() if file.is_file() else "", PARTS[given.paced is None], text))


if __name__ == "__main__":
    main()
