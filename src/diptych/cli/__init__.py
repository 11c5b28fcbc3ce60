"""The `diptych` command: one module per verb, wired here."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module

import typer
from typer._click.core import Command, Context
from typer._click.formatting import HelpFormatter
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from diptych.cli.output import err, report_error
from diptych.errors import DiptychError, did_you_mean

VERBS = {
    "plan": "Plan the cheapest fleet that carries a workload inside an SLO, heterogeneous or not, with the reasons.",
    "explain": "Say why this plan, why not the others, what would change it, and where its numbers come from.",
    "calibrate": "Start the workers of a design as diptych serve would, measure them for a minute or two, "
    "and write what they did.",
    "simulate": "Simulate a fleet request by request: queues, batches, KV, handoffs, faults.",
    "compare": "Goodput, latency, where the time went, queues and cost, one column a run.",
    "sweep": "Simulate every design at every rate with every seed.",
    "check": "Check that prefill and decode can share KV: what fails, what is silently wrong, what is slow, and what to change.",
    "deploy": "Write what starts a design on an engine: commands or manifests, router, dashboards, alerts, a canary, a README.",
    "serve": "Serve a model with prefill and decode on workers of their own precision, behind one OpenAI-compatible gateway.",
    "top": "Workers, queues per role, latencies, KV tiers, transfers, fallbacks and cost of a running gateway.",
    "status": "State, workers and latencies of a running gateway; exit code 1 unless it is ready.",
    "watch": "Measure rate, lengths and latencies for a while, ask the planner again with them, and say whether to stay.",
    "kvstore": "Keep KV blocks for workers: the tier below their own disks, shared by all, the least recently used going first.",
    "quality": "Measure what precision costs: perplexity, greedy agreement and KL, per role, against a baseline.",
    "workload": "Measure a workload: percentiles, burstiness, prefix reuse, and the regime it is in.",
    "catalog": "What exists: accelerators, links, memory tiers, models and offers, each number with its source and day.",
    "validate": "Predict the rows of a benchmark table and say how far off the predictions are.",
}
"""Each verb and the first sentence of its help, so that `diptych --help` loads none of them; a test holds them together."""


class Verbs(TyperGroup):
    """The verbs, each module loaded only when its verb is asked for: a quick command does not wait for the slow ones."""

    _is_listing = False

    def list_commands(self, context: Context) -> list[str]:
        return list(VERBS)

    def get_command(self, context: Context, name: str) -> Command | None:
        if name not in VERBS:
            context.fail(f"No such command {name!r}; {did_you_mean(name, list(VERBS))}")
        return TyperCommand(name, help=VERBS[name]) if self._is_listing else _verb(name)

    def format_help(self, context: Context, formatter: HelpFormatter) -> None:
        self._is_listing = True
        try:
            super().format_help(context, formatter)
        finally:
            self._is_listing = False


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
