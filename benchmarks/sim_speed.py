"""How fast the simulator is, in CPU-seconds, and how much memory it takes; the last line is JSON.

What it must cost: 10,000 requests of the bundled Azure conversation trace, with router, blocks, links, samples over time and the
summary under an SLO. Published peers on such a run: 14 to 360 requests per CPU-second in Python and Go, 8,400 in Rust.

    python benchmarks/sim_speed.py                 # pools apart and colocated, skipped and stepped; memory; 10 k to 100 k
    python benchmarks/sim_speed.py --million       # and a million requests
    python benchmarks/sim_speed.py --stream 27e6   # and a stream of so many that is never held (the Azure 2024 week)
    python benchmarks/sim_speed.py --compiled      # what `make compiled` has built

CPU-seconds swing with what else runs on the machine, so the best of several runs counts, and beside them stands the time of a
fixed loop (millions of additions per CPU-second) to compare machines by.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILED = ROOT / "build" / "compiled"


def fixed_loop() -> float:
    """Million additions per CPU-second."""
    begin, total = time.process_time(), 0
    for number in range(2_000_000):
        total += number
    return 2.0 / (time.process_time() - begin)


def one(case: str, count: int, repeat: int, trace: Path) -> dict[str, object]:
    """One case in this process: requests per CPU-second (best), peak MB, and what was simulated.

    The trace comes as arrays: its reader (DuckDB) would hold more memory than the simulation.
    """
    import numpy as np

    from diptych.catalog.catalog import Catalog
    from diptych.catalog.dtype import Dtype
    from diptych.design.axes import Parallelism, Precision, Role, Worker
    from diptych.design.boundary import Boundary, Codec, Placement, Representation
    from diptych.design.design import Design, Member, Pool
    from diptych.metrics.slo import SLO
    from diptych.metrics.summary import summarise
    from diptych.perf.roofline import default_perf
    from diptych.simulator.demand import Requests, drawn
    from diptych.simulator.simulate import simulate
    from diptych.workload.lengths import Lengths

    catalog, perf = Catalog.load(), default_perf()
    bf16 = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16)
    worker = Worker(catalog.model("Llama-3.1-8B"), catalog.accelerator("H100-SXM-80GB"), bf16, Parallelism(1))
    kind, _, mode = case.partition(" ")
    if kind == "colocated":
        design = Design((Pool(Role.COLOCATED, (Member(worker, 1, 3.0),)),))
    else:
        path = Boundary(Placement.DISAGGREGATED, catalog.link("rdma-400g"), Representation(Codec.RAW, Dtype.BF16))
        design = Design(
            (Pool(Role.PREFILL, (Member(worker, 1, 3.0),)), Pool(Role.DECODE, (Member(worker, 1, 3.0),))), path
        )
    with np.load(trace) as columns:
        requests = Requests(columns["arrival"], columns["isl"], columns["osl"])
    demand = requests.first(count) if count <= len(requests) else requests.resampled(count, 1)
    lengths = Lengths(
        requests.isl * 1.0, requests.osl * 1.0, requests.isl * 0.0, np.full(len(requests), 1 / len(requests))
    )
    slo = SLO.parse("ttft_p90<2s, tpot_p90<50ms")
    best, seen = float("inf"), {}
    for _ in range(repeat):
        begin = time.process_time()
        if mode == "streamed":
            ended: list[int] = []
            counted = lambda rows, ended=ended: ended.append(len(rows))  # noqa: E731
            simulate(design, drawn(lengths, 5.5, 1, count=count), perf, sink=counted)
            seen = {"finished": sum(ended)}
        else:
            run = simulate(design, demand, perf, skip=mode != "stepped")
            summary = summarise(run, slo)
            seen = {"finished": summary.finished, "ttft_p90_s": summary.ttft.p90, "tpot_p90_s": summary.tpot.p90}
        best = min(best, time.process_time() - begin)
    return {"case": case, "requests": count, "per_cpu_s": round(count / best), "peak_mb": peak_mb(), **seen}


def peak_mb() -> int:
    """The most memory this process ever held. (What `getrusage` says includes its parent's, from before exec.)"""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024)


def apart(case: str, count: int, repeat: int, source: Path, trace: Path) -> dict[str, object]:
    """The same in a process of its own, so that memory is its own."""
    command = [
        sys.executable,
        __file__,
        "--one",
        case,
        "--count",
        str(count),
        "--repeat",
        str(repeat),
        "--trace",
        str(trace),
    ]
    environment = {**os.environ, "PYTHONPATH": str(source), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def save_trace(folder: Path) -> Path:
    """The bundled conversation trace as arrays in a file."""
    import numpy as np

    from diptych.simulator.demand import read_requests
    from diptych.workload.presets import DATA

    requests, path = read_requests(DATA / "azure2023_conv.csv.gz"), folder / "trace.npz"
    np.savez(path, arrival=requests.arrival, isl=requests.isl, osl=requests.osl)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=10_000, help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--stream", type=float, default=0)
    parser.add_argument("--compiled", action="store_true")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(asked.one, asked.count, asked.repeat, asked.trace)))
        return
    if asked.compiled and not COMPILED.is_dir():
        parser.error(f"{COMPILED} is not there: `make compiled` builds it")
    cases = [("disaggregated", 10_000, asked.repeat), ("colocated", 10_000, asked.repeat),
             ("disaggregated stepped", 10_000, 1), ("colocated stepped", 10_000, 1),
             ("disaggregated", 100_000, 1), ("disaggregated streamed", 100_000, 1)]  # fmt: skip
    if asked.million:
        cases += [("disaggregated", 1_000_000, 1), ("disaggregated streamed", 1_000_000, 1)]
    if asked.stream:
        cases.append(("disaggregated streamed", int(asked.stream), 1))
    with tempfile.TemporaryDirectory() as folder:
        source = COMPILED if asked.compiled else ROOT / "src"
        trace = save_trace(Path(folder))
        rows = []
        for case, count, repeat in cases:
            row = apart(case, count, repeat, source, trace)
            rows.append(row)
            print(f"{case:24} {count:>10,} requests  {row['per_cpu_s']:>8,} per CPU-s  {row['peak_mb']:>5} MB")
    print(json.dumps({"rows": rows, "compiled": asked.compiled, "fixed_loop_M_per_cpu_s": round(fixed_loop(), 1)}))


if __name__ == "__main__":
    main()
