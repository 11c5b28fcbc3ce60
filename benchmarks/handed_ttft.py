"""First tokens of a disaggregated pair beside those of a colocated worker, in one run; the last line is JSON.

What it may cost: no more than the colocated worker's, what the transfer takes, and 5 ms. Three workers in one precision on two
cores, asked directly over their sockets, turns in rotation: a prompt answered by the colocated worker; one as long computed by
one and handed to the other. Idle, then with four answers under way wherever decode runs.

    python benchmarks/handed_ttft.py [--weights int8] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections import defaultdict
from pathlib import Path

from diptych.cli.serve_inputs import read_setup
from diptych.runtime.launch.fleet import Fleet
from diptych.runtime.launch.run_dir import new_token, run_directory
from diptych.runtime.launch.supervisor import Supervisor
from diptych.runtime.peer.address import Address
from diptych.runtime.probe.bench import Bench, Heard, Reached

TURNS, SIZES, STREAMS, MARGIN = 9, (64, 256), 4, 0.005
Row = dict[str, float]


async def background(bench: Bench, worker: Reached) -> None:
    """Answers without end."""
    while True:
        await bench.together(worker, [bench.prompt(24) for _ in range(STREAMS)], 400)


async def turns(bench: Bench, tokens: int, busy: bool) -> Row:
    """Medians of seconds."""
    both, source, target = bench.of("colocated")[0], bench.of("prefill")[0], bench.of("decode")[0]
    took: dict[str, list[float]] = defaultdict(list)
    for _ in range(TURNS):
        async with Under(bench, both if busy else None):
            note(took, "colocated", await bench.whole(both, bench.prompt(tokens), 3))
        async with Under(bench, target if busy else None):
            computed, answered = await bench.handed(source, target, bench.prompt(tokens), 3)
        took["apart, first token"].append(min(computed.ttft, answered.times[0] - computed.began))
        took["apart, owned by decode"].append(answered.times[0] - computed.began)
        took["apart, second token"].append(answered.times[1] - computed.began)
        took["transfer"].append(answered.times[0] - computed.times[0])
    return {name: statistics.median(values) for name, values in took.items()}


def note(took: dict[str, list[float]], name: str, heard: Heard) -> None:
    took[f"{name}, first token"].append(heard.ttft)
    took[f"{name}, second token"].append(heard.times[1] - heard.began)


class Under:
    """A worker that answers others meanwhile."""

    def __init__(self, bench: Bench, worker: Reached | None) -> None:
        self.bench, self.worker = bench, worker

    async def __aenter__(self) -> None:
        if self.worker is not None:
            self.task = asyncio.create_task(background(self.bench, self.worker))
            await asyncio.sleep(0.6)

    async def __aexit__(self, *what: object) -> None:
        if self.worker is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.worker.stop()
            await asyncio.sleep(0.2)


async def measured(weights: str) -> dict[str, Row]:
    setup = read_setup({"host": "127.0.0.1", "port": 0, "colocated": f"1 x cpu:{weights}", "prefill": f"1 x cpu:{weights}",
                        "decode": f"1 x cpu:{weights}"}, print, {})  # fmt: skip
    found = {}
    with run_directory() as folder:
        (folder / "logs").mkdir()
        supervisor = Supervisor(setup.fleet.programs(folder, new_token()), folder / "logs", lambda text: None)
        await supervisor.start()
        bench = Bench("push")
        try:
            await reach(bench, setup.fleet, folder)
            await turns(bench, SIZES[0], busy=False)  # warm
            for busy in (False, True):
                for tokens in SIZES:
                    found[f"{tokens} tokens, {'beside 4 answers' if busy else 'idle'}"] = await turns(
                        bench, tokens, busy
                    )
        finally:
            bench.close()
            await supervisor.stop(drain=0)
    return found


async def reach(bench: Bench, fleet: Fleet, folder: Path) -> None:
    for pool in fleet.pools:
        for name in pool.names:
            await bench.reach(name, pool.role, Address.of(f"unix:{folder / name}.control"))


NAMES = (
    "colocated, first token", "apart, first token", "transfer", "apart, owned by decode", "colocated, second token",
    "apart, second token",
)  # fmt: skip


def page(found: dict[str, Row], weights: str) -> str:
    lines = [
        "# First tokens of a pair beside a colocated worker",
        "",
        f"SmolLM2-135M-Instruct, {weights} weights, one thread a worker, two cores; ms, medians of {TURNS} turns in rotation.",
        "*transfer* is from prefill's word of the first token to decode's, who owns the KV then. Written by",
        "`benchmarks/handed_ttft.py --write`.",
        "",
        "| | " + " | ".join(NAMES) + " | apart less colocated and transfer | goal |",
        "| --- |" + " ---: |" * (len(NAMES) + 2),
    ]
    for name, row in found.items():
        over = row["apart, first token"] - row["colocated, first token"] - row["transfer"]
        cells = [f"{row[each] * 1e3:.1f}" for each in NAMES]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {over * 1e3:+.1f} | ≤ {MARGIN * 1e3:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--write", action="store_true", help="write benchmarks/handed_ttft.md")
    given = parser.parse_args()
    found = asyncio.run(measured(given.weights))
    text = page(found, given.weights)
    print(text)
    if given.write:
        Path(__file__).with_suffix(".md").write_text(text)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
