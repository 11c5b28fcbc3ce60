"""`diptych calibrate`: what the workers of a design really do on this machine, in a minute or two, for `diptych simulate`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from diptych.cli.options import MODEL, ColocatedPool, DecodePool, PrefillPool, RunOrDesign, ServedModel, Words, option
from diptych.cli.output import err, out, print_json, write_beside, writing
from diptych.cli.serve_design import Stand, given_of, stand_in
from diptych.cli.serve_inputs import Setup, read_setup
from diptych.errors import Finding, InvalidInput
from diptych.perf.calibration import Calibration
from diptych.runtime.launch.run_dir import new_token, run_directory
from diptych.runtime.launch.supervisor import Supervisor
from diptych.runtime.probe.probe import probe
from diptych.units import format_seconds

GIVEN = "Output"


def calibrate(
    context: typer.Context,
    run: RunOrDesign = None,
    model: ServedModel = None,
    prefill: PrefillPool = None,
    decode: DecodePool = None,
    colocated: ColocatedPool = None,
    ownership: Annotated[Words, option(MODEL, "Who moves KV: push (default) or pull.", "WHO")] = None,
    out_file: Annotated[
        str, typer.Option("--out", help="Where the calibration is written.", metavar="FILE", rich_help_panel=GIVEN)
    ] = "calibration.json",
    as_json: Annotated[
        bool, typer.Option("--json", help="The calibration on stdout as well.", rich_help_panel=GIVEN)
    ] = False,
) -> None:
    """Start the workers of a design as diptych serve would, measure them for a minute or two, and write what they did.

    Prompts by length and by what is cached, decode steps by batch and context, handoffs, what the gateway adds, and how much
    workers slow each other down. Some points are held out of the fit and show how far it is off. Nothing else should run on
    the machine meanwhile, a fleet that serves least of all.

    Examples:

      diptych calibrate --prefill "1 x cpu:bf16" --decode "1 x cpu:int8" --out here.json

      diptych simulate --calibration here.json --workload preset:chat --rate 0.5
    """
    stand = stand_in(run, model == "toy", model is not None) if run else Stand({})
    given = {**given_of(context.params, stand), "host": "127.0.0.1", "port": 0}
    setup = read_setup(given, _say, stand.pools, stand.notes)
    place = _place(out_file)
    found = asyncio.run(_probed(setup))
    with writing("--out"):
        write_beside(place, found.to_json())
    if as_json:
        print_json(_plain(found))
        return
    for table in _tables(found):
        out.print(table)
    out.print(_sentence(found), markup=False, soft_wrap=True)
    out.print(f"written to {place}", markup=False, soft_wrap=True)


async def _probed(setup: Setup) -> Calibration:
    for note in setup.notes:
        _say(f"note: {note}")
    with run_directory() as folder:
        logs = folder / "logs"
        logs.mkdir()
        supervisor = Supervisor(setup.fleet.programs(folder, new_token()), logs, _say)
        found: list[Calibration] = []

        async def measure() -> None:
            await supervisor.start()
            found.append(await probe(setup.fleet, folder, _say))

        try:
            await measure()
        finally:
            await supervisor.stop(drain=0)
        return found[0]


def _place(text: str) -> Path:
    path = Path(text).expanduser()
    if path.is_dir():
        raise InvalidInput(Finding("--out", f"{text} is a folder", "a file, such as calibration.json"))
    return path


def _plain(found: Calibration) -> Any:
    import msgspec

    return msgspec.to_builtins(found)


# --- showing --------------------------------------------------------------------------------------------------------------


def _tables(found: Calibration) -> list[Table]:
    made = []
    for role in found.roles:
        named = (
            f"{role.role}, {role.device}:{role.weights}, {role.kv} KV, {role.threads} thread{'s' * (role.threads > 1)}"
        )
        if role.prompts:
            rows = [(f"{p.tokens:g}", f"{p.past:g}", *_said(p.seconds, p.predicted, p.fitted)) for p in role.prompts]
            made.append(_table(f"{named}: prompts", ("tokens", "in KV before"), rows))
        if role.decodes:
            rows = [(f"{d.batch:g}", f"{d.context:g}", *_said(d.seconds, d.predicted, d.fitted)) for d in role.decodes]
            made.append(_table(f"{named}: decode steps", ("sequences", "context"), rows))
    if found.handoffs:
        rows = [(f"{h.tokens:g}", "", *_said(h.seconds, h.predicted, h.fitted)) for h in found.handoffs]
        made.append(_table("handoffs, seen after the first token", ("tokens", ""), rows))
    return made


def _said(seconds: float, predicted: float, fitted: bool) -> tuple[str, str, str, str]:
    error = predicted / seconds - 1
    return format_seconds(seconds), format_seconds(predicted), f"{error:+.1%}", "" if fitted else "held out"


def _table(title: str, names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for name in (*names, "took", "fit", "error", ""):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _sentence(found: Calibration) -> str:
    said = [
        f"{role.role} takes {role.slowed:.2f} times as long while others compute"
        for role in found.roles
        if role.slowed > 1
    ]
    said.append(f"the gateway adds {format_seconds(found.gateway_seconds)}")
    held = [abs(p.predicted / p.seconds - 1) for role in found.roles for p in role.prompts if not p.fitted]
    held += [abs(d.predicted / d.seconds - 1) for role in found.roles for d in role.decodes if not d.fitted]
    if held:
        said.append(f"points held out are off by {sum(held) / len(held):.1%} on average, {max(held):.1%} at most")
    return "; ".join(said)


def _say(text: str) -> None:
    err.print(text, markup=False, soft_wrap=True)
