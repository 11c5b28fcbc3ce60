"""Workers as processes of their own: streams beside what the toy model says, kills, signals, ends."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from worker_processes import MODEL, WorkerProcess, halves

from diptych.runtime.messages import Cancel, Drained, Ended, Params, Submit, Tokens
from diptych.runtime.worker.process import main


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("w")
    made = WorkerProcess(folder, "p", "prefill"), WorkerProcess(folder, "d", "decode")
    try:
        yield [each.connect() for each in made]
    finally:
        for each in made:
            each.close()


def prompt(length, seed=0):
    chance = random.Random(seed * 1000 + length)
    return tuple(chance.randrange(MODEL.vocabulary - 1) for _ in range(length))


@pytest.mark.parametrize("ownership", ["push", "pull"])
def test_thirty_two_prompts_between_two_processes(pair, ownership):
    source, target = pair
    asked = {
        halves(source, target, prompt(length, length), 8, ownership): prompt(length, length)
        for length in range(1, 193, 6)
    }
    for request, tokens in asked.items():
        assert target.end_of(request).reason == "length"
        assert source.end_of(request).reason == "handed"
        assert target.tokens_of(request) == MODEL.expected(tokens, 8)
        assert source.tokens_of(request) == MODEL.expected(tokens, 1)
    assert source.at_rest().blocks == target.at_rest().blocks == 256


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Workers that live as long as the module, and what makes another one; fail points are armed in `points`."""
    folder = tmp_path_factory.mktemp("k")
    points = folder / "points"
    points.mkdir()
    made = []

    def start(name, role):
        worker = WorkerProcess(
            folder,
            name,
            role,
            toy={"prefill_token_s": 0.0005, "decode_step_s": 0.002},
            limits={"wait_ms": 1500, "stall_ms": 200},
            environ={"DIPTYCH_FAILPOINTS": str(points)},
        )
        made.append(worker)
        return worker.connect()

    try:
        yield start, points, {}
    finally:
        for each in made:
            each.close()


def meet(world, point, ownership, deed, **more):
    """Eight handoffs of which one meets an armed fail point: (its worker, the other one, requests with their prompts)."""
    start, points, living = world
    role = point.partition(".")[0]
    other = "decode" if role == "prefill" else "prefill"
    if other not in living:
        living[other] = start(f"the-{other}", other)
    victim = living.pop("spare-" + role, None) or start(f"{role}-{len(list(points.iterdir()))}", role)
    (points / f"{point}.arm").write_text(deed)
    pair = (victim, living[other]) if role == "prefill" else (living[other], victim)
    asked = {halves(*pair, prompt(40, seed), 12, ownership, **more): prompt(40, seed) for seed in range(8)}
    end = time.monotonic() + 15
    while not (points / f"{point}.hit").exists():
        assert time.monotonic() < end, f"{point} was never reached"
        time.sleep(0.005)
    return victim, living[other], asked


def forget_point(world, point):
    for each in world[1].glob(f"{point}.*"):
        each.unlink()


KILLS = [
    ("prefill.prefill", "push"),
    ("prefill.frame", "pull"),
    ("prefill.commit", "push"),
    ("decode.reserve", "pull"),
    ("decode.frame", "push"),
    ("decode.commit", "pull"),
    ("decode.mid_decode", "push"),
]


@pytest.mark.parametrize(("point", "ownership"), KILLS)
def test_a_killed_worker_leaves_typed_failures_and_nothing_held(world, point, ownership):
    victim, left, asked = meet(world, point, ownership, "kill")
    assert victim.process.wait(10) == -signal.SIGKILL
    for request, tokens in asked.items():
        end = left.end_of(request)
        assert isinstance(end, Ended) or end.retry
        for each in (victim, left):
            said = each.tokens_of(request)
            assert said == MODEL.expected(tokens, len(said))
    left.at_rest(3)
    victim.close()
    forget_point(world, point)


