"""`diptych validate`: predicted beside measured, for anyone's benchmark table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diptych.catalog.catalog import Catalog
from diptych.cli.output import err, out, print_json, progress, write_beside
from diptych.perf.roofline import default_perf
from diptych.planner.accuracy import accuracy, rows_csv
from diptych.planner.benchmark_rows import read_table
from diptych.planner.validate import predict, unanswered
from diptych.report.validate_tables import validation_json, validation_tables


def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv[.gz]", help="a table of published results")],
    catalog: Annotated[list[Path] | None, typer.Option(help="overlay over the built-in catalog")] = None,
    rows: Annotated[Path | None, typer.Option("--out", help="write every row, predicted beside measured")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Predict the rows of a benchmark table and say how far off the predictions are.

    Two layouts are known by their header: unified (mode, accelerator, model, framework, isl, osl, …, ttft_mean_ms,
    tpot_mean_ms, output_tok_s) and that of aiconfigurator's silicon sample. Rows that cannot be answered are counted with
    the reason.
    """
    table = read_table(file)
    with progress(f"predicting {len(table.rows)} rows", quiet=as_json) as update:
        answers = predict(
            table.rows, Catalog.load(*(catalog or ())), default_perf(), lambda done: update(done, len(table.rows))
        )
    without = unanswered(table.unread, answers)
    found = accuracy(answers.predictions, without)
    if rows is not None:
        write_beside(rows, rows_csv(answers.predictions, without))
    if as_json:
        print_json(validation_json(str(file), table.layout, found))
        return
    for shown in validation_tables(found):
        out.print(shown)
    total = found.answered + len(without)
    out.print(f"{found.answered} of {total} rows answered, {found.assumed} of them under stated assumptions")
    if rows is not None:
        err.print(f"wrote {rows}", markup=False)
