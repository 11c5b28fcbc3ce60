"""What every command shares: results on stdout, talk on stderr, errors as sentences, exit codes.

Exit codes: 0 done, 1 a refusal (no feasible design, unsupported), 2 bad input, 70 a defect of ours, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from diptych.errors import DiptychError, Finding, InvalidInput

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON document on stdout. NaN and infinities are refused: they are not JSON."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def report_error(error: DiptychError) -> int:
    """Print an error as sentences and return the exit code."""
    if isinstance(error, InvalidInput):
        count = len(error.findings)
        err.print(f"[bold red]error:[/] {count} problem{'s' if count > 1 else ''} in the input")
        for finding in error.findings:
            err.print(f"  • {finding}", markup=False, soft_wrap=True)
        return 2
    err.print("[bold red]refused:[/] ", end="")
    err.print(str(error), markup=False, soft_wrap=True)
    return 1


@contextmanager
def progress(title: str, quiet: bool = False) -> Iterator[Any]:
    """A progress bar on stderr, shown only on a terminal. Yields `update(done, total, note)`."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # only what takes long needs it

    bar = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn(),
                   console=err, transient=True, disable=quiet or not err.is_terminal)  # fmt: skip
    with bar:
        task = bar.add_task(title, total=None, note="")
        yield lambda done, total, note="": bar.update(task, completed=done, total=total, note=note)


@contextmanager
def writing(where: str) -> Iterator[None]:
    """Writes what a flag asked for; a place that can't be written to is the user's mistake, told under `where`."""
    try:
        yield
    except OSError as error:
        problem = f"cannot write {error.filename or 'there'}: {error.strerror or error}"
        raise InvalidInput(Finding(where, problem, "a place that can be written to")) from None


def write_beside(path: Path, text: str) -> None:
    """Write a file beside its place, then rename it there: a reader sees the old one or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
