"""Each public format, and a user's own, read from a few lines whose numbers are known."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from diptych.errors import InvalidInput
from diptych.workload.formats import parse_columns
from diptych.workload.load import load_workload

# The same three requests, at 0, 0.5 and 2 s: (100, 10), (200, 20), (300, 60).
AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,100,10
2023-11-16 18:15:47.1805900,200,20
2023-11-16 18:15:48.6805900,300,60
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,100,10
2024-05-10 00:00:00.509930+00:00,200,20
2024-05-10 02:00:02.009930+02:00,300,60
"""
RELATIVE = "arrival_s,input_tokens,output_tokens\n0.0,100,10\n0.5,200,20\n2.0,300,60\n"
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,100,10,110,Conversation log
5.5,GPT-4,200,20,220,API log
7,ChatGPT,300,60,360,Conversation log
"""
SPLITWISE = """request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size
0,2,0,0.0,1,100,10
1,2,0,0.5,1,200,20
2,2,0,2.0,1,300,60
"""
VIDUR = "num_prefill_tokens,num_decode_tokens,arrived_at\n100,10,0\n200,20,0.5\n300,60,2\n"
MOONCAKE = """{"timestamp": 0, "input_length": 100, "output_length": 10, "hash_ids": [0]}
{"timestamp": 500, "input_length": 200, "output_length": 20, "hash_ids": [1]}
{"timestamp": 2000, "input_length": 300, "output_length": 60, "hash_ids": [2]}
"""
OPENAI_LOG = """{"arrival": "2026-01-01T00:00:00Z", "usage": {"prompt_tokens": 100, "completion_tokens": 10}}
{"arrival": "2026-01-01T00:00:00.5Z", "usage": {"prompt_tokens": 200, "completion_tokens": 20}}
{"arrival": "2026-01-01T00:00:02Z", "usage": {"prompt_tokens": 300, "completion_tokens": 60}}
"""
FORMATS = {
    "Azure LLM inference CSV": (AZURE_2023, "a.csv"),
    "Azure LLM inference CSV ": (AZURE_2024, "a.csv"),
    "CSV of arrival_s, input_tokens, output_tokens": (RELATIVE, "r.csv"),
    "BurstGPT CSV": (BURSTGPT, "b.csv"),
    "splitwise CSV": (SPLITWISE, "s.csv"),
    "vidur CSV": (VIDUR, "v.csv"),
    "Mooncake JSONL": (MOONCAKE, "m.jsonl"),
    "plain JSONL": (OPENAI_LOG, "o.jsonl"),
}


def write(folder: Path, name: str, text: str | bytes) -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize("title", FORMATS)
@pytest.mark.parametrize("gzipped", [False, True])
def test_format_is_told_from_content(title: str, gzipped: bool, tmp_path: Path) -> None:
    text, name = FORMATS[title]
    content = gzip.compress(text.encode()) if gzipped else text  # the name never ends in .gz: bytes decide
    workload = load_workload(write(tmp_path, name, content))
    assert workload.requests == 3
    assert sorted(zip(workload.lengths.isl, workload.lengths.osl, strict=True)) == [(100, 10), (200, 20), (300, 60)]
    assert workload.arrivals.rate == pytest.approx(3 / 2)
    assert workload.source.endswith(f"read as {title.strip()}")


def test_own_columns_and_milliseconds(tmp_path: Path) -> None:
    text = "sent,p,a,other\n1000,100,10,x\n1500,200,20,y\n3000,300,60,z\n"
    workload = load_workload(write(tmp_path, "own.csv", text), columns=parse_columns("isl=p, osl=a, arrival=sent:ms"))
    assert workload.arrivals.rate == pytest.approx(3 / 2)
    assert workload.lengths.mean_isl == pytest.approx(200)


def test_own_hashes_may_be_texts(tmp_path: Path) -> None:
    text = '{"p": 32, "a": 1, "h": ["aa", "bb"]}\n{"p": 32, "a": 1, "h": ["aa", "cc"]}\n'
    workload = load_workload(write(tmp_path, "own.jsonl", text), columns=parse_columns("isl=p,osl=a,hash_ids=h"))
    assert list(workload.lengths.cached) == [0, 16]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters(delimiter: str, tmp_path: Path) -> None:
    assert load_workload(write(tmp_path, "d.csv", RELATIVE.replace(",", delimiter))).requests == 3


@pytest.mark.parametrize(
    "text", [RELATIVE.replace("\n", "\r\n"), "\ufeff" + RELATIVE, RELATIVE.rstrip(), RELATIVE + "\n\n"]
)
def test_line_ends_and_byte_order_mark(text: str, tmp_path: Path) -> None:
    assert load_workload(write(tmp_path, "e.csv", text)).requests == 3


def test_odd_file_names_are_not_patterns(tmp_path: Path) -> None:
    write(tmp_path, "a1.csv", RELATIVE)
    assert load_workload(write(tmp_path, "it's a[1]*.csv", RELATIVE)).requests == 3


def test_joined_gzip_members_are_one_file(tmp_path: Path) -> None:
    head, tail = RELATIVE[:60], RELATIVE[60:]
    assert (
        load_workload(write(tmp_path, "j.csv", gzip.compress(head.encode()) + gzip.compress(tail.encode()))).requests
        == 3
    )


def test_lengths_without_arrivals_say_so(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, "l.csv", "input_tokens,output_tokens\n5,1\n"))
    assert workload.arrivals.rate == 0
    assert "arrival" in workload.arrivals.note
    assert load_workload(write(tmp_path, "l.csv", "input_tokens,output_tokens\n5,1\n"), rate=4).arrivals.rate == 4


def test_burstgpt_failures_are_left_out_and_counted(tmp_path: Path) -> None:
    text = BURSTGPT + "8,GPT-4,50,0,50,API log\n"
    workload = load_workload(write(tmp_path, "b.csv", text))
    assert workload.requests == 3
    assert any(note.startswith("1 request without tokens") for note in workload.notes)


def test_sort_repairs_order_and_says_so(tmp_path: Path) -> None:
    text = "arrival_s,input_tokens,output_tokens\n2,300,60\n0,100,10\n0.5,200,20\n"
    workload = load_workload(write(tmp_path, "u.csv", text), sort=True)
    assert workload.arrivals.rate == pytest.approx(3 / 2)
    assert workload.arrivals.cv == pytest.approx(0.5)  # gaps of 0.5 and 1.5 s
    assert any("sorted by arrival" in note for note in workload.notes)


def test_drop_empty_closes_the_gaps(tmp_path: Path) -> None:
    text = "arrival_s,input_tokens,output_tokens\n0,1,1\n1,0,1\n2,1,1\n4,1,1\n9,1,0\n"
    workload = load_workload(write(tmp_path, "z.csv", text), drop_empty=True)
    assert workload.requests == 3
    assert workload.arrivals.rate == pytest.approx(3 / 4)
    assert workload.arrivals.cv == pytest.approx(0)


def test_quantile_table_by_model(tmp_path: Path) -> None:
    rows = [f"m,{field},{q},{tokens}" for field, scale in (("input_tokens", 100), ("output_tokens", 10))
            for q, tokens in ((0.25, scale), (0.75, 2 * scale))]  # fmt: skip
    path = write(tmp_path, "q.csv", "model,field,cum_prob,tokens\n" + "\n".join(rows) + "\n")
    lengths = load_workload(f"{path}#m").lengths
    assert lengths.mean_isl == pytest.approx(0.25 * 100 + 0.5 * 150 + 0.25 * 200)
    assert lengths.mean_osl == pytest.approx(15)
    assert lengths.mean(lengths.isl * lengths.osl) == pytest.approx(150 * 15)  # independent
    assert len(load_workload(path).lengths) == 9


def test_rate_table_takes_the_lengths_of_its_model() -> None:
    path = Path(__file__).parents[2] / "data" / "traces" / "servegen_rates_10min.csv.gz"
    workload = load_workload(f"{path}#m-large")
    assert workload.arrivals.rate == pytest.approx(195.8439, abs=1e-3)  # published with the trace, as is the peak
    assert workload.arrivals.peak_to_mean == pytest.approx(2.977, abs=1e-3)
    assert workload.requests == pytest.approx(236892826, rel=1e-5)
    assert workload.lengths.mean_isl == pytest.approx(914.3, rel=0.015)


def test_columns_text_reports_every_mistake() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_columns("isl=a, iosl=b, c")
    assert [finding.problem for finding in caught.value.findings] == ["unknown role 'iosl'", "cannot read 'c'"]
    assert "did you mean isl, osl?" in str(caught.value) or "did you mean osl" in str(caught.value)
