"""A week of requests simulated in constant memory: the shape of Azure's 2024 trace, generated; writes benchmarks/sim_stream.md.

27.3 M requests within 168 hours (45 a second), lengths drawn from the 2023 conversations of the same source, through two prefill
and two decode workers, with what `diptych simulate` shows of a long run: latencies, stages, gaps between tokens, an SLO.

    python benchmarks/sim_stream.py                  # the week (a quarter of an hour and more)
    python benchmarks/sim_stream.py --hours 8        # so much of it: nothing is written
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

import diptych.simulator.worker
from diptych.catalog.catalog import Catalog
from diptych.design.text import parse_design
from diptych.metrics.slo import SLO
from diptych.metrics.summary import Spread
from diptych.perf.roofline import default_perf
from diptych.planner.demand import Asked, Rate, long_demand
from diptych.planner.judge import judge_long
from diptych.simulator.simulate import Progress

REQUESTS, HOURS = 27_303_995, 168.0
DESIGN = "2xH100 -> 2xH100, link=rdma-400g, push"
MARKS = (100_000, 300_000, 1_000_000, 3_000_000, 9_000_000, REQUESTS)
PAGE = """# A week of requests in constant memory

{arrived:,} requests, the number and the pace of Azure's conversations of one week in 2024 (45 a second for 168 h), with lengths
drawn from the conversations of 2023, through `{design}` of Llama-3.1-8B: routers, 16-token blocks, links, four latencies, six
stages, gaps between tokens, an SLO. No request is kept; quantiles come from bins of 1.1 %. Written by `benchmarks/sim_stream.py`,
{build}, one process on a shared machine ({machine}).

| requests ended | resident memory | CPU-s | requests per CPU-second |
| ---: | ---: | ---: | ---: |
{table}

Peak {peak} MB. TTFT {ttft}, TPOT {tpot}; {tokens:,.1f} G tokens in and out; {inside:.2%} of the requests inside
every limit of "{slo}".
"""


def memory(field: str = "VmRSS") -> int:
    """MB of this process, now or at most (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024)


def shown(values: Spread) -> str:
    return f"p50 {values.p50 * 1e3:.1f} ms, p99 {values.p99 * 1e3:.1f} ms"


class Watch:
    """Writes memory and CPU time down at the marks."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.marks = list(MARKS)
        self.begin = time.process_time()

    def __call__(self, now: Progress) -> None:
        if self.marks and now.ended >= self.marks[0]:
            self.marks.pop(0)
            self.note(now.ended)

    def note(self, ended: int) -> None:
        """A row of the table."""
        spent = time.process_time() - self.begin
        self.rows.append(f"| {ended:,} | {memory()} MB | {spent:,.0f} | {ended / spent:,.0f} |")
        print(self.rows[-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=HOURS)
    hours = parser.parse_args().hours
    catalog, slo = Catalog.load(), SLO.parse("ttft_p90<2s, tpot_p90<50ms")
    design = parse_design(DESIGN, catalog, catalog.model("Llama-3.1-8B"), "design")
    asked = Asked(rate=Rate(REQUESTS / HOURS / 3600), duration=hours * 3600)
    demand = long_demand("preset:chat", asked)
    assert demand is not None, "too short to be a long run"
    watch = Watch()
    judged = judge_long(design, demand, default_perf(), slo, progress=watch)
    summary = judged.summary
    watch.note(summary.finished)
    compiled = diptych.simulator.worker.__file__.endswith(".so")
    page = PAGE.format(
        arrived=summary.arrived, design=DESIGN, build="compiled build" if compiled else "pure Python", slo=slo,
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}", table="\n".join(watch.rows),
        peak=memory("VmHWM"), ttft=shown(summary.ttft), tpot=shown(summary.tpot), tokens=judged.tokens / 1e9,
        inside=summary.attainment,
    )  # fmt: skip
    if hours == HOURS:
        (Path(__file__).parent / "sim_stream.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
