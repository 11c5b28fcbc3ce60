"""A run's folder is whole or absent, and never someone else's."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from sample_plan import heterogeneous_plan

from diptych.planner.plan import Plan
from diptych.report.folder import designs_csv, pareto_csv, refusal, run_files, write_folder

PLAN = heterogeneous_plan()
FILES = ["designs.csv", "inputs.json", "pareto.csv", "plan.json", "report.html"]


def test_a_run_is_written_whole_and_can_be_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "conv"
    write_folder(folder, run_files(PLAN, {"flags": {}}, "diptych plan"))
    assert sorted(file.name for file in folder.iterdir()) == FILES
    assert Plan.load(folder) == PLAN
    assert json.loads((folder / "inputs.json").read_text())["command"] == "diptych plan"
    assert [path.name for path in folder.parent.iterdir()] == ["conv"]


def test_a_second_run_replaces_the_first_and_keeps_the_users_notes(tmp_path: Path) -> None:
    folder = tmp_path / "conv"
    write_folder(folder, run_files(PLAN, {}, "first"))
    (folder / "notes.md").write_text("mine")
    assert refusal(folder) is None
    write_folder(folder, run_files(replace(PLAN, warnings=()), {}, "second"))
    assert Plan.load(folder).warnings == ()
    assert (folder / "notes.md").read_text() == "mine"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    written: list[str] = []
    write_text = Path.write_text

    def breaking(self: Path, text: str, **named: str) -> int:
        written.append(self.name)
        if len(written) == 3:
            raise interruption
        return write_text(self, text, **named)

    monkeypatch.setattr(Path, "write_text", breaking)
    with pytest.raises(interruption):
        write_folder(tmp_path / "conv", run_files(PLAN, {}, ""))
    assert len(written) == 3
    assert list(tmp_path.iterdir()) == []


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert "did not write" in str(refusal(tmp_path))
    assert "is a file" in str(refusal(tmp_path / "thesis.tex"))
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty") is None
    assert refusal(tmp_path / "new") is None


def test_tables_hold_the_front_and_the_designs() -> None:
    front = list(csv.DictReader(io.StringIO(pareto_csv(PLAN))))
    assert len(front) == len(PLAN.pareto)
    assert float(front[0]["tpot_p90_s"]) == pytest.approx(PLAN.pareto[0].tpot, rel=1e-5)
    designs = list(csv.DictReader(io.StringIO(designs_csv(PLAN))))
    assert [row["name"] for row in designs] == [
        "the plan, best heterogeneous", "best homogeneous colocated", "best homogeneous disaggregated", "runner-up",
    ]  # fmt: skip
    assert float(designs[0]["usd_per_hour"]) == PLAN.best.usd_per_hour


def test_a_spreadsheet_runs_no_name_as_a_formula() -> None:
    evil = replace(PLAN, best=replace(PLAN.best, label="=HYPERLINK(1)"))
    row = next(iter(csv.DictReader(io.StringIO(designs_csv(evil)))))
    assert row["design"] == "'=HYPERLINK(1)"
