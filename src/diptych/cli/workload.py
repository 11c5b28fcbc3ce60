"""`diptych workload`: lengths and arrivals measured, and the regime they put a fleet in."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from diptych.cli.output import err, out, print_json, progress
from diptych.errors import Finding, InvalidInput
from diptych.report.workload_tables import workload_text
from diptych.units import parse_count
from diptych.workload.formats import parse_columns
from diptych.workload.load import load_workload
from diptych.workload.summary import summarise


def workload(
    file: Annotated[
        str, typer.Argument(help="A trace, gzip or not; a bundled trace's name; preset:NAME; fixed:2048x128.")
    ],
    rate: Annotated[float | None, typer.Option(help="Stretch time to this many requests/s.")] = None,
    columns: Annotated[
        str, typer.Option(help="Your columns: isl=prompt_tokens,osl=answer_tokens,arrival=sent_at:ms,hash_ids=blocks.")
    ] = "",
    prefix_hit: Annotated[
        float | None, typer.Option(help="Take this share (0 to 1) of every prompt as cached.")
    ] = None,
    cache_tokens: Annotated[
        str, typer.Option(help="LRU prefix cache of so many tokens, such as 2M; without: no limit.")
    ] = "",
    sort: Annotated[bool, typer.Option("--sort", help="Put requests in order of arrival instead of refusing.")] = False,
    drop_empty: Annotated[bool, typer.Option("--drop-empty", help="Leave out requests without tokens.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Measure a workload: percentiles, burstiness, prefix reuse, and the regime it is in.

    Reads Azure 2023 and 2024, BurstGPT, splitwise and vidur CSV, Mooncake JSONL, quantile tables (FILE#MODEL), and any CSV or
    JSONL with --columns. The format is told from the content.
    """
    with progress("workload") as update:
        found = load_workload(
            file,
            rate,
            columns=parse_columns(columns) or None,
            prefix_hit=prefix_hit,
            cache_tokens=_capacity(cache_tokens),
            sort=sort,
            drop_empty=drop_empty,
            say=lambda text: err.print(text, markup=False),
            progress=update,
        )
    summary = summarise(found)
    if as_json:
        print_json(summary)
    else:
        out.print(workload_text(summary))


def _capacity(text: str) -> float:
    try:
        tokens = parse_count(text) if text else math.inf
    except ValueError as error:
        raise InvalidInput(Finding("--cache-tokens", str(error), "tokens, such as 2M")) from None
    if tokens <= 0:
        raise InvalidInput(Finding("--cache-tokens", f"{text} is not above zero", "tokens, such as 2M"))
    return tokens
