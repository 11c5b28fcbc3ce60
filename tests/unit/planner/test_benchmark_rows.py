"""Benchmark tables read: both layouts, every kind of bad cell, and files that are no tables."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from diptych.errors import InvalidInput
from diptych.planner.benchmark_rows import Kind, Measured, Ranks, Row, read_table, recorded_ranks

UNIFIED = "mode,accelerator,gpu_count,model,dtype,framework,tp,ep,dp,isl,osl,concurrency,output_tok_s,ttft_mean_ms,tpot_mean_ms\n"
GOOD = "agg,H100-SXM-80GB,4,Llama-3.1-70B,fp8,vllm,4,1,1,1024,1024,16,900,150,17\n"


def table(tmp_path: Path, text: str, name: str = "rows.csv"):  # type: ignore[no-untyped-def]
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return read_table(path)


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_a_unified_row_in_seconds(tmp_path: Path, name: str) -> None:
    read = table(tmp_path, UNIFIED + GOOD, name)
    assert read.layout == "unified"
    (row,) = read.rows
    assert (row.number, row.kind, row.gpus, row.decode) == (2, Kind.CLOSED, 4, Ranks(4, 0, 1, 1))
    assert row.measured == Measured(0.15, 0.017, 900.0)


def test_a_silicon_row_keeps_both_roles(tmp_path: Path) -> None:
    read = table(
        tmp_path,
        "id,concurrency,backend,model_path,system,precision,mode,isl,osl,prefill_num_workers,prefill_tp_size,"
        "prefill_attention_dp_size,decode_num_workers,decode_tp_size,decode_attention_dp_size,decode_moe_ep_size,"
        "silicon_ttft_ms,silicon_tpot_ms,n_gpus\n"
        "x,64,trtllm,deepseek-ai/DeepSeek-V3,gb200,fp4,disagg,1024,1024,2,4,1,1,1,32,32,300,10,40\n",
    )
    (row,) = read.rows
    assert read.layout == "silicon_sample"
    assert (row.prefill_workers, row.decode_workers) == (2, 1)
    assert (row.prefill.tp, row.decode.dp, row.decode.ep) == (4, 32, 32)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (("1024,1024", "many,1024"), "isl is not a number"),
        (("1024,1024", "-5,1024"), "isl is negative"),
        (("agg,", "aggregated,"), "unknown mode 'aggregated'"),
        (("agg,", ","), "no mode"),
    ],
)
def test_a_bad_cell_costs_its_row_only(tmp_path: Path, cell: tuple[str, str], reason: str) -> None:
    read = table(tmp_path, UNIFIED + GOOD.replace(*cell, 1) + GOOD)
    assert [row.number for row in read.rows] == [3]
    (unread,) = read.unread
    assert unread.number == 2
    assert reason in unread.reason


def test_empty_and_nan_cells_are_gaps(tmp_path: Path) -> None:
    read = table(tmp_path, UNIFIED + GOOD.replace(",150,", ",nan,").replace(",900,", ",inf,"))
    assert read.rows[0].measured == Measured(None, 0.017, None)


def test_missing_columns_are_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as error:
        table(tmp_path, "mode,accelerator,modle,framework,isl,osll\nagg,H100,x,vllm,1,1\n")
    text = str(error.value)
    assert "no column 'model'; did you mean mode, modle?" in text
    assert "no column 'osl'" in text
    assert ":1" in text


@pytest.mark.parametrize("content", [b"", b"\x1f\x8bnot gzip", b"\xff\xfe\x00\x81"])
def test_files_that_are_no_tables(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidInput):
        read_table(path)


def test_no_file_and_no_rows(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(InvalidInput, match="no rows"):
        table(tmp_path, UNIFIED)


@pytest.mark.parametrize(
    ("recorded", "reference", "ranks"),
    [
        ((64, 1, 1, 8, 8), "2026_04_06_x_c4_tp8_ep8_978", Ranks(8, 1, 1, 8)),
        ((1, 1, 64, 8, 8), "dsr1_x_c256_cfg178", Ranks(1, 1, 8, 8)),
        ((4, 1, 4, 16, 1), "kimi_x_c4_cfg811", Ranks(4, 1, 1, 4)),
        ((8, 1, 1, 8, 1), "", Ranks(8, 1, 1, 8)),
        ((16, 1, 1, 1, 16), "", Ranks(16, 1, 1, 1)),
    ],
)
def test_squares_of_ranks_are_undone(recorded: tuple[int, ...], reference: str, ranks: Ranks) -> None:
    tp, pp, dp, ep, moe_tp = recorded
    assert recorded_ranks(tp, pp, dp, ep, moe_tp, reference) == ranks


def test_rows_are_plain_values() -> None:
    assert Row.__slots__
