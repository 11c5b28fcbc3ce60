"""A quick command loads only its own rooms, and every verb and public name is still there."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import diptych
from diptych.cli import VERBS, _verb, app

SLOW = ("highspy", "duckdb", "jinja2", "diptych.planner", "diptych.simulator")


@pytest.mark.parametrize("statement", ["import diptych", "import diptych.cli"])
def test_the_package_and_its_command_line_load_nothing_slow(statement):
    script = f"{statement}; import sys; print([m for m in {SLOW!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_public_name_can_be_reached():
    assert [name for name in diptych.__all__ if not hasattr(diptych, name)] == []
    with pytest.raises(AttributeError, match="no name 'plam'"):
        diptych.plam  # noqa: B018
    assert set(diptych.__all__) <= set(dir(diptych))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_its_help_and_is_listed_with_its_beginning(verb):
    shown = CliRunner().invoke(app, [verb, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Usage" in shown.output
    assert " ".join((_verb(verb).help or "").split()).startswith(VERBS[verb])


def test_listing_the_verbs_loads_none_of_them():
    script = (
        "import sys; from typer.testing import CliRunner; from diptych.cli import VERBS, _verb, app; "
        "shown = CliRunner().invoke(app, ['--help']).output; "
        "print([verb for verb in VERBS if f'diptych.cli.{verb}' in sys.modules or verb not in shown])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_misspelt_verb_is_named_with_the_nearest():
    shown = CliRunner().invoke(app, ["plam"])
    assert shown.exit_code == 2
    assert "did you mean plan" in shown.output
