"""`diptych plan`: from a model, a workload, a price book and an SLO to the cheapest fleet that holds the SLO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from diptych.cli.options import option
from diptych.cli.output import err, out, print_json, progress, writing
from diptych.cli.plan_inputs import Request, read_request
from diptych.perf.model import PerfModel
from diptych.perf.roofline import default_perf
from diptych.planner.plan import Plan
from diptych.planner.planning import plan as make_plan
from diptych.report import story
from diptych.report.folder import run_files, write_folder
from diptych.report.tables import plan_text

ASKED, READ, GIVEN = "Question", "Read a trace", "Output"
SHARED, PREFILL, DECODE = "Pin an axis", "Pin prefill", "Pin decode"
Words = str | None
Count = int | None


def _role(role: str) -> dict[str, Any]:
    panel = PREFILL if role == "prefill" else DECODE
    return {
        "precision": option(panel, "fp8, or w=fp8 a=bf16 kv=fp8.", "FORMATS"),
        "weights": option(panel, "Format of the weights.", "FORMAT"),
        "activations": option(panel, "Format of the activations.", "FORMAT"),
        "kv": option(panel, "Format of the KV cache.", "FORMAT"),
        "parallelism": option(panel, "tp4, or tp4·pp2.", "SHAPE"),
        "tp": option(panel, "Tensor parallelism.", "N"),
        "pp": option(panel, "Pipeline parallelism.", "N"),
        "ep": option(panel, "Expert parallelism.", "N"),
        "dp": option(panel, "Data parallelism of attention.", "N"),
        "engine": option(panel, "Its engine, before --engine.", "ENGINE"),
        "residency": option(panel, "Where KV lives: hbm, dram, nvme, remote.", "TIER"),
        "max_batch": option(panel, "Most sequences of a worker.", "N"),
        "max_batched_tokens": option(panel, "Most prompt tokens of a step.", "N"),
    }


P, D = _role("prefill"), _role("decode")


def plan(
    context: typer.Context,
    model: Annotated[
        Words, option(ASKED, "A name of the catalog, a folder, or a Hugging Face config.json.", "MODEL")
    ] = None,
    workload: Annotated[
        Words, option(ASKED, "A trace, a bundled trace's name, preset:NAME or fixed:2048x128.", "WORKLOAD")
    ] = None,
    slo: Annotated[Words, option(ASKED, '"ttft_p90<2s, tpot_p90<50ms". Only batch work may go without.', "SLO")] = None,
    prices: Annotated[Words, option(ASKED, "A price book of the catalog, or a CSV of yours.", "BOOK")] = None,
    rate: Annotated[Words, option(ASKED, "Requests to carry: 20, 1.2k/min. Without: the trace's own.", "RATE")] = None,
    budget: Annotated[Words, option(ASKED, "Most goodput for this: 60/h, 1440/day.", "USD")] = None,
    inventory: Annotated[Words, option(ASKED, 'Best use of what is owned: "A100-80:8, L40S:16".', "LIST")] = None,
    prefix_hit: Annotated[
        Words, option(ASKED, "Share of every prompt found in a prefix cache: 0.3 or 30%.", "SHARE")
    ] = None,
    quality: Annotated[
        Words, option(ASKED, "Narrowest weights to choose freely: native, 8bit (default), any.", "FLOOR")
    ] = None,
    size_for: Annotated[
        Words,
        option(ASKED, "Hold the SLO over the whole trace (default), at its average rate, or at its peak.", "LOAD"),
    ] = None,
    catalog: Annotated[list[str] | None, option(ASKED, "Your YAML over the catalog; may be repeated.", "FILE")] = None,
    columns: Annotated[
        Words, option(READ, "Your columns: isl=prompt,osl=answer,arrival=sent_at:ms,hash_ids=blocks.", "NAMES")
    ] = None,
    cache_tokens: Annotated[Words, option(READ, "LRU prefix cache of so many tokens: 2M.", "TOKENS")] = None,
    sort: Annotated[
        bool, typer.Option("--sort", help="Put requests in order of arrival instead of refusing.", rich_help_panel=READ)
    ] = False,
    drop_empty: Annotated[
        bool, typer.Option("--drop-empty", help="Leave out requests without tokens.", rich_help_panel=READ)
    ] = False,
    prefill: Annotated[Words, option(SHARED, "Accelerator of prefill; several with commas.", "NAME")] = None,
    decode: Annotated[Words, option(SHARED, "Accelerator of decode; several with commas.", "NAME")] = None,
    interconnect: Annotated[Words, option(SHARED, "The link between them, such as rdma-400g.", "LINK")] = None,
    placement: Annotated[Words, option(SHARED, "disaggregated, same-node, colocated, conditional.", "PLACE")] = None,
    wire: Annotated[Words, option(SHARED, "Format of KV on the wire.", "FORMAT")] = None,
    ownership: Annotated[Words, option(SHARED, "push or pull.", "WHO")] = None,
    codec: Annotated[Words, option(SHARED, "raw, cast, quantised or compressed KV on the wire.", "CODEC")] = None,
    converts_at: Annotated[Words, option(SHARED, "Who converts KV: prefill, transfer or decode.", "SIDE")] = None,
    local_below: Annotated[Count, option(SHARED, "Shorter prompts stay on the decode side.", "TOKENS")] = None,
    overlap: Annotated[Words, option(SHARED, "serial or layerwise.", "WHEN")] = None,
    engine: Annotated[
        Words, option(SHARED, "The engine both roles run; vllm@0.33: only what it does as released.", "ENGINE")
    ] = None,
    provider: Annotated[Words, option(SHARED, "Rent from this provider only.", "NAME")] = None,
    region: Annotated[Words, option(SHARED, "Rent in this region only.", "NAME")] = None,
    prefill_precision: Annotated[Words, P["precision"]] = None,
    prefill_weights: Annotated[Words, P["weights"]] = None,
    prefill_activations: Annotated[Words, P["activations"]] = None,
    prefill_kv: Annotated[Words, P["kv"]] = None,
    prefill_parallelism: Annotated[Words, P["parallelism"]] = None,
    prefill_tp: Annotated[Count, P["tp"]] = None,
    prefill_pp: Annotated[Count, P["pp"]] = None,
    prefill_ep: Annotated[Count, P["ep"]] = None,
    prefill_dp: Annotated[Count, P["dp"]] = None,
    prefill_engine: Annotated[Words, P["engine"]] = None,
    prefill_residency: Annotated[Words, P["residency"]] = None,
    prefill_max_batch: Annotated[Count, P["max_batch"]] = None,
    prefill_max_batched_tokens: Annotated[Count, P["max_batched_tokens"]] = None,
    decode_precision: Annotated[Words, D["precision"]] = None,
    decode_weights: Annotated[Words, D["weights"]] = None,
    decode_activations: Annotated[Words, D["activations"]] = None,
    decode_kv: Annotated[Words, D["kv"]] = None,
    decode_parallelism: Annotated[Words, D["parallelism"]] = None,
    decode_tp: Annotated[Count, D["tp"]] = None,
    decode_pp: Annotated[Count, D["pp"]] = None,
    decode_ep: Annotated[Count, D["ep"]] = None,
    decode_dp: Annotated[Count, D["dp"]] = None,
    decode_engine: Annotated[Words, D["engine"]] = None,
    decode_residency: Annotated[Words, D["residency"]] = None,
    decode_max_batch: Annotated[Count, D["max_batch"]] = None,
    decode_max_batched_tokens: Annotated[Count, D["max_batched_tokens"]] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Simulate the finalists, correct the plan by what is seen.", rich_help_panel=ASKED
        ),
    ] = False,
    out_folder: Annotated[
        Words, option(GIVEN, "Write plan.json, report.html and tables to this folder.", "DIR", "--out")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The plan as one JSON document on stdout.", rich_help_panel=GIVEN)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="The headline only, and no talk.", rich_help_panel=GIVEN)
    ] = False,
) -> None:
    """Plan the cheapest fleet that carries a workload inside an SLO, heterogeneous or not, with the reasons.

    Nothing is pinned unless you pin it. The same question gives the same answer, byte for byte.

    Examples:

      diptych plan --model Llama-3.1-70B --workload azure2023_conv.csv.gz --rate 20 \\
          --slo "ttft_p90<2s, tpot_p90<50ms" --prices aws --out runs/conv

      diptych plan --model ./my-model --workload preset:rag --budget 60/h --slo "ttft_p90<4s, tpot_p90<40ms" --prices aws

      diptych plan ... --prefill H100 --decode H20 --interconnect rdma-400g --decode-tp 4
    """  # fmt: skip
    perf = default_perf()
    with progress("planning", quiet) as update:
        request = read_request(dict(context.params), perf, _say(quiet), update)
        found = _ask(request, perf, update)
    written = _write(request, found)
    _show(found, written, as_json, quiet)


def _say(quiet: bool) -> Callable[[str], None]:
    return lambda text: None if quiet else err.print(text, markup=False)


def _ask(request: Request, perf: PerfModel, update: Any) -> Plan:
    return make_plan(
        request.model, request.workload, request.slo, catalog=request.catalog, prices=request.prices, rate=request.rate,
        budget=request.budget, inventory=request.inventory, pins=request.pins, quality=request.quality,
        size_for=request.size_for, perf=perf,
        progress=update, verify=request.verify,
    )  # fmt: skip


def _write(request: Request, found: Plan) -> tuple[str, ...]:
    if request.out is None:
        return ()
    files = run_files(found, request.inputs, request.command)
    with writing("--out"):
        return tuple(str(path) for path in write_folder(request.out, files))


def _show(found: Plan, written: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(found.to_dict())
    elif quiet:
        out.print(Text(f"{story.headline(found)}; {story.bill(found)}"))
    else:
        out.print(plan_text(found, written))
