"""`diptych plan` and `diptych explain` as people call them: real processes, real files, real mistakes."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diptych.planner.plan import Plan, json_schema

SLO = "ttft_p90<2s, tpot_p90<50ms"
ASKED = ("--model", "Llama-3.1-8B", "--workload", "fixed:1000x100", "--rate", "10", "--slo", SLO, "--prices", "aws")
BF16 = "w=bf16 a=bf16 kv=bf16"
QUICK = ("--prefill", "L40S", "--decode", "H100", "--prefill-tp", "1", "--decode-tp", "1", "--prefill-precision", BF16,
         "--decode-precision", BF16)  # fmt: skip
Here = Callable[..., tuple[int, str, str]]
FILES = ["designs.csv", "inputs.json", "pareto.csv", "plan.json", "report.html"]


def diptych(*words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "80", **environment}
    return subprocess.run(
        [sys.executable, "-m", "diptych", *words], capture_output=True, text=True, timeout=240, cwd=cwd, env=env
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("runs") / "chat"
    done = diptych("plan", *ASKED, *QUICK, "--out", str(folder))
    assert done.returncode == 0, done.stderr
    return folder, done


def test_a_plan_is_printed_and_written(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = run
    plan = Plan.load(folder)
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert str(folder / "report.html") in done.stdout.replace("\n", "")
    assert f"{plan.best.usd_per_hour:.2f} USD/h" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80 + len(str(folder))


def test_the_json_matches_its_schema_by_name(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    written = json.loads((run[0] / "plan.json").read_text())
    assert set(json_schema()["properties"]) == set(written)


def test_tables_hold_the_best_and_the_baselines(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    plan = Plan.load(run[0])
    with (run[0] / "designs.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0]["name"].startswith("the plan")
    assert float(rows[0]["usd_per_hour"]) == pytest.approx(plan.best.usd_per_hour, rel=1e-5)
    with (run[0] / "pareto.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == len(plan.pareto)


def test_the_recorded_command_gives_the_same_plan_byte_for_byte(
    run: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    inputs = json.loads((run[0] / "inputs.json").read_text())
    flags = inputs["flags"] | {"out": str(tmp_path / "again")}
    words = [word for name, value in flags.items() for word in ("--" + name.replace("_", "-"), str(value))]
    assert diptych("plan", *words).returncode == 0
    assert (tmp_path / "again/plan.json").read_bytes() == (run[0] / "plan.json").read_bytes()


def test_quiet_is_one_sentence(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    quiet = diptych("plan", *ASKED, *QUICK, "--quiet", COLUMNS="200")
    assert quiet.stderr == ""
    assert len(quiet.stdout.splitlines()) == 1
    assert f"{Plan.load(run[0]).best.usd_per_hour:.2f} USD/h" in quiet.stdout


def test_pins_hold() -> None:
    pins = "--prefill H100 --prefill-tp 1 --prefill-precision fp8 --ownership push --placement disaggregated"
    more = "--decode L40S --decode-tp 2 --decode-kv fp8 --decode-weights fp8"
    done = diptych("plan", *ASKED, *pins.split(), *more.split(), "--json")
    assert done.returncode == 0, done.stderr
    plan = Plan.from_dict(json.loads(done.stdout))
    prefill, decode = plan.best.pools
    assert prefill.members[0].accelerator.startswith("H100")
    assert decode.members[0].accelerator == "L40S"
    assert decode.members[0].tp == 2
    assert str(decode.members[0].kv) == "fp8"
    assert plan.best.boundary is not None
    assert str(plan.best.boundary.ownership) == "push"


@pytest.mark.parametrize(
    ("goal", "told"),
    [(("--budget", "12/h"), "for 12.00 USD/h"), (("--inventory", "L40S:2"), "on 2 L40S")],
)
def test_other_goals_report_goodput(goal: tuple[str, str], told: str, tmp_path: Path) -> None:
    asked = dict(zip(ASKED[::2], ASKED[1::2], strict=True))
    del asked["--rate"]
    words = [word for pair in asked.items() for word in pair]
    pins = QUICK if goal[0] == "--budget" else ()
    done = diptych("plan", *words, *goal, *pins, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert told in " ".join(done.stdout.split())
    plan = Plan.load(tmp_path / "run")
    assert plan.best.goodput > 0
    assert f"goodput {plan.best.goodput:.3g} requests/s" in done.stdout


def test_explain_reads_a_run(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    told = diptych("explain", str(run[0]))
    assert told.returncode == 0
    for title in ("Why this one", "Why not the others", "What would change the answer", "Where the numbers come from"):
        assert title in told.stdout
    spoken = json.loads(diptych("explain", str(run[0] / "plan.json"), "--json", "--why-not", "colocated").stdout)
    assert {"headline", "alternatives", "space", "told"} <= set(spoken)


BAD = [
    (("--model", "Lama-3.1-8B"), ["--model", "Lama-3.1-8B", "did you mean"]),
    (("--rate", "20x"), ["--rate", "unknown unit 'x'"]),
    (("--rate", "0"), ["--rate", "above zero"]),
    (("--rate", "nan"), ["--rate", "nan"]),
    (("--slo", "ttft_p90<2parsecs"), ["--slo", "unknown unit 'parsecs'"]),
    (("--prices", "awz"), ["--prices", "did you mean aws?"]),
    (("--workload", "preset:caht"), ["--workload", "did you mean chat?"]),
    (("--workload", "missing.csv"), ["missing.csv", "no such workload"]),
    (("--prefill", "H1000"), ["--prefill", "did you mean H100"]),
    (("--interconnect", "rdma-4000g"), ["--interconnect", "rdma-400g"]),
    (("--ownership", "shove"), ["--ownership", "push, pull"]),
    (("--wire", "fp9"), ["--wire", "fp8"]),
    (("--decode-precision", "fp9"), ["--decode-precision", "fp8"]),
    (("--decode-parallelism", "4"), ["--decode-parallelism", "tp4"]),
    (("--decode-parallelism", "tp4", "--decode-tp", "4"), ["--decode-parallelism", "--decode-tp"]),
    (("--prefix-hit", "130%"), ["--prefix-hit", "130%"]),
    (("--inventory", "H100"), ["--inventory", "NAME:COUNT"]),
    (("--budget", "60/fortnight"), ["--budget", "unknown unit"]),
    (("--catalog", "nowhere.yaml"), ["nowhere.yaml"]),
    (("--quality", "13bit"), ["--quality", "8bit"]),
    (("--bogus", "1"), ["No such option"]),
    (("--engine", "vlm"), ["--engine", "unknown engine 'vlm'", "did you mean vllm"]),
    (("--prefill-kv", "fp9"), ["--prefill-kv: unknown format 'fp9'", "did you mean fp8"]),
    (("--decode-weights", "w4"), ["--decode-weights: unknown format 'w4'"]),
    (("--rate", "-3"), ["1 problem", "--rate: '-3' is not a rate above zero"]),
    (("--slo", "ttft_p90<2"), ["--slo: '2' has no unit"]),
    (("--inventory", "H1000:0, L4"), ["'H1000:0'", "'L4'", "did you mean H100"]),
    (("--inventory", "A100-80:8, A100-SXM4-80GB:8"), ["are both A100-SXM4-80GB"]),
    (("--inventory", "L4:99999999999999999999"), ["whole counts from 1 to"]),
    (("--model", "."), ["config.json", "expected a directory with a config.json"]),
    (("--workload", "/dev/null"), ["a pipe or a device"]),
    (("--workload", "x" * 5000), ["no such workload"]),
    (("--model", "x" * 5000), ["unknown model", "`diptych catalog models` lists them"]),
]
VALUED = ("model", "workload", "slo", "prices", "rate", "budget", "inventory", "prefix-hit", "quality", "prefill", "decode",
          "interconnect", "placement", "wire", "ownership", "overlap", "engine", "provider", "region", "prefill-precision",
          "prefill-weights", "decode-kv", "decode-parallelism", "columns", "cache-tokens")  # fmt: skip
BAD += [((f"--{name}", blank), [f"--{name}: is empty"]) for name in VALUED for blank in ("", "  ")]


@pytest.mark.parametrize(("flags", "expected"), BAD, ids=[" ".join(flags) for flags, _ in BAD])
def test_a_mistake_is_a_sentence_and_writes_nothing(
    flags: tuple[str, ...], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Here
) -> None:
    monkeypatch.chdir(tmp_path)
    given = dict(zip(ASKED[::2], ASKED[1::2], strict=True)) | dict(zip(flags[::2], flags[1::2], strict=True))
    code, out, told = here("plan", *(word for pair in given.items() for word in pair), "--out", "run")
    assert code == 2, told
    assert out == ""
    assert all(text in told for text in expected), told
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_in_a_real_process(tmp_path: Path) -> None:
    done = diptych("plan", *ASKED, "--decode-kv", "fp9", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: 1 problem in the input")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_given_names_everything_that_is_missing(here: Here) -> None:
    code, _, told = here("plan", "--json")
    assert code == 2
    assert all(f"{flag}: " in told for flag in ("--model", "--workload", "--slo", "--prices"))


def test_all_mistakes_come_at_once(here: Here) -> None:
    flags = "--model Lama --workload nope.csv --slo ttft<1 --prices awz --prefill H1000 --rate fast"
    code, _, told = here("plan", *flags.split(), "--out", __file__)
    assert code == 2
    assert int(told.split("error: ")[1].split()[0]) >= 7


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path, here: Here) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    code, _, told = here("plan", *ASKED, "--out", str(tmp_path))
    assert code == 2
    assert "did not write" in told
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("place", ["thesis.tex/run", "thesis.tex/deep/run", "/proc/run"])
def test_a_place_that_cannot_be_written_to_is_a_mistake(place: str, tmp_path: Path, here: Here) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    code, _, told = here("plan", *ASKED, *QUICK, "--out", str(tmp_path / place))
    assert code == 2
    assert "--out: " in told
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_trace_with_names_of_its_own_can_be_planned(tmp_path: Path, here: Here) -> None:
    """Every repair that a refused trace is told of is a flag of this command too."""
    trace = tmp_path / "mine.csv"
    trace.write_text("when,asked,told\n5,900,120\n3,1100,80\n9,10,0\n")
    flags = ["--columns", "isl=asked,osl=told,arrival=when:s"]
    given = dict(zip(ASKED[::2], ASKED[1::2], strict=True)) | {"--workload": str(trace)}
    words = [*(word for pair in given.items() for word in pair), *QUICK, "--quiet", "--out", str(tmp_path / "run")]
    for lacking, repair in (("--columns", flags), ("--sort", ["--sort"]), ("--drop-empty", ["--drop-empty"])):
        code, _, told = here("plan", *words)
        assert code == 2
        assert lacking in told
        words += repair
    assert diptych("plan", *words).returncode == 0
    command = json.loads((tmp_path / "run/inputs.json").read_text())["command"]
    assert "--sort --drop-empty" in command


def test_an_slo_below_physics_is_refused_with_the_floor() -> None:
    asked = dict(zip(ASKED[::2], ASKED[1::2], strict=True)) | {"--slo": "ttft_p90<2s, tpot_p90<10us"}
    done = diptych("plan", *(word for pair in asked.items() for word in pair), *QUICK)
    assert done.returncode == 1
    assert "refused" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    asked = dict(zip(ASKED[::2], ASKED[1::2], strict=True)) | {"--workload": "azure2023_code.csv.gz"}
    words = [
        sys.executable,
        "-m",
        "diptych",
        "plan",
        *(word for pair in asked.items() for word in pair),
        "--out",
        "run",
    ]
    running = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert "the bundled one is used" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    out, told = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in told + out
    assert list(tmp_path.iterdir()) == []


def test_help_is_grouped_and_shows_examples() -> None:
    told = diptych("plan", "--help", COLUMNS="100").stdout
    for panel in ("Question", "Pin an axis", "Pin prefill", "Pin decode", "Output"):
        assert panel in told
    assert "--workload preset:rag --budget 60/h" in " ".join(told.split())


@pytest.mark.parametrize(
    "words", [("explain", "nowhere"), ("explain", str(Path(__file__))), ("explain", str(Path(__file__).parent))]
)
def test_explain_refuses_what_is_no_plan(words: tuple[str, ...]) -> None:
    done = diptych(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr
