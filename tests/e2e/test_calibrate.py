"""`diptych calibrate`: real processes measured, a file that simulate takes, and mistakes told before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.mark.parametrize("pools", [(), ("--colocated", "2 x cpu")])
def test_a_fleet_is_measured_and_simulated_by_what_was_seen(told, tmp_path: Path, pools: tuple[str, ...]) -> None:
    place = tmp_path / "here.json"
    code, out, err = told("calibrate", "--model", "toy", *pools, "--out", place)
    assert code == 0, err
    assert "held out" in out
    found = json.loads(place.read_text())
    roles = [role["role"] for role in found["roles"]]
    assert roles == (["colocated"] if pools else ["prefill", "decode"])
    assert bool(found["handoffs"]) is not bool(pools)
    assert all(not point["fitted"] or point["seconds"] > 0 for role in found["roles"] for point in role["prompts"])
    asked = ("--workload", "fixed:100x20", "--rate", "2", "--requests", "50")
    code, out, err = told("simulate", "--calibration", place, *asked, "--json")
    assert code == 0, err
    seen = json.loads(out)
    assert seen["finished"] == 50
    assert {each["basis"] for each in seen["estimates"]} == {"measured"}


def test_mistakes_are_told_at_once(here, tmp_path: Path) -> None:
    code, _, err = here(
        "calibrate", "--model", "toy", "--prefill", "1 x gpu", "--decode", "0 x cpu", "--ownership", "mine"
    )
    assert (code, err.count("•")) == (2, 3)
    code, _, err = here("calibrate", "--model", "toy", "--out", tmp_path)
    assert (code, "is a folder" in err) == (2, True)


def test_a_calibration_is_all_that_says_what_is_simulated(here, tmp_path: Path) -> None:
    place = tmp_path / "c.json"
    place.write_text("{}")
    code, _, err = here("simulate", "--calibration", place, "--model", "Qwen3-32B", "--workload", "fixed:1x1")
    assert code == 2
    assert "is given beside --calibration" in err
    assert "what diptych calibrate wrote" in err
    code, _, err = here("simulate", "--calibration", tmp_path / "no.json", "--workload", "fixed:1x1", "--rate", "1")
    assert (code, "No such file" in err) == (2, True)
