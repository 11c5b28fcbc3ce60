"""What one `diptych check` costs: CPU-seconds of the whole process beside `python -c pass` and a bare typer program, in one run.

    python benchmarks/check_speed.py [--write]      # --write: benchmarks/check_speed.md

CPU time (user and system) stands beside the clock, which every other program on the machine moves; the least of several rounds
is nearest to the process itself. Byte code is cached, as in any installation.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROUNDS = 5
GOAL = 0.5
NIXL = """VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.%d vllm serve Qwen/Qwen3-32B --tensor-parallel-size %d --kv-cache-dtype fp8_e4m3 \
--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'"""
CHECK = [sys.executable, "-c", "from diptych.cli import main; main()", "check"]
TYPER = (
    "import typer\napp = typer.Typer()\n@app.command()\ndef main(name: str = 'x') -> None:\n    print(name)\napp()\n"
)
PAGE = """# What one check costs

Written by `benchmarks/check_speed.py`: the least of {rounds} runs of each whole process, in turns, on Python {python},
{cores} cores, load average {load:.1f}. Above the number of cores CPU-seconds grow too, since programs share caches and the
threads of a core; the ratio to the typer program, measured in the same run, is what holds. The goal is an answer within
{goal} s when quiet.

| program | CPU-seconds | seconds | of `python -c pass` | of a bare typer program |
| --- | ---: | ---: | ---: | ---: |
{rows}

A check of two commands spends {own:.2f} s of CPU beyond the bare typer program: about a quarter in reading the catalog
(57 models, prices included), most of the rest in importing rules and readers; the rules themselves take milliseconds.
"""


def programs(folder: Path) -> dict[str, list[str]]:
    """The programs by what the page calls them."""
    bare = folder / "bare.py"
    bare.write_text(TYPER, encoding="utf-8")
    manifests = ROOT / "tests" / "data" / "manifests"
    return {
        "`python -c pass`": [sys.executable, "-c", "pass"],
        "a bare typer program": [sys.executable, str(bare)],
        "`diptych check`, two commands": [*CHECK, "--prefill", NIXL % (1, 2), "--decode", NIXL % (2, 4),
                                          "--prefill-gpu", "H100", "--decode-gpu", "H20"],
        "`diptych check`, a DynamoGraphDeployment": [*CHECK, str(manifests / "dynamo_vllm.yaml")],
        "`diptych check`, an LLMInferenceService, SARIF": [*CHECK, str(manifests / "kserve.yaml"), "--format", "sarif"],
    }  # fmt: skip


def cost(command: list[str]) -> tuple[float, float]:
    """(CPU-seconds, seconds) of one run; a run that does not end well is no measurement."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, end - start


def main() -> None:
    """Measure in turns, so that a busy moment meets every program; print or write the table."""
    with tempfile.TemporaryDirectory() as folder:
        named = programs(Path(folder))
        runs = [{name: cost(command) for name, command in named.items()} for _ in range(ROUNDS)]
    least = {name: tuple(min(run[name][part] for run in runs) for part in (0, 1)) for name in named}
    python, bare, check = (least[name][0] for name in list(named)[:3])
    rows = [
        f"| {name} | {cpu:.3f} | {clock:.3f} | {cpu / python:.1f}× | {cpu / bare:.1f}× |"
        for name, (cpu, clock) in least.items()
    ]
    page = PAGE.format(rounds=ROUNDS, python=sys.version.split()[0], cores=os.cpu_count(), load=os.getloadavg()[0], goal=GOAL,
                       rows="\n".join(rows), own=check - bare)  # fmt: skip
    if "--write" in sys.argv:
        (ROOT / "benchmarks" / "check_speed.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
