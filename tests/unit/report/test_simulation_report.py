"""Simulations told: the terminal's text, the page, the folder, the comparison."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept import same
from rich.console import Console, RenderableType
from sample_plan import heterogeneous_plan
from sample_simulation import APART, FAULTS, TOGETHER, judged_run, seen_run

from diptych.errors import InvalidInput
from diptych.planner.judge import Judged
from diptych.planner.simulated import Simulated
from diptych.report.chart_simulation import latency_charts, load_charts, memory_charts, worker_chart
from diptych.report.chart_timeline import timeline_charts
from diptych.report.charts import Chart
from diptych.report.compared import comparison_json, comparison_text, differences, load
from diptych.report.folder import as_json, refusal, write_folder
from diptych.report.simulation_folder import MARK, run_files, series_csv
from diptych.report.simulation_html import render
from diptych.report.simulation_tables import simulation_text


@pytest.fixture(scope="module")
def judged() -> Judged:
    return judged_run(faults=FAULTS)


@pytest.fixture(scope="module")
def seen(judged: Judged) -> Simulated:
    return seen_run(judged, FAULTS)


def text(shown: RenderableType, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(shown)
    found = console.file
    assert isinstance(found, io.StringIO)
    return found.getvalue()


def test_golden_text(seen: Simulated) -> None:
    same("simulation_apart.txt", text(simulation_text(seen, ("runs/x/summary.json",))))


def test_golden_text_colocated_without_an_slo() -> None:
    judged = judged_run(TOGETHER, slo="")
    same("simulation_together.txt", text(simulation_text(seen_run(judged))))


def test_the_text_fits_its_terminal(seen: Simulated) -> None:
    assert max(map(len, text(simulation_text(seen)).splitlines())) <= 80


def test_both_ttfts_are_named_and_the_delivered_one_is_later(seen: Simulated) -> None:
    told = text(simulation_text(seen))
    assert "TTFT, computed by prefill" in told
    assert "TTFT, delivered by decode" in told
    computed, delivered = seen.latencies["ttft_prefill"], seen.latencies["ttft"]
    assert computed.mean is not None
    assert delivered.mean is not None
    assert computed.mean < delivered.mean


def test_saturation_is_never_silent() -> None:
    told = text(simulation_text(seen_run(judged_run(TOGETHER.replace("2x", "1x"), rate=80.0, count=1500))))
    assert "falls behind" in told
    assert "The SLO is missed" in told


def test_the_document_reads_back(seen: Simulated) -> None:
    assert Simulated.from_json(as_json(seen.to_dict())) == seen
    with pytest.raises(InvalidInput, match="goodput"):
        Simulated.from_json(json.dumps(seen.to_dict() | {"goodput": "much"}))


def test_no_number_is_nan_when_nothing_finished() -> None:
    judged = judged_run("1xH100, batch=1", count=1)
    judged = replace(judged, demand=judged.demand)
    json.dumps(seen_run(judged).to_dict(), allow_nan=False)


def test_stage_shares_add_up(seen: Simulated) -> None:
    assert sum(stage.share or 0 for stage in seen.stages.values()) == pytest.approx(1.0)
    total = sum(stage.mean or 0 for stage in seen.stages.values())
    assert total == pytest.approx(seen.latencies["e2e"].mean)


# --- charts -----------------------------------------------------------------------------------------------------------


def charts(judged: Judged) -> dict[str, Chart]:
    groups = (
        latency_charts(judged),
        timeline_charts(judged),
        load_charts(judged),
        memory_charts(judged),
        (worker_chart(judged),),
    )
    return {chart.key: chart for group in groups for chart in group}


def rows(chart: Chart, layer: int = -1) -> list[dict[str, Any]]:
    found = chart.spec["layer"][layer]["data"]["values"]
    assert isinstance(found, list)
    return found


def test_all_that_was_promised_is_drawn(judged: Judged) -> None:
    assert set(charts(judged)) == {
        "cdf-ttft", "cdf-tpot", "cdf-e2e", "stages", "timeline", "throughput", "queues", "running", "busy", "kv", "link",
        "workers",
    }  # fmt: skip
    assert "link" not in charts(judged_run(TOGETHER))


def test_distributions_are_those_of_the_requests(judged: Judged) -> None:
    drawn = [row for row in rows(charts(judged)["cdf-ttft"]) if row["what"] == "delivered by decode"]
    shares = [row["q"] for row in drawn]
    assert shares == sorted(shares)
    median = next(row["t"] for row in drawn if row["q"] == 0.5)
    assert median == pytest.approx(float(np.median(judged.run.requests.ttft)), rel=1e-3)


def test_a_timeline_adds_up_to_each_request(judged: Judged) -> None:
    chart = charts(judged)["timeline"]
    names = {row["who"] for row in rows(chart)}
    assert len(names) >= 15
    for name in names:
        number = int(name.rsplit(" ", 1)[1])
        total = sum(row["t"] for row in rows(chart) if row["who"] == name)
        assert total == pytest.approx(float(judged.run.requests.e2e[number]), rel=1e-3)


def test_faults_are_marked_where_they_begin_and_end(judged: Judged) -> None:
    marks = [row["t"] for row in rows(charts(judged)["queues"], 0)]
    assert marks == [20.0, 30.0, 40.0, 45.0]


def test_arrivals_drawn_are_all_arrivals(judged: Judged) -> None:
    drawn = [row for row in rows(charts(judged)["throughput"]) if row["what"] == "arrived"]
    width = (drawn[1]["t"] - drawn[0]["t"]) if len(drawn) > 1 else 1.0
    assert sum(row["n"] for row in drawn) * width == pytest.approx(len(judged.run.requests), rel=0.01)


def test_a_far_limit_is_told_and_not_drawn() -> None:
    chart = charts(judged_run(slo="ttft_p90<60s"))["cdf-ttft"]
    assert "60 s lies beyond the drawing" in chart.caption
    assert len(chart.spec["layer"]) == 1


def test_colours_are_names_of_the_style_sheet_and_rows_have_their_columns(judged: Judged) -> None:
    from importlib.resources import files

    style = files("diptych.report").joinpath("assets/report.css").read_text(encoding="utf-8")
    for run in (judged, judged_run(TOGETHER)):
        for chart in charts(run).values():
            assert {len(row) for row in chart.rows} == {len(chart.columns)}, chart.key
            for name in set(re.findall(r"var\(([^)]*)\)", json.dumps(chart.spec))):
                assert f"{name}:" in style, name


# --- page and folder --------------------------------------------------------------------------------------------------


def test_hostile_names_stay_text(judged: Judged, seen: Simulated) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    page = render(judged, replace(seen, workload=evil, model=evil, faults=(evil,)), evil)
    assert evil not in page
    assert page.count("<script") == render(judged, seen).count("<script")


def test_the_folder_has_a_row_for_every_request_and_a_column_for_every_series(
    judged: Judged, seen: Simulated, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    written = write_folder(out, run_files(judged, seen, {"flags": {}}, "diptych simulate"))
    assert sorted(path.name for path in written) == [
        "inputs.json",
        "report.html",
        "requests.jsonl",
        "series.csv",
        "summary.json",
    ]
    lines = (out / "requests.jsonl").read_text().splitlines()
    assert len(lines) == len(judged.run.requests)
    assert {"arrival", "first_token", "moved", "decode_start", "finish", "ttft", "tpot", "outcome"} <= set(
        json.loads(lines[0])
    )
    table = list(csv.DictReader(io.StringIO(series_csv(judged.run.series))))
    assert len(table) == len(judged.run.series.time)
    assert {"prefill_queue", "decode_kv_hbm", "kv_bytes_moved"} <= set(table[0])
    assert Simulated.load(out) == seen
    assert refusal(out, MARK) is None


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    finding = refusal(tmp_path, MARK)
    assert finding is not None
    assert "diptych simulate did not write" in finding.problem


# --- comparison -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, judged: Judged, seen: Simulated) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "plan").mkdir()
    (folder / "plan/plan.json").write_text(as_json(heterogeneous_plan().to_dict()))
    together = judged_run(TOGETHER)
    write_folder(folder / "apart", run_files(judged, seen, {}, ""))
    write_folder(folder / "together", run_files(together, seen_run(together), {}, ""))
    return [str(folder / name) for name in ("plan", "apart", "together")]


def test_golden_comparison(runs: list[str]) -> None:
    found = [replace(run, name=Path(run.name).name) for run in load(runs)]
    same("comparison.txt", text(comparison_text(found)))


def test_plans_and_simulations_share_columns(runs: list[str]) -> None:
    planned, apart, together = load(runs)
    assert (planned.kind, apart.kind, together.kind) == ("planned", "simulated", "simulated")
    assert planned.latencies["tpot"].p90 == heterogeneous_plan().best.tpot.p90
    assert sum(planned.stages.values()) == pytest.approx(heterogeneous_plan().best.e2e.mean)
    assert set(apart.queues) == {"prefill", "decode"}
    assert json.loads(json.dumps(comparison_json([planned, apart]), allow_nan=False))["runs"][1]["what"] == apart.what


def test_what_was_not_asked_alike_is_told(runs: list[str]) -> None:
    planned, apart, together = load(runs)
    assert any("different models" in line for line in differences([planned, apart]))
    assert differences([apart, together]) == ()


def test_every_missing_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[")
    with pytest.raises(InvalidInput) as refused:
        load([str(tmp_path), str(tmp_path / "nowhere"), str(tmp_path / "x.json")])
    assert len(refused.value.findings) == 3


def test_the_design_that_is_told_is_the_one_that_ran(seen: Simulated) -> None:
    assert seen.design.startswith(APART.split(":", maxsplit=1)[0][:2])
    assert "link=rdma-100g" in seen.design
