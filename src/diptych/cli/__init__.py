"""The `diptych` command: one module per verb, wired here."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module

import typer
from typer._click.core import Command, Context
from typer.core import TyperGroup
from typer.main import get_command

from diptych.cli.output import err, report_error
from diptych.errors import DiptychError, did_you_mean

VERBS = (
    "plan",
    "explain",
    "simulate",
    "compare",
    "sweep",
    "check",
    "deploy",
    "serve",
    "top",
    "status",
    "watch",
    "kvstore",
    "quality",
    "workload",
    "catalog",
    "validate",
)


class Verbs(TyperGroup):
    """The verbs, each module loaded only when its verb is asked for: a quick command does not wait for the slow ones."""

    def list_commands(self, context: Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: Context, name: str) -> Command | None:
        if name not in VERBS:
            context.fail(f"No such command {name!r}; {did_you_mean(name, VERBS)}")
        return _verb(name)


def _verb(name: str) -> Command:
    """The command of `diptych.cli.<name>`: its `app` where it has several, else the function of that name."""
    module = import_module(f"diptych.cli.{name}")
    several = getattr(module, "app", None)
    if several is None:
        several = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        several.command(name)(getattr(module, name))
    return get_command(several)


app = typer.Typer(
    cls=Verbs,
    name="diptych",
    help="Plan, check, simulate, serve and deploy LLM inference whose prefill and decode run on different accelerators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    pass


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