@pytest.mark.parametrize(
    ("point", "ownership"), [("prefill.frame", "push"), ("decode.frame", "pull"), ("decode.commit", "push")]
)
def test_a_worker_that_stops_past_the_lease_and_comes_back(world, point, ownership):
    victim, left, asked = meet(world, point, ownership, "stop", lease_ms=300)
    for request in asked:
        end = left.end_of(request)
        assert isinstance(end, Ended) or end.retry
    left.at_rest()
    victim.process.send_signal(signal.SIGCONT)
    for request in asked:
        victim.tell(Cancel(request, 1))
    victim.at_rest()
    source, target = (victim, left) if point.startswith("prefill") else (left, victim)
    for request, tokens in asked.items():
        for each in (victim, left):
            said = each.tokens_of(request)
            assert said == MODEL.expected(tokens, len(said))
        halves(source, target, tokens, 12, ownership, epoch=2, request=request)
    for request, tokens in asked.items():
        assert target.end_of(request, 2).reason == "length"
        assert target.tokens_of(request, 2) == MODEL.expected(tokens, 12)
    left.at_rest()
    victim.close()
    forget_point(world, point)


def test_sigterm_drains_and_ends(tmp_path):
    worker = WorkerProcess(tmp_path, "w", "colocated", toy={"decode_step_s": 0.005}).connect()
    try:
        worker.tell(Submit(b"s" * 16, 1, "whole", prompt(11), Params(max_tokens=60)))
        worker.wait(lambda said: any(isinstance(each, Tokens) for each in said))
        worker.process.terminate()
        worker.ended.wait(20)
        assert worker.tokens_of(b"s" * 16) == MODEL.expected(prompt(11), 60)
        assert any(isinstance(each, Drained) for each in worker.said)
        assert worker.process.wait(10) == 0
        assert sorted(each.name for each in worker.folder.iterdir()) == []
        assert worker.folder.stat().st_mode & 0o777 == 0o700
    finally:
        worker.close()


def test_a_worker_ends_with_the_process_that_started_it(tmp_path):
    config = {"name": "w", "role": "decode", "run_dir": str(tmp_path / "run"), "engine": {"kind": "toy"}}
    text = f"""
import json, os, subprocess, sys, time
config = {config!r} | {{"parent": os.getpid()}}
open({str(tmp_path / "w.json")!r}, "w").write(json.dumps(config))
worker = subprocess.Popen([sys.executable, "-m", "diptych.runtime.worker", "--config", {str(tmp_path / "w.json")!r}])
while not os.path.exists({str(tmp_path / "run" / "w.control")!r}):
    time.sleep(0.02)
print(worker.pid, flush=True)
os._exit(0)
"""
    parent = subprocess.run(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=60
    )
    pid, end = int(parent.stdout), time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"role": "boss"}, 2, "role"),
        ({"engine": {"kind": "toy", "heads": 3}}, 2, "heads"),
        ({"engine": {"kind": "magic"}}, 2, "kind"),
        ({"control": "tcp:0.0.0.0:0"}, 2, "leaves this host"),
        ({"peer": "tcp:10.1.2.3:0"}, 2, "leaves this host"),
        ({"nonsense": 1}, 2, "nonsense"),
        ({"token_file": "/nonexistent"}, 1, "nonexistent"),
    ],
)
def test_what_cannot_be_run_is_said_without_a_traceback(tmp_path, capsys, change, code, said):
    config = {"name": "w", "role": "decode", "run_dir": str(tmp_path / "run"), "engine": {"kind": "toy"}} | change
    (tmp_path / "w.json").write_text(json.dumps(config))
    assert main(["--config", str(tmp_path / "w.json")]) == code
    assert said in capsys.readouterr().err


def test_a_run_directory_open_to_others_is_refused(tmp_path, capsys):
    (tmp_path / "run").mkdir(mode=0o755)
    config = {"name": "w", "role": "decode", "run_dir": str(tmp_path / "run"), "engine": {"kind": "toy"}}
    (tmp_path / "w.json").write_text(json.dumps(config))
    assert main(["--config", str(tmp_path / "w.json")]) == 2
    assert "open to others" in capsys.readouterr().err


def test_a_worker_whose_parent_has_ended_does_not_start(tmp_path):
    config = {"name": "w", "role": "decode", "run_dir": str(tmp_path / "run"), "engine": {"kind": "toy"}, "parent": 1}
    (tmp_path / "w.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "diptych.runtime.worker", "--config", str(tmp_path / "w.json")]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (found.returncode, found.stderr.count("\n")) == (1, 1)
    assert "has ended" in found.stderr
