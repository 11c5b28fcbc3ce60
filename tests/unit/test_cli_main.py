import sys

import pytest

import diptych.cli as cli
from diptych.errors import Finding, InvalidInput, NoFeasibleDesign


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (InvalidInput(Finding("--rate", "is NaN")), 2, "--rate: is NaN"),
        (NoFeasibleDesign("nothing fits"), 1, "nothing fits"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("by zero"), 70, "a fault of diptych"),
    ],
)
def test_every_way_to_end_is_a_sentence_and_a_code(monkeypatch, capfd, raised, code, said):
    def fail() -> None:
        raise raised

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.delenv("DIPTYCH_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    captured = capfd.readouterr()
    assert stopped.value.code == code
    assert said in captured.err
    assert "Traceback" not in captured.err


def test_the_traceback_is_there_for_those_who_ask(monkeypatch, capfd):
    monkeypatch.setattr(cli, "app", lambda: 1 / 0)
    monkeypatch.setenv("DIPTYCH_TRACEBACK", "1")
    with pytest.raises(SystemExit):
        cli.main()
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert sys.exc_info() == (None, None, None)
