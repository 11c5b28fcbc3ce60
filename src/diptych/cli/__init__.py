"""The `diptych` command: one module per verb, wired here."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from diptych.cli import catalog
from diptych.cli.compare import compare
from diptych.cli.explain import explain
from diptych.cli.output import err, report_error
from diptych.cli.plan import plan
from diptych.cli.simulate import simulate
from diptych.cli.sweep import sweep
from diptych.cli.validate import validate
from diptych.cli.workload import workload
from diptych.errors import DiptychError

app = typer.Typer(
    name="diptych",
    help="Plan LLM inference whose prefill and decode run on different accelerators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(plan)
app.command()(explain)
app.command()(simulate)
app.command()(compare)
app.command()(sweep)
app.command()(workload)
app.add_typer(catalog.app, name="catalog")
app.command()(validate)


def main() -> None:
    """Run a command; a mistake ends in sentences and an exit code, never in a traceback."""
    try:
        app()
    except DiptychError as error:
        sys.exit(report_error(error))
    except KeyboardInterrupt:
        err.print("interrupted; nothing was written")
        sys.exit(130)
    except Exception as error:
        sys.exit(_report_defect(error))


def _report_defect(error: Exception) -> int:
    """A defect of ours: one sentence for the user, the traceback only for those who ask."""
    if os.environ.get("DIPTYCH_TRACEBACK"):
        traceback.print_exception(error)
    err.print("[bold red]defect:[/] ", end="")
    err.print(
        f"{type(error).__name__}: {error}; this is a fault of diptych, not of your input. "
        "Set DIPTYCH_TRACEBACK=1, run it again, and report what it prints.",
        markup=False,
    )
    return 70
