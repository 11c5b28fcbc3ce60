"""What every test of the command line shares."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from diptych.cli import main


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command inside this process: exit code, stdout and stderr as they were written."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["diptych", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        shown = capsys.readouterr()
        return int(stop.value.code or 0), shown.out, shown.err

    return call


@pytest.fixture
def here(told: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """The same with stderr on one line, for sentences that a terminal wraps."""

    def call(*words: object) -> tuple[int, str, str]:
        code, out, err = told(*words)
        return code, out, " ".join(err.split())

    return call
