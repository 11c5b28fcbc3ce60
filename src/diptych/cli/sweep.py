"""`diptych sweep`: designs × rates × seeds simulated on every core, into one file that a second run completes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diptych.cli.output import err, out, print_json, progress
from diptych.errors import Finding, InvalidInput
from diptych.planner.sweep import cores
from diptych.planner.sweep import sweep as run_sweep
from diptych.planner.sweep_file import read_points
from diptych.report.sweep_tables import sweep_json, sweep_text


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="Designs, rates, seeds and what they share.")],
    out_file: Annotated[
        Path, typer.Option("--out", metavar="FILE.jsonl", help="A row a point; completed if it is there.")
    ],
    jobs: Annotated[
        int | None, typer.Option(help="Processes; without: one a core.", metavar="N", show_default=False)
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Run on this Ray cluster; 'local' starts one here.", metavar="ADDRESS", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Simulate every design at every rate with every seed.

    Points that the file already holds are not run again, so an interrupted sweep goes on where it stopped.

    Example file:

      model: Qwen3-32B

      workload: preset:chat

      slo: ttft_p90<2s, tpot_p90<50ms

      designs: ["3xH100:tp2 -> 5xH20:tp4, link=rdma-400g", "4xH100:tp2", runs/conv]

      rates: [10, 20]

      seeds: [0, 1, 2]

      requests: 5000
    """
    if jobs is not None and jobs < 1:
        raise InvalidInput(Finding("--jobs", f"{jobs} processes", "at least 1"))
    with progress("checking", as_json) as update:
        points = read_points(file)
    where = f"Ray at {ray}" if ray else f"{jobs or cores()} processes"
    try:
        with progress(f"{len(points):,} points, {where}", as_json) as update:
            rows = run_sweep(points, out_file, jobs=jobs, ray=ray, progress=update)
    except KeyboardInterrupt:
        err.print(f"interrupted; finished points are in {out_file}, the same command goes on", markup=False)
        raise typer.Exit(130) from None
    if as_json:
        print_json(sweep_json(rows))
    else:
        out.print(sweep_text(rows))
        err.print(f"wrote {out_file}", markup=False)
