"""The directory of one running fleet: sockets, configurations and secrets, for its owner alone, and gone with it."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from diptych.errors import Finding, InvalidInput
from diptych.runtime.peer.address import LONGEST_PATH

PREFIX = "diptych-run-"
LOCK = "lock"
LONGEST_NAME = 30
"""Bytes of a socket's name within it."""


@contextmanager
def run_directory(under: Path | None = None) -> Iterator[Path]:
    """A new directory, removed at the end; those that killed supervisors left are removed too.

    Raises:
        InvalidInput: it cannot be made there, or its path is too long for socket files.
    """
    parent = under or _runtime_directory()
    sweep(parent)
    try:
        made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))  # mode 0700
    except OSError as error:
        raise InvalidInput(Finding("run directory", f"{parent}: {error.strerror}", "a place to write to")) from None
    if len(os.fsencode(made)) + LONGEST_NAME > LONGEST_PATH:
        made.rmdir()
        raise InvalidInput(
            Finding("run directory", f"{parent} is too long a path for sockets", f"{LONGEST_PATH} bytes")
        )
    with (made / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove run directories of this user that nobody holds any more."""
    for found in parent.glob(PREFIX + "*"):
        with suppress(OSError):
            if found.is_symlink() or found.stat().st_uid != os.getuid():
                continue
            with (found / LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(found, ignore_errors=True)


def write_secretly(path: Path, text: str | bytes) -> Path:
    """A file that only its owner ever could read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(text.encode() if isinstance(text, str) else text)
    return path


def new_token() -> str:
    """192 bits."""
    return secrets.token_urlsafe(24)


def _runtime_directory() -> Path:
    named = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if named.is_absolute() and named.is_dir() and os.access(named, os.W_OK):
        return named
    return Path(tempfile.gettempdir())
