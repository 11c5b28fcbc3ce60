"""`diptych compare`: plans and simulations side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from diptych.cli.output import out, print_json
from diptych.report.compared import comparison_json, comparison_text, load


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Folders that plan or simulate wrote; plan.json, summary.json."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Goodput, latency, where the time went, queues and cost, one column a run.

    Plans show what they predicted, simulations what was seen. Differences in what was asked are told first.

    Example: diptych compare runs/conv runs/conv-busy
    """
    found = load(runs)
    if as_json:
        print_json(comparison_json(found))
    else:
        out.print(comparison_text(found))
