"""Options as every verb shows them, and those that name the workers of a fleet."""

from __future__ import annotations

from typing import Annotated, Any

import typer

MODEL = "Model and workers"
Words = str | None


def option(panel: str | None, help: str, metavar: str = "TEXT", *names: str) -> Any:
    """An option that may be left out, in a panel of the help."""
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


RunOrDesign = Annotated[
    Words, typer.Argument(help="A folder of diptych plan, a plan.json or a design file.", metavar="[RUN]")
]
ServedModel = Annotated[Words, option(MODEL, "A checkpoint's folder, a .gguf, demo (default) or toy.", "MODEL")]
PrefillPool = Annotated[Words, option(MODEL, '"1 x cpu:bf16", with kv=, threads=, blocks=, usd=.', "POOL")]
DecodePool = Annotated[Words, option(MODEL, '"2 x cpu:int8, kv=int8".', "POOL")]
ColocatedPool = Annotated[Words, option(MODEL, "Workers that do both.", "POOL")]
