"""`diptych workload` as a user runs it: what goes to stdout, what to stderr, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "diptych", "workload", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_bundled_trace_as_json(tmp_path: Path) -> None:
    done = run("azure2023_conv.csv.gz", "--json", "--rate", "20", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == "azure2023_conv.csv.gz: no such file here, the bundled one is used\n"
    found = json.loads(done.stdout)
    assert found["requests"] == 19366
    assert found["isl"]["p50"] == 1020
    assert found["arrivals"]["rate"] == 20
    assert found["prefix"] == {"hit_ratio": 0.0, "measured": False}


def test_local_file_comes_first(tmp_path: Path) -> None:
    (tmp_path / "azure2023_conv.csv.gz").write_text("input_tokens,output_tokens\n10,2\n")
    done = run("azure2023_conv.csv.gz", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["requests"] == 1
    assert done.stderr == ""


def test_table_names_regime_and_reuse() -> None:
    done = run("mooncake_arxiv_first1000.jsonl.gz", "--cache-tokens", "1M")
    assert done.returncode == 0
    for words in ("Regime: prefill-heavy", "no limit", "39.1 %", "artefact", "LRU cache of 1,000,000 tokens"):
        assert words in " ".join(done.stdout.split())
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.csv"], "no such workload"),
        (["preset:chat", "--rate", "0"], "--rate"),
        (["preset:chat", "--rate", "-3"], "--rate"),
        (["preset:chat", "--prefix-hit", "2"], "--prefix-hit"),
        (["nothing.csv", "--cache-tokens", "0", "--prefix-hit", "x", "--rate", "y"], "4 problems"),
        (["nothing.csv", "--columns", "islo=a"], "did you mean isl"),
        (["preset:chat", "--cache-tokens", "lots"], "--cache-tokens"),
        (["azure2023_conv.csv.gz", "--columns", "isl=nope,osl=output_tokens"], "no column 'nope' for isl"),
    ],
)
def test_mistakes_end_in_sentences(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_every_preset_is_json() -> None:
    for name in ("batch", "agent"):
        found = json.loads(run(f"preset:{name}", "--json").stdout)
        assert found["regime"]["sentence"]


def test_every_key_of_the_document_is_documented(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "workload.md").read_text(encoding="utf-8").partition("## JSON")[2]
    found = json.loads(run("mooncake_arxiv_first1000.jsonl.gz", "--json", cwd=tmp_path).stdout)
    keys = set(found)
    for value in found.values():
        parts = value if isinstance(value, dict) else {}
        rows = [row for rows in parts.values() if isinstance(rows, list) for row in rows]
        keys |= set(parts) | {key for row in rows for key in row}
    assert {key for key in keys if f"`{key}`" not in page} == set()
