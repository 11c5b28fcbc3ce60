"""`diptych explain`: why this plan, why not the others, what would change the answer, where its numbers come from."""

from __future__ import annotations

from typing import Annotated

import typer

from diptych.cli.output import out, print_json
from diptych.planner.plan import Plan
from diptych.report.explain import explain_text, explanation, why_not


def explain(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The folder that `diptych plan --out` wrote, or a plan.json.")
    ],
    ask: Annotated[
        str,
        typer.Option(
            "--why-not", metavar="DESIGN", help='Ask about one design: "H100 tp2 -> H20 tp4", or words of it.'
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say why this plan, why not the others, what would change it, and where its numbers come from.

    Example: diptych explain runs/conv --why-not "H100 -> L40S"
    """
    plan = Plan.load(run)
    if as_json:
        print_json({**explanation(plan), **({"asked": ask, "told": why_not(plan, ask)} if ask else {})})
    elif ask:
        out.print(why_not(plan, ask), markup=False)
    else:
        out.print(explain_text(plan))
