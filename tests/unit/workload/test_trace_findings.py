"""Bad traces end in sentences with the file's own line numbers, all kinds at once."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from diptych.errors import InvalidTrace
from diptych.workload.load import load_workload
from diptych.workload.trace import Trace

HEAD = "arrival_s,input_tokens,output_tokens\n"
LONG = (HEAD + "".join(f"{row},{row % 900 + 1},{row % 90 + 1}\n" for row in range(5000))).encode()


def refusal(folder: Path, content: str | bytes, name: str = "t.csv", **options) -> list[str]:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InvalidTrace) as caught:
        load_workload(str(path), **options)
    return [str(finding) for finding in caught.value.findings]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1,-5,1", "t.csv:3: prompt length (input_tokens) is negative: -5"),
        ("1,0,1", "t.csv:3: prompt length (input_tokens) is zero"),
        ("1,5,0", "t.csv:3: answer length (output_tokens) is zero"),
        ("1,nan,1", "t.csv:3: prompt length (input_tokens) is nan"),
        ("1,5,inf", "t.csv:3: answer length (output_tokens) is inf"),
        ("1,5,1.5", "t.csv:3: answer length (output_tokens) is not whole: 1.5"),
        (
            "1,1000000000,1",
            "t.csv:3: prompt length (input_tokens) of 1,000,000,000 tokens is out of reach of any model",
        ),
        ("1,1e300,1", "t.csv:3: prompt length (input_tokens) of 1e+300 tokens is out of reach of any model"),
        ("1,many,1", "t.csv:3: prompt length (input_tokens) is not a number: 'many'"),
        ("1,,1", "t.csv:3: prompt length (input_tokens) is missing"),
        ("1,5", "t.csv:3: answer length (output_tokens) is missing"),
        ("1,5,6,7", "t.csv:3: more cells than the header has"),
        ("-1,5,6", "t.csv:3: arrival (arrival_s) is 1 s before the row above"),
        ("nan,5,6", "t.csv:3: arrival (arrival_s) is nan"),
        ("soon,5,6", "t.csv:3: arrival (arrival_s) cannot be read: 'soon'"),
        (",5,6", "t.csv:3: arrival (arrival_s) is missing"),
        ('1,"5,6', "t.csv:3: a quote that never ends"),
    ],
)
def test_one_bad_row(row: str, words: str, tmp_path: Path) -> None:
    findings = refusal(tmp_path, f"{HEAD}0,5,5\n{row}\n2,5,5\n" if '"' not in row else f"{HEAD}0,5,5\n{row}\n")
    assert any(finding.startswith(words) for finding in findings), findings


def test_all_kinds_at_once_in_order_of_lines(tmp_path: Path) -> None:
    findings = refusal(tmp_path, HEAD + "0,-5,10\n1,2,x\n\n0,2000000000,1\n1,2,3,4\n")
    assert [finding.split(":")[1] for finding in findings] == ["2", "3", "5", "5", "6"]


def test_blank_and_refused_lines_do_not_shift_line_numbers(tmp_path: Path) -> None:
    findings = refusal(tmp_path, HEAD + "\n\n0,5,5\n1,2,3,4\n\n3,bad,5\n")
    assert [finding[:7] for finding in findings] == ["t.csv:5", "t.csv:7"]


def test_many_problems_are_counted_not_listed(tmp_path: Path) -> None:
    findings = refusal(tmp_path, HEAD + "".join(f"{row},-1,x\n" for row in range(3000)))
    assert len(findings) == 9
    assert "6,000 problems of 2 kinds in all" in findings[-1]


def test_the_last_row_is_checked_too(tmp_path: Path) -> None:
    assert refusal(tmp_path, LONG + b"6000,7,-1\n")[0].startswith("t.csv:5002: answer length")


def test_unordered_arrivals_point_at_sort(tmp_path: Path) -> None:
    assert "--sort" in refusal(tmp_path, HEAD + "1,5,5\n0,5,5\n")[0]


def test_zero_tokens_point_at_drop_empty(tmp_path: Path) -> None:
    assert "--drop-empty" in refusal(tmp_path, HEAD + "1,5,0\n")[0]


@pytest.mark.parametrize("content", ["", "\n\n", HEAD, HEAD + "\n"])
def test_empty_traces(content: str, tmp_path: Path) -> None:
    assert "empty trace" in refusal(tmp_path, content)[0]


def test_nothing_left_after_dropping(tmp_path: Path) -> None:
    assert "empty trace" in refusal(tmp_path, HEAD + "1,5,0\n", drop_empty=True)[0]


def test_missing_column_names_the_nearest(tmp_path: Path) -> None:
    (finding,) = refusal(tmp_path, "arrival_s,input_tokns,output_tokens\n0,1,1\n")
    assert "no column for the prompt length" in finding
    assert "'input_tokns': did you mean input_tokens?" in finding


def test_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    findings = refusal(tmp_path, "foo,bar\n1,2\n")
    assert "Mooncake JSONL" in findings[-1]
    assert "--columns" in findings[-1]


def test_named_column_that_is_not_there(tmp_path: Path) -> None:
    (finding,) = refusal(tmp_path, "prompt,answer\n1,2\n", columns={"isl": "promt", "osl": "answer"})
    assert "no column 'promt' for isl" in finding
    assert "did you mean prompt?" in finding


@pytest.mark.parametrize("cut", [5, 20, 2000, -9, -4, -1])
def test_truncated_gzip(cut: int, tmp_path: Path) -> None:
    (finding,) = refusal(tmp_path, gzip.compress(LONG)[:cut])
    assert "broken gzip" in finding


def test_wrong_checksum_is_not_read_as_data(tmp_path: Path) -> None:
    whole = gzip.compress(LONG)
    (finding,) = refusal(tmp_path, whole[:-8] + bytes(4) + whole[-4:])
    assert "broken gzip: CRC" in finding


@pytest.mark.parametrize("seed", range(5))
def test_binary_garbage(seed: int, tmp_path: Path) -> None:
    assert refusal(tmp_path, random.Random(seed).randbytes(3000))


def test_garbage_after_the_head(tmp_path: Path) -> None:
    long = LONG * 1
    assert "not text" in refusal(tmp_path, long + b"\xff\xfe,1,1\n")[0]


def test_jsonl_rows(tmp_path: Path) -> None:
    rows = [
        '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}',
        "not json",
        "",
        '{"timestamp": "x", "input_length": null, "output_length": -1, "hash_ids": 7}',
    ]
    findings = refusal(tmp_path, "\n".join(rows), "t.jsonl")
    assert findings[0].startswith("t.jsonl:2: not JSON")
    assert {finding.split(":")[1] for finding in findings[1:]} == {"4"}
    assert len(findings) == 5


def test_json_array_is_not_jsonl(tmp_path: Path) -> None:
    assert "JSON array" in refusal(tmp_path, '[{"isl": 1}]', "t.json")[0]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("azure2023_con.csv.gz", "did you mean azure2023_conv.csv.gz"),
        ("no/such/file.csv", "no such workload"),
        ("", "no such workload"),
        ("servegen_length_quantiles.csv.gz", "several tables"),
        ("servegen_length_quantiles.csv.gz#m-larg", "did you mean m-large"),
    ],
)
def test_workloads_that_are_not_there(spec: str, words: str) -> None:
    with pytest.raises(InvalidTrace) as caught:
        load_workload(spec)
    assert words in str(caught.value)


def test_rates_without_lengths_are_explained(tmp_path: Path) -> None:
    (finding,) = refusal(tmp_path, "model,t_s,total_rate_rps\nmine,0,2\nmine,600,4\n")
    assert "rates without lengths" in finding
    assert "mine 3/s" in finding


@pytest.mark.parametrize("row", ["m,0,-1", "m,0,nan", "m,x,1", "m,0", "m,inf,1"])
def test_bad_rates(row: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, f"model,t_s,total_rate_rps\n{row}\n")[0].startswith("t.csv:2:")


def test_rates_out_of_order(tmp_path: Path) -> None:
    assert "out of order" in refusal(tmp_path, "model,t_s,total_rate_rps\nm,600,1\nm,0,1\n")[0]


@pytest.mark.parametrize("head", ["model,t_s,total_rate_rps\n", "model,field,cum_prob,tokens\n"])
def test_broken_tables(head: str, tmp_path: Path) -> None:
    assert "empty" in refusal(tmp_path, head)[0]
    rows = "".join(f"m{row},{row},{row},5\n" for row in range(30000)).encode()
    assert "broken gzip" in refusal(tmp_path, gzip.compress(head.encode() + rows)[:-2000])[0]
    assert "not a table of text" in refusal(tmp_path, head.encode() + rows + b"\xff\n")[0]


@pytest.mark.parametrize("row", ["m,f,2,5", "m,f,0.5,-1", "m,f,x,1", "m,f,nan,1", "m,input_tokens,0.5,0"])
def test_bad_quantiles(row: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, f"model,field,cum_prob,tokens\n{row}\n")[0].startswith("t.csv:2:")


def test_quantiles_that_fall(tmp_path: Path) -> None:
    text = "model,field,cum_prob,tokens\nm,input_tokens,0.1,9\nm,input_tokens,0.2,5\n"
    assert "not ascending" in refusal(tmp_path, text)[0]


def test_files_that_cannot_be_read_end_in_a_sentence() -> None:
    with pytest.raises(InvalidTrace, match="cannot be opened"):
        load_workload("/proc/self/mem")  # a file by its looks, refused by the kernel


def test_errors_of_the_database_end_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "0,5,5\n")
    trace = Trace(path)
    trace._con.execute("DROP TABLE request")
    with pytest.raises(InvalidTrace, match="cannot be read: Catalog Error"), trace:
        trace.lengths()
