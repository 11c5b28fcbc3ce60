"""`diptych workload`: lengths and arrivals measured, and the regime they put a fleet in."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from diptych.cli.output import err, out, print_json, progress
from diptych.cli.plan_inputs import Reader, parse_rate, parse_share
from diptych.errors import InvalidInput
from diptych.report.workload_tables import workload_text
from diptych.units import parse_count
from diptych.workload.formats import parse_columns
from diptych.workload.load import load_workload
from diptych.workload.summary import summarise

_FILE = "A trace, gzip or not; a bundled trace's name; preset:NAME; fixed:2048x128."
_COLUMNS = "Your columns: isl=prompt_tokens,osl=answer_tokens,arrival=sent_at:ms,hash_ids=blocks."


def workload(
    file: Annotated[str, typer.Argument(help=_FILE)],
    rate: Annotated[str | None, typer.Option(help="Stretch time to this rate: 20, 1.2k/min.")] = None,
    columns: Annotated[str | None, typer.Option(help=_COLUMNS)] = None,
    prefix_hit: Annotated[str | None, typer.Option(help="Share of every prompt taken as cached: 0.3 or 30%.")] = None,
    cache_tokens: Annotated[str | None, typer.Option(help="LRU prefix cache of so many tokens: 2M.")] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Put requests in order of arrival instead of refusing.")] = False,
    drop_empty: Annotated[bool, typer.Option("--drop-empty", help="Leave out requests without tokens.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Measure a workload: percentiles, burstiness, prefix reuse, and the regime it is in.

    Reads Azure 2023 and 2024, BurstGPT, splitwise and vidur CSV, Mooncake JSONL, quantile and rate tables (FILE#MODEL), and any
    CSV or JSONL with --columns. The format is told from the content. docs/workload.md lists formats and the JSON.
    """
    given = {"rate": rate, "columns": columns, "prefix_hit": prefix_hit, "cache_tokens": cache_tokens}
    with progress("workload") as update:
        reader = Reader(given, lambda text: err.print(text, markup=False), update)
        options = {
            "rate": reader.value("rate", parse_rate),
            "columns": reader.value("columns", parse_columns),
            "prefix_hit": reader.value("prefix_hit", parse_share),
            "cache_tokens": reader.value("cache_tokens", _capacity) or math.inf,
        }
        found = reader.attempt("FILE", load_workload, file, sort=sort, drop_empty=drop_empty, say=reader.say,
                               progress=update, **options)  # fmt: skip
    if found is None or reader.findings:
        raise InvalidInput(reader.findings)
    summary = summarise(found)
    if as_json:
        print_json(summary)
    else:
        out.print(workload_text(summary))


def _capacity(text: str) -> float:
    tokens = parse_count(text)
    if not tokens > 0:
        raise ValueError(f"{text} is not above zero; expected tokens, such as 2M")
    return tokens
