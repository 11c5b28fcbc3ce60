"""Sweeps: keys, resuming, files that are not ours, mistakes in the file, Ray."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from diptych.errors import InvalidInput, Unsupported
from diptych.planner import sweep as module
from diptych.planner.sweep import Point, read_rows, run_point, sweep
from diptych.planner.sweep_file import read_points

POINT = Point("Llama-3.1-8B", "2xH100", "fixed:500x20", "10", requests=40, slo="ttft_p90<2s")
POINTS = [replace(POINT, seed=seed) for seed in range(4)]


def test_a_key_says_everything() -> None:
    assert POINT.key == replace(POINT).key
    changed = [
        replace(POINT, seed=1),
        replace(POINT, rate="11"),
        replace(POINT, faults=("x",)),
        replace(POINT, design="3xH100"),
    ]
    assert len({POINT.key, *(point.key for point in changed)}) == 5


def test_a_point_that_cannot_run_is_a_row_with_sentences() -> None:
    row = run_point(replace(POINT, design="H1000"))
    assert "unknown accelerator" in row["error"][0]
    assert "summary" not in row


def test_finished_points_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "s.jsonl"
    sweep(POINTS[:2], out, jobs=1)
    ran: list[int] = []
    honest = module.run_point
    monkeypatch.setattr(module, "run_point", lambda point: ran.append(point.seed) or honest(point))
    rows = sweep(POINTS, out, jobs=1)
    assert ran == [2, 3]
    assert [row["point"]["seed"] for row in rows] == [0, 1, 2, 3]
    assert [json.loads(line)["point"]["seed"] for line in out.read_text().splitlines()] == [0, 1, 2, 3]


def test_order_and_processes_do_not_change_the_file(tmp_path: Path) -> None:
    sweep(POINTS, tmp_path / "a", jobs=1)
    sweep(POINTS[::-1], tmp_path / "b", jobs=2)
    sweep(POINTS, tmp_path / "b", jobs=2)
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()


def test_a_last_line_cut_short_is_run_again(tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    sweep(POINTS, out, jobs=1)
    whole = out.read_text()
    out.write_text(whole[:-30])
    sweep(POINTS, out, jobs=1)
    assert out.read_text() == whole


@pytest.mark.parametrize("text", ["{}\n{}\n", "hello\n", '{"key": "a"}\nhello\n{"key": "b"}\n'])
def test_another_file_is_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(InvalidInput, match="not a row of a sweep"):
        read_rows(tmp_path / "x")
    assert (tmp_path / "x").read_text() == text


GOOD = """
model: Llama-3.1-8B
workload: fixed:500x20
slo: ttft_p90<2s
designs: [2xH100, "H100 -> H20, link=rdma-100g"]
"""


def test_every_combination_is_a_point(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(GOOD + "rates: [5, x2]\nseeds: [0, 1, 2]\nrequests: 50\nfaults: ['H100 -1 @3s']\n".replace(
        "H100 -1", "colocated +1"))  # fmt: skip
    points = read_points(tmp_path / "s.yaml")
    assert len(points) == len(set(points)) == 2 * 2 * 3
    assert {point.rate for point in points} == {"5", "x2"}
    (tmp_path / "c.yaml").write_text(GOOD + "concurrencies: [4, 8]\nrequests: 50\n")
    assert [point.concurrency for point in read_points(tmp_path / "c.yaml")] == [4, 8, 4, 8]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "rates: [fast]", "'fast' is not a count"),
        (GOOD + "rates: [1]\nseeds: [-1]", "a whole number from 0"),
        (GOOD + "rates: [1]\nsede: 3", "did you mean seeds?"),
        (GOOD, "no rate of its own"),
        (GOOD + "rates: [1]\nconcurrencies: [2]", "open loops or closed ones"),
        (GOOD.replace("Llama-3.1-8B", "Lama"), "s.yaml:2: unknown model"),
        (GOOD.replace("2xH100", "2xH1000") + "rates: [1]", "s.yaml:5: design:3: unknown accelerator"),
        (GOOD + "rates: [1]\npolicy: x=1", "unknown word 'x'"),
        ("model: Llama-3.1-8B", "no workload"),
        ("[1, 2]", "not a mapping"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(InvalidInput) as refused:
        read_points(tmp_path / "s.yaml")
    assert expected in str(refused.value)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"diptych\[ray\]"):
        sweep(POINTS, tmp_path / "x", ray="local")


@pytest.mark.ray
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (pip install 'diptych[ray]')")
@pytest.mark.filterwarnings("default")
def test_a_local_ray_cluster_gives_the_same_file(tmp_path: Path) -> None:
    sweep(POINTS, tmp_path / "here", jobs=1)
    sweep(POINTS, tmp_path / "there", ray="local")
    assert (tmp_path / "here").read_text() == (tmp_path / "there").read_text()
