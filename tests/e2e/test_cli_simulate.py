"""`diptych simulate`, `compare` and `sweep` as people call them: real processes, real files, real mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diptych.planner.simulated import Simulated

PAIR = "2xH100:usd=4 -> 2xH20:tp2:usd=3, kv=fp8, link=rdma-400g, push"
QUICK = ("--model", "Llama-3.1-8B", "--workload", "fixed:1000x60", "--rate", "10", "--requests", "300", "--seed", "7")
SLO = ("--slo", "ttft_p90<2s, tpot_p90<50ms")
FILES = ["inputs.json", "report.html", "requests.jsonl", "series.csv", "summary.json"]
Here = Callable[..., tuple[int, str, str]]


def diptych(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, "-m", "diptych", *words], capture_output=True, text=True, timeout=240, cwd=cwd, env=env
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("runs") / "chat"
    done = diptych(
        "simulate", "--design", PAIR, *QUICK, *SLO, "--fault", "decode[1] dies @10s for 5s", "--out", str(folder)
    )
    assert done.returncode == 0, done.stderr
    return folder, done


def test_a_simulation_is_printed_and_written(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = run
    assert sorted(path.name for path in folder.iterdir()) == FILES
    seen = Simulated.load(folder)
    assert (seen.arrived, seen.seed, seen.faults) == (300, 7, ("decode[1] dies @10s for 5s",))
    assert len((folder / "requests.jsonl").read_text().splitlines()) == 300
    for part in (
        "The SLO holds",
        "TTFT, computed by prefill",
        "TTFT, delivered by decode",
        "Where the time went",
        "rdma-400g",
    ):
        assert part in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80 + len(str(folder))


def test_the_recorded_command_gives_the_same_bytes(
    run: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    inputs = json.loads((run[0] / "inputs.json").read_text())
    flags = inputs["flags"] | {"out": str(tmp_path / "again")}
    words = [word for name, value in flags.items() for item in (value if isinstance(value, list) else [value])
             for word in ("--" + name.replace("_", "-"), str(item))]  # fmt: skip
    assert diptych("simulate", *words).returncode == 0
    for name in ("summary.json", "requests.jsonl", "series.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (run[0] / name).read_bytes()


def test_a_simulation_can_be_simulated_again_under_more(
    run: tuple[Path, subprocess.CompletedProcess[str]], here: Here
) -> None:
    code, out, told = here("simulate", str(run[0]), "--rate", "40", "--requests", "200", "--json")
    assert code == 0, told
    seen = Simulated.from_json(out)
    assert seen.design == Simulated.load(run[0]).design
    assert seen.slo == "ttft_p90<2s, tpot_p90<50ms"
    assert seen.offered == pytest.approx(40, rel=0.2)


def test_a_plan_is_simulated_with_its_own_workload_rate_and_slo(tmp_path: Path, here: Here) -> None:
    pins = ("--prefill", "L40S", "--decode", "H100", "--prefill-tp", "1", "--decode-tp", "1")
    asked = ("--model", "Llama-3.1-8B", "--workload", "fixed:1000x100", "--rate", "10", *SLO, "--prices", "aws", *pins)
    assert here("plan", *asked, "--out", str(tmp_path / "conv"), "--quiet")[0] == 0
    code, out, told = here("simulate", str(tmp_path / "conv"), "--rate", "x1.5", "--requests", "400", "--json")
    assert code == 0, told
    seen = Simulated.from_json(out)
    assert seen.offered == pytest.approx(15, rel=0.2)
    assert seen.predicted is not None
    assert seen.usd_per_hour == pytest.approx(seen.predicted.usd_per_hour, rel=0.01)
    code, out, _ = here("compare", str(tmp_path / "conv"), "--json")
    assert (code, json.loads(out)["runs"][0]["kind"]) == (0, "planned")


def test_a_closed_loop_and_a_design_file(tmp_path: Path, here: Here) -> None:
    (tmp_path / "d.yaml").write_text("model: Llama-3.1-8B\ncolocated: [{accelerator: H100, count: 2}]\n")
    code, out, told = here("simulate", str(tmp_path / "d.yaml"), "--workload", "fixed:500x50", "--concurrency", "8", "--requests",
                           "100", "--json")  # fmt: skip
    assert code == 0, told
    seen = Simulated.from_json(out)
    assert (seen.concurrency, seen.arrived, seen.link) == (8, 100, None)
    assert seen.pools[0].running_max == 8


BAD = [
    (
        ("--design", "3xH1000 -> H20:tp3:zz=1, lnk=x"),
        ["--design:3: unknown accelerator 'H1000'", "--design:20", "did you mean link?"],
    ),
    (("--design", "H100:tp3"), ["tp3 over 32 heads"]),
    (("--design", "L4, w=bf16", "--model", "Llama-3.1-70B"), ["Weights must fit"]),
    (
        ("--design", "H100:kv=bf16 -> H100:kv=fp8, link=rdma-400g, codec=raw, wire=bf16"),
        ["Raw KV needs the same format"],
    ),
    (("--model", "Lama-3.1-8B"), ["--model", "did you mean"]),
    (("--workload", "missing.csv"), ["missing.csv", "no such workload"]),
    (("--rate", "fast"), ["--rate", "'fast' is not a count"]),
    (("--rate", "x0"), ["--rate", "above zero"]),
    (("--slo", "ttft_p90<2parsecs"), ["--slo", "unknown unit 'parsecs'"]),
    (("--fault", "decode[1] explodes @3s"), ["--fault", "decode[1] dies @300s for 120s"]),
    (("--fault", "decode[7] dies @3s"), ["--fault", "an index below 2"]),
    (("--policy", "rooting=x"), ["--policy", "did you mean routing?"]),
    (("--concurrency", "8"), ["--rate: is given beside --concurrency"]),
    (("--requests", "1.5"), ["--requests", "whole number"]),
    (("--duration", "10"), ["--duration", "has no unit"]),
    (("--prices", "awz"), ["--prices", "did you mean aws?"]),
    (("--seed", "x"), ["Invalid value"]),
    (("--bogus", "1"), ["No such option"]),
]


@pytest.mark.parametrize(("flags", "expected"), BAD, ids=[" ".join(flags) for flags, _ in BAD])
def test_a_mistake_is_a_sentence_and_writes_nothing(
    flags: tuple[str, ...], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Here
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("--design", PAIR, *QUICK, *SLO)
    given = dict(zip(asked[::2], asked[1::2], strict=True)) | dict(zip(flags[::2], flags[1::2], strict=True))
    code, out, told = here("simulate", *(word for pair in given.items() for word in pair), "--out", "run")
    assert code == 2, told
    assert out == ""
    assert all(text in told for text in expected), told
    assert list(tmp_path.iterdir()) == []


def test_mistakes_in_a_real_process_come_at_once(tmp_path: Path) -> None:
    done = diptych(
        "simulate",
        "--design",
        "H1000",
        "--slo",
        "x",
        "--rate",
        "fast",
        "--fault",
        "boom",
        "--out",
        __file__,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert int(done.stderr.split("error: ")[1].split()[0]) >= 6
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("simulate",), "nothing to work on"),
        (("simulate", "nowhere"), "there is no such file"),
        (("simulate", "."), "neither a plan nor a simulation"),
        (("simulate", ".", "--design", "H100"), "is given beside --design"),
        (("compare", "nowhere", "."), "2 problems"),
        (("sweep", "nowhere.yaml", "--out", "x"), "nowhere.yaml"),
        (("sweep", "nowhere.yaml", "--out", "x", "--jobs", "0"), "at least 1"),
    ],
)
def test_what_is_not_there_is_named(
    words: tuple[str, ...], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Here
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, told = here(*words)
    assert code == 2
    assert expected in told


def test_compare_shows_runs_side_by_side(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    done = diptych("compare", str(run[0]), str(run[0] / "summary.json"))
    assert done.returncode == 0, done.stderr
    for part in ("goodput, requests/s", "TTFT, delivered by decode p99", "decode queue", "USD/Mtok output", "transfer"):
        assert part in done.stdout


SWEEP = """
model: Llama-3.1-8B
workload: fixed:800x40
slo: ttft_p90<2s, tpot_p90<50ms
designs: ["2xH100", "H100 -> H20, link=rdma-100g"]
rates: [5, 20]
seeds: [0, 1]
requests: 100
"""


def test_a_sweep_is_resumed_and_its_file_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP)
    done = diptych("sweep", "s.yaml", "--out", "all.jsonl", "--jobs", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "8 points simulated" in done.stdout
    whole = (tmp_path / "all.jsonl").read_text()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 8
    (tmp_path / "part.jsonl").write_text("".join(lines[5:]) + lines[0][:40])
    again = diptych("sweep", "s.yaml", "--out", "part.jsonl", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "part.jsonl").read_text() == whole
    assert json.loads(again.stdout)["points"] == 8


def test_an_interrupted_sweep_keeps_what_is_done(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        SWEEP.replace("requests: 100", "requests: 20000").replace("[0, 1]", "[0, 1, 2, 3]")
    )
    words = [sys.executable, "-m", "diptych", "sweep", "s.yaml", "--out", "s.jsonl", "--jobs", "1"]
    running = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while time.monotonic() < end and not ((tmp_path / "s.jsonl").exists() and (tmp_path / "s.jsonl").stat().st_size):
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, told = running.communicate(timeout=60)
    assert running.returncode == 130, out + told
    assert "the same command goes on" in told
    assert "Traceback" not in told
    assert 1 <= len((tmp_path / "s.jsonl").read_text().splitlines()) < 16


def test_help_names_the_forms_of_faults() -> None:
    told = " ".join(diptych("simulate", "--help").stdout.split())
    for part in (
        "decode[1] dies @300s for 120s",
        "link prefill->decode at 10% @600s",
        "decode +2 @900s",
        "prefill to decode",
    ):
        assert part in told


def test_a_plan_is_verified(tmp_path: Path) -> None:
    pins = ("--prefill", "L40S", "--decode", "L40S", "--prefill-tp", "1", "--decode-tp", "1")
    asked = ("--model", "Llama-3.1-8B", "--workload", "fixed:1000x100", "--rate", "10", *SLO, "--prices", "aws", *pins)
    done = diptych("plan", *asked, "--verify", "--out", str(tmp_path / "conv"))
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "conv/plan.json").read_text())["verification"]
    assert told["kept"] + told["corrected"] + told["dropped"] == len(told["finalists"]) > 0
    assert "Simulated" in done.stdout
    assert "plan / seen" in done.stdout
    assert "--verify" in json.loads((tmp_path / "conv/inputs.json").read_text())["command"]
    assert set(told["finalists"][0]["predicted"]) == set(told["finalists"][0]["simulated"]) == {"ttft", "tpot", "e2e"}


def test_mishaps_and_rules_are_told(here: Here) -> None:
    events = (
        "client cancels 20% within 1s",
        "link prefill->decode corrupts 20% @0s",
        "decode scales 1..3 by busy 10%..50%",
    )
    faults = [word for event in events for word in ("--fault", event)]
    code, out, _ = here("simulate", "--design", PAIR, *QUICK, *SLO, *faults, "--json")
    assert code == 0
    seen = json.loads(out)
    assert seen["cancelled"] > 10
    assert seen["refused"] == 0
    assert seen["counts"]["transfers refused by validation"] > 10
    assert any("cancelled by their clients" in line for line in seen["told"])
    itl, tpot = seen["latencies"]["itl"], seen["latencies"]["tpot"]
    assert itl["p50"] <= itl["p99"] <= itl["max"]
    assert 0.5 * tpot["mean"] < itl["mean"] < 2 * tpot["mean"]


def test_shared_nics_need_to_know_the_instances(here: Here) -> None:
    words = ("simulate", "--design", "2xH100 -> 2xH100, link=rdma-400g, push", *QUICK, "--policy", "shared_nics=yes")
    code, _, told = here(*words)
    assert code == 2
    assert "how large the instances are" in told
    code, out, _ = here(*words, "--prices", "aws", "--json")
    assert code == 0
    assert json.loads(out)["finished"] == 300


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("client cancels 0%", "no share"),
        ("decode scales 3..1 by busy 10%..50%", "no range"),
        ("pools balance by queue 5..5", "no band"),
        ("link prefill[9]->decode corrupts 1% @1s", "an index below"),
    ],
)
def test_events_that_make_no_sense_are_told(here: Here, event: str, said: str) -> None:
    code, _, told = here("simulate", "--design", PAIR, *QUICK, "--fault", event)
    assert code == 2
    assert said in told


def test_a_pull_of_chunks_is_refused(here: Here) -> None:
    design = PAIR.replace("push", "pull")
    code, _, told = here("simulate", "--design", design, *QUICK, "--policy", "per_chunk=yes")
    assert code == 2
    assert "chunks can only be pushed" in told


def test_a_long_run_says_what_a_held_one_says(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("simulate", "--design", "1xH100 -> 1xH100, link=rdma-400g", "--model", "Llama-3.1-8B", "--workload", "preset:chat",
             "--rate", "6", "--requests", "1500", "--slo", "ttft_p90<2s, tpot_p90<50ms", "--json")  # fmt: skip
    code, text, _ = here(*words)
    monkeypatch.setattr("diptych.planner.demand.LONG", 1000)
    again, streamed, _ = here(*words)
    assert code == again == 0
    held, long = json.loads(text), json.loads(streamed)
    assert any(line.startswith("a long run") for line in long["told"])
    for latency, values in held["latencies"].items():
        for name, value in values.items():
            assert long["latencies"][latency][name] == pytest.approx(value, rel=0.02), (latency, name)
    apart = {"latencies", "stages", "told", "promises", "offered"}
    assert {k: v for k, v in held.items() if k not in apart} == {k: v for k, v in long.items() if k not in apart}
    assert [(p["share"], p["holds"]) for p in held["promises"]] == [(p["share"], p["holds"]) for p in long["promises"]]
    assert long["stages"]["decode"]["mean"] == pytest.approx(held["stages"]["decode"]["mean"], rel=1e-9)
