"""Read a trace of the shape of Azure's 2024 week without holding it in memory: rows/s and peak memory.

Run: python benchmarks/trace_stream.py [ROWS]     quick by default; 27303995 rows are that week's conversations
The file is made in a temporary folder: Azure's columns and timestamps, arrivals and lengths from a hash of the row number.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

from diptych.workload import load_workload

QUICK = 300_000
WEEK = 604_800 * 10**6  # microseconds


def write_trace(path: Path, rows: int) -> None:
    """A gzipped Azure CSV of `rows` requests over a week, the same in every run."""
    step = WEEK // rows
    stamp = f"TIMESTAMP '2024-05-12' + to_microseconds((i * {step} + hash(i) % {step})::BIGINT)"
    query = f"""COPY (
        SELECT strftime({stamp}, '%Y-%m-%d %H:%M:%S.%f+00:00') AS TIMESTAMP,
               1 + (hash(i + 1) % 512 + hash(i + 2) % 1024 * (hash(i + 3) % 8))::INT AS ContextTokens,
               1 + (hash(i + 4) % 700)::INT AS GeneratedTokens
        FROM range({rows}) AS counter(i)) TO '{path}' (HEADER, COMPRESSION gzip)"""
    duckdb.connect(config={"threads": 2}).execute(query)


def read_trace(path: Path) -> dict[str, float]:
    """Seconds and peak memory of one reading, in a process of its own so that nothing else counts."""
    done = subprocess.run(
        [sys.executable, __file__, "--read", str(path)], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def measure(path: Path) -> None:
    begin = time.perf_counter()
    workload = load_workload(str(path))
    seconds, cpu = time.perf_counter() - begin, time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts kibibytes
    print(json.dumps({"rows": workload.requests, "points": len(workload.lengths), "seconds": seconds,
                      "cpu_seconds": cpu, "peak_bytes": peak}))  # fmt: skip


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "week.csv.gz"
        write_trace(path, rows)
        size, read = path.stat().st_size, read_trace(path)
    print(f"{rows:,} rows, {size / 1e6:.0f} MB of gzip: {read['seconds']:.1f} s ({rows / read['seconds']:,.0f} rows/s), "
          f"{read['cpu_seconds']:.1f} CPU-s, peak memory {read['peak_bytes'] / 1e6:.0f} MB")  # fmt: skip
    print(json.dumps(read))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        measure(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else QUICK)
