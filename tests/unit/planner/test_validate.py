"""Rows predicted: what is assumed is said, what cannot be answered says why, the identity of derived throughput."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diptych.catalog.catalog import Catalog
from diptych.cli import app
from diptych.perf.roofline import default_perf
from diptych.planner.accuracy import accuracy, concurrency_band, rows_csv
from diptych.planner.benchmark_cases import Unanswerable, case_of, engine_name
from diptych.planner.benchmark_rows import Row, read_table
from diptych.planner.recipes import layout, recipes
from diptych.planner.validate import predict

HEADER = "source,source_ref,mode,accelerator,gpu_count,model,dtype,framework,framework_version,tp,ep,dp,isl,osl,"
HEADER += "concurrency,batch_size,request_rate_rps,output_tok_s,ttft_mean_ms,tpot_mean_ms,derived\n"
LINE = "mine,,agg,H100-SXM-80GB,4,Llama-3.1-70B,fp8,vllm,0.12,4,1,1,1024,1024,16,,,900,150,17,\n"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog.load()


def rows(tmp_path: Path, *lines: str) -> tuple[Row, ...]:
    path = tmp_path / "rows.csv"
    path.write_text(HEADER + "".join(lines))
    return read_table(path).rows


def reason(tmp_path: Path, catalog: Catalog, line: str) -> str:
    (row,) = rows(tmp_path, line)
    with pytest.raises(Unanswerable) as error:
        case_of(row, catalog)
    return str(error.value)


def test_a_closed_loop_row_is_predicted_and_says_how(tmp_path: Path, catalog: Catalog) -> None:
    answers = predict(rows(tmp_path, LINE), catalog, default_perf())
    (made,) = answers.predictions
    assert made.ttft is not None
    assert made.tpot is not None
    assert 0.02 < made.ttft < 2
    assert 0.005 < made.tpot < 0.1
    assert all(made.bands[metric] > 0 for metric in ("ttft", "tpot", "output"))
    assert made.assumptions == ()


def test_derived_throughput_is_the_identity(tmp_path: Path, catalog: Catalog) -> None:
    derived = LINE.replace(",17,\n", ',17,"output_tok_s from concurrency*osl/(ttft+(osl-1)*tpot)"\n')
    (made,) = predict(rows(tmp_path, derived), catalog, default_perf()).predictions
    assert made.output == pytest.approx(16 * 1024 / (made.ttft + 1023 * made.tpot))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("H100-SXM-80GB", "H1000", "unknown accelerator 'H1000'"),
        ("H100-SXM-80GB", "MI300X+MI325X", "mixed accelerators"),
        ("Llama-3.1-70B", "NoModel-9B", "unknown model 'NoModel-9B'"),
        ("fp8", "fp7", "unknown precision 'fp7'"),
        (",1024,1024,", ",,1024,", "no prompt length"),
        (",1024,1024,", ",1000000000,1024,", "beyond the model's context"),
        (",4,1,1,1024", ",3,1,1,1024", "TP 3 does not divide 64 heads"),
        ("fp8,vllm,0.12,4,", "bf16,vllm,0.12,1,", "weights do not fit"),
    ],
)
def test_what_cannot_be_answered_says_why(tmp_path: Path, catalog: Catalog, old: str, new: str, why: str) -> None:
    assert why in reason(tmp_path, catalog, LINE.replace(old, new, 1))


def test_gaps_are_filled_by_stated_assumptions(tmp_path: Path, catalog: Catalog) -> None:
    (row,) = rows(tmp_path, LINE.replace(",fp8,", ",,").replace(",4,1,1,1024", ",,,,1024"))
    case = case_of(row, catalog)
    assert any("precision not recorded" in note for note in case.assumptions)
    assert any("parallelism not recorded" in note for note in case.assumptions)
    assert case.decode.parallelism.tp in (2, 4)


def test_disaggregated_workers_by_recipe_or_not_at_all(tmp_path: Path, catalog: Catalog) -> None:
    line = (
        "s,2026_04_06_x_c4301_tp8_ep8_1,disagg,GB200,,deepseek-ai/DeepSeek-R1,fp8,trtllm,0.8.1.post2,8,8,1,1024,1024,"
    )
    (known, unknown) = rows(
        tmp_path, line + "1127,,,,3000,20,\n", line.replace("1024,1024", "2048,256") + "64,,,,300,20,\n"
    )
    told = case_of(known, catalog)
    assert any("recipe" in note for note in told.assumptions)
    assert told.decode.parallelism.dp in (8, 32)
    with pytest.raises(Unanswerable, match="worker counts not recorded"):
        case_of(unknown, catalog)
    (made,) = predict((known, unknown), catalog, default_perf()).predictions
    assert made.cold


def test_recipes_and_layouts() -> None:
    assert layout("tep8") == layout("tp8").__class__(8, 1, 8, 1)
    found = recipes(("B200-SXM", "trtllm", "fp4", 1024, 1024), 90, 4, 8)
    assert {(recipe.mtp, recipe.decode_workers) for recipe in found} == {(True, 5), (False, 5)}
    assert recipes(("B200-SXM", "trtllm", "fp4", 1024, 1024), 1e6, 4, 8) == ()
    assert not any(recipe.largest for recipe in found)


@pytest.mark.parametrize(
    ("spelling", "version", "source", "engine"),
    [
        ("vLLM 0.9.0, PyTorch 2.7.0", "", "MLPerf", "vllm"),
        ("TensorRT-LLM", "0.15.0", "NVIDIA TensorRT-LLM perf-overview 0.15.0", "trtllm-cpp"),
        ("TensorRT-LLM", "0.21", "NVIDIA TensorRT-LLM perf-overview 0.21", "trtllm"),
        ("trtllm", "0.8.1.post2", "aiconfigurator", "trtllm"),
        ("SGLang v0.4.9", "", "", "sglang"),
    ],
)
def test_engines_by_their_spelling(spelling: str, version: str, source: str, engine: str) -> None:
    assert engine_name(spelling, version, source) == engine


def test_bands_and_rows(tmp_path: Path, catalog: Catalog) -> None:
    assert [concurrency_band(c) for c in (None, 1, 2, 8, 9, 512, 513)] == [
        "none",
        "1",
        "2-8",
        "2-8",
        "9-32",
        "129-512",
        ">512",
    ]
    answers = predict(rows(tmp_path, LINE, LINE.replace("H100-SXM-80GB", "H1000")), catalog, default_perf())
    found = accuracy(answers.predictions, answers.unanswered)
    assert found.answered == 1
    assert found.unanswered == {"unknown accelerator 'H1000'": 1}
    written = list(csv.DictReader(io.StringIO(rows_csv(answers.predictions, answers.unanswered))))
    assert [line["row"] for line in written] == ["2", "3"]
    assert written[0]["tpot_measured_s"] == "0.017"
    assert "H1000" in written[1]["unanswered"]


def test_the_command(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    path.write_text(HEADER + LINE + LINE.replace("agg", "sideways"))
    done = CliRunner().invoke(app, ["validate", str(path), "--json", "--out", str(out)])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["rows"], document["answered"]) == (2, 1)
    assert document["unanswered"] == {"unknown mode 'sideways'": 1}
    assert set(document["overall"]) == {"ttft", "tpot", "output"}
    assert out.read_text().count("\n") == 3
