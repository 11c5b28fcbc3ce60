"""`diptych simulate`: a plan, a design file or a line of text against a workload, request by request in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from diptych.cli.options import option
from diptych.cli.output import err, out, print_json, progress
from diptych.cli.simulate_inputs import Setup, read_setup
from diptych.planner.demand import LongDemand
from diptych.planner.judge import Judged, judge, judge_long
from diptych.planner.simulated import Simulated, simulated
from diptych.report.folder import write_folder
from diptych.report.simulation_folder import run_files
from diptych.report.simulation_tables import simulation_text
from diptych.simulator.simulate import Progress
from diptych.units import format_seconds

DESIGN, DEMAND, EVENTS, GIVEN = "What is simulated", "Under which demand", "What happens on the way", "Output"
Words = str | None


def _switch(panel: str, help: str, name: str) -> Any:
    return typer.Option(name, help=help, rich_help_panel=panel)


def simulate(
    context: typer.Context,
    target: Annotated[
        Words,
        typer.Argument(metavar="[RUN]", help="A folder of plan or simulate, a plan.json, or a design in YAML or JSON."),
    ] = None,
    design: Annotated[
        Words, option(DESIGN, '"3xH100:tp2 -> 5xH20:tp4, kv=fp8, link=rdma-400g, push".', "DESIGN")
    ] = None,
    model: Annotated[
        Words, option(DESIGN, "A name of the catalog, a folder, or a Hugging Face config.json.", "MODEL")
    ] = None,
    calibration: Annotated[
        Words, option(DESIGN, "The fleet that diptych calibrate measured, with its own step times.", "FILE")
    ] = None,
    prices: Annotated[Words, option(DESIGN, "Price workers, and take NICs, from this book.", "BOOK")] = None,
    catalog: Annotated[list[str] | None, option(DESIGN, "Your YAML over the catalog; may be repeated.", "FILE")] = None,
    workload: Annotated[
        Words, option(DEMAND, "A trace, a bundled trace's name, preset:NAME or fixed:2048x128.", "WORKLOAD")
    ] = None,
    rate: Annotated[
        Words, option(DEMAND, "×1.5 or x1.5 times the plan's or the trace's, or 30, 1.2k/min.", "RATE")
    ] = None,
    duration: Annotated[Words, option(DEMAND, "End the arrivals after this: 10min, 1h.", "TIME")] = None,
    requests: Annotated[Words, option(DEMAND, "End the arrivals after so many.", "N")] = None,
    resample: Annotated[bool, _switch(DEMAND, "Draw a trace's requests and gaps again.", "--resample")] = False,
    concurrency: Annotated[
        Words, option(DEMAND, "Closed loop: so many requests at a time, whatever the rate.", "N")
    ] = None,
    slo: Annotated[Words, option(DEMAND, '"ttft_p90<2s, tpot_p90<50ms"; a plan brings its own.', "SLO")] = None,
    prefix_hit: Annotated[Words, option(DEMAND, "Share of every prompt found in a prefix cache: 30%.", "SHARE")] = None,
    columns: Annotated[Words, option(DEMAND, "Your columns: isl=prompt,osl=answer,arrival=sent_at:ms.", "MAP")] = None,
    sort: Annotated[bool, _switch(DEMAND, "Put requests in order of arrival instead of refusing.", "--sort")] = False,
    drop_empty: Annotated[bool, _switch(DEMAND, "Leave out requests without tokens.", "--drop-empty")] = False,
    seed: Annotated[int, option(DEMAND, "Of everything that is drawn.", "N")] = 0,
    fault: Annotated[
        list[str] | None, option(EVENTS, "A fault or a change, see below; may be repeated.", "EVENT")
    ] = None,
    policy: Annotated[
        list[str] | None,
        option(EVENTS, "reserve=yes, routing=prefix-aware, tiers=dram+nvme: see the manual.", "WORDS"),
    ] = None,
    out_folder: Annotated[
        Words, option(GIVEN, "Write summary.json, requests.jsonl, series.csv and report.html here.", "DIR", "--out")
    ] = None,
    as_json: Annotated[bool, _switch(GIVEN, "The summary as one JSON document on stdout.", "--json")] = False,
) -> None:
    """Simulate a fleet request by request: queues, batches, KV, handoffs, faults. The same command gives the same bytes.

    Events, each at a time of the run:

      decode[1] dies @300s for 120s          a worker and its KV; without "for" it stays away

      prefill pool dies @300s for 60s        all workers of a role

      link prefill->decode at 10% @600s      of its bandwidth; prefill[0]->decode[2] for one worker's port; cut for none

      link prefill->decode corrupts 1% @600s  validation refuses such a share of the transfers

      client cancels 5% within 10s           such a share of the clients give up; "@300s for 60s" for those who come then

      decode scales 1..8 by busy 30%..80%    a rule: one more above, one less below; by queue, busy or kv

      pools balance by queue 1..10           prefill and decode lend each other workers

      decode +2 @900s, prefill -1 @900s      workers start up and join, or drain and leave

      prefill to decode @900s                a worker drains, starts up and changes sides

    Examples:

      diptych simulate runs/conv --rate x1.5 --out runs/conv-busy

      diptych simulate --design "3xH100:tp2 -> 5xH20:tp4, kv=fp8, link=rdma-400g, push" --model Qwen3-32B \\
          --workload preset:chat --rate 20 --slo "ttft_p90<2s, tpot_p90<50ms" --fault "decode[1] dies @300s for 120s"

      diptych simulate --calibration calibration.json --workload preset:chat --rate 0.5
    """  # fmt: skip
    with progress("simulating", as_json) as update:
        setup = read_setup(dict(context.params), lambda text: err.print(text, markup=False), update)
        judged = _run(setup, update)
    seen = simulated(
        judged, setup.catalog, faults=fault or (), policy=setup.policy_words, concurrency=setup.concurrency,
        predicted=setup.target.option,
    )  # fmt: skip
    written = _write(setup, judged, seen)
    if as_json:
        print_json(seen.to_dict())
    else:
        out.print(simulation_text(seen, written))


def _run(setup: Setup, update: Any) -> Judged:
    if isinstance(setup.demand, LongDemand):
        return judge_long(
            setup.target.design, setup.demand, setup.perf, setup.slo, seed=setup.seed, faults=setup.faults,
            policy=setup.policy, notes=setup.target.notes, progress=_shown(setup.demand.count, update),
        )  # fmt: skip
    return judge(
        setup.target.design, setup.demand, setup.perf, setup.slo, seed=setup.seed, faults=setup.faults, policy=setup.policy,
        concurrency=setup.concurrency, notes=setup.target.notes, progress=_shown(len(setup.demand.requests), update),
    )  # fmt: skip


def _shown(total: int, update: Any) -> Callable[[Progress], None]:
    """A progress bar that counts requests ended, with the simulated time and the requests per second of this computer."""
    began = time.perf_counter()

    def show(now: Progress) -> None:
        pace = now.ended / max(time.perf_counter() - began, 1e-9)
        update(now.ended, total, f"{format_seconds(now.seconds)} simulated, {pace:,.0f} requests/s")

    return show


def _write(setup: Setup, judged: Judged, seen: Simulated) -> tuple[str, ...]:
    if setup.out is None:
        return ()
    files = run_files(judged, seen, setup.inputs, setup.command)
    return tuple(str(path) for path in write_folder(setup.out, files))
