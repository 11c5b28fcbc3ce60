"""Processes that start in turn, are started again, are given up, and end in order."""

import asyncio
import json
import os
import re
import signal
import sys
import time
from dataclasses import replace

import psutil
import pytest

from diptych.runtime.launch.program import Program, Turn
from diptych.runtime.launch.supervisor import DidNotStart, Patience, Supervisor

CHILD = """
import os, signal, sys, time, logging
from pathlib import Path

def main():
    mark, how = Path(sys.argv[1]), sys.argv[2]
    log = Path(sys.argv[3])
    def note(what):
        with log.open("a") as file:
            file.write(f"{what} {mark.name}\\n")
    def leave(*_):
        if how == "stubborn":
            return
        note("end")
        mark.unlink(missing_ok=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, leave)
    if how == "broken":
        logging.error("the sky is falling")
        sys.exit(3)
    note("start")
    mark.write_text(str(os.getpid()))
    if how == "brief":
        time.sleep(0.05)
        mark.unlink()
        sys.exit(4)
    while True:
        time.sleep(0.05)

if __name__ == "__main__":
    main()
"""
QUICK = Patience(start=20, drain=5, pause=0.01, longest_pause=0.02, crashes=5, window=60)


@pytest.fixture
def child(tmp_path):
    (tmp_path / "a_child_of_tests.py").write_text(CHILD)

    def program(name, turn, how="steady", **more):
        mark = tmp_path / f"{name}.mark"
        return Program(name, turn, "a_child_of_tests", (str(mark), how, str(tmp_path / "events")), mark.exists, (mark,),
                       more={"PYTHONPATH": str(tmp_path), **more})  # fmt: skip

    return program


def left():
    """Children of this kind that are still there; the test runner may have others of its own."""
    return [each for each in psutil.Process().children() if "a_child_of_tests" in " ".join(each.cmdline())]


def events(tmp_path):
    return [tuple(line.replace(".mark", "").split()) for line in (tmp_path / "events").read_text().splitlines()]


def supervised(tmp_path, programs, patience=QUICK):
    (tmp_path / "logs").mkdir(exist_ok=True)
    said = []
    return Supervisor(programs, tmp_path / "logs", said.append, patience), said


async def until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def three(child):
    return [child("gateway", Turn.GATEWAY), child("worker", Turn.WORKER), child("store", Turn.STORE)]


def test_they_start_in_turn_and_end_the_other_way_round(tmp_path, child):
    async def go():
        supervisor, said = supervised(tmp_path, three(child))
        await supervisor.start()
        assert [line for line in said if line.endswith("is up")] == ["store is up", "worker is up", "gateway is up"]
        pids = [each.process.pid for each in supervisor.running.values()]
        await supervisor.stop()
        assert not [pid for pid in pids if psutil.pid_exists(pid)]

    asyncio.run(go())
    order = ["store", "worker", "gateway"]
    assert events(tmp_path) == [("start", name) for name in order] + [("end", name) for name in reversed(order)]


def test_one_that_is_killed_is_started_again(tmp_path, child):
    async def go():
        supervisor, said = supervised(tmp_path, three(child))
        await supervisor.start()
        before = supervisor.running["worker"].process.pid
        os.kill(before, signal.SIGKILL)
        await until(lambda: "worker is up again" in said)
        assert supervisor.running["worker"].process.pid != before
        assert any(re.match(r"worker killed by SIGKILL; again in 0\.0 s", line) for line in said)
        await supervisor.stop()

    asyncio.run(go())


def test_a_spare_takes_over_and_there_is_another_one_then(tmp_path, child):
    async def go():
        plain = child("gateway", Turn.GATEWAY)
        supervisor, said = supervised(tmp_path, [replace(plain, spare=True)])
        await supervisor.start()
        await until(lambda: "gateway" in supervisor.spares)
        for _ in range(2):
            spare = supervisor.spares["gateway"].process.pid
            said.clear()
            os.kill(supervisor.running["gateway"].process.pid, signal.SIGKILL)
            await until(lambda: "gateway is up again" in said and "gateway" in supervisor.spares)
            assert supervisor.running["gateway"].process.pid == spare
        os.kill(supervisor.spares["gateway"].process.pid, signal.SIGKILL)
        await supervisor.spares["gateway"].ended
        said.clear()
        os.kill(supervisor.running["gateway"].process.pid, signal.SIGKILL)
        await until(lambda: "gateway is up again" in said)
        await supervisor.stop()
        assert not left()

    asyncio.run(go())


def test_one_that_keeps_ending_is_given_up_and_the_others_go_on(tmp_path, child):
    async def go():
        supervisor, said = supervised(tmp_path, [*three(child), child("weak", Turn.WORKER)])
        await supervisor.start()
        for _ in range(QUICK.crashes):
            pid = supervisor.running["weak"].process.pid
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: "weak" in supervisor.given_up or supervisor.running["weak"].process.pid != pid)
        await until(lambda: "weak" in supervisor.given_up)
        assert "keeps ending and is given up" in said[-1]
        assert supervisor.running["worker"].code is None
        await supervisor.stop()

    asyncio.run(go())


def test_one_that_cannot_start_ends_all_with_its_last_words(tmp_path, child):
    async def go():
        supervisor, _ = supervised(tmp_path, [*three(child), child("bad", Turn.WORKER, "broken")])
        with pytest.raises(DidNotStart, match=r"(?s)bad ended with status 3.*the sky is falling"):
            await supervisor.start()
        assert not supervisor.running
        assert not left()

    asyncio.run(go())


def test_one_that_never_serves_ends_all(tmp_path, child):
    async def go():
        program = child("idle", Turn.WORKER)
        deaf = Program(program.name, program.turn, program.module, program.arguments, lambda: False, program.leaves,
                       more=program.more)  # fmt: skip
        supervisor, _ = supervised(tmp_path, [deaf], Patience(start=0.5))
        with pytest.raises(DidNotStart, match="did not serve within"):
            await supervisor.start()
        assert not left()

    asyncio.run(go())


def test_a_rolling_restart_takes_one_worker_at_a_time_and_leaves_the_rest(tmp_path, child):
    async def go():
        programs = [*three(child), child("other", Turn.WORKER)]
        supervisor, said = supervised(tmp_path, programs)
        await supervisor.start()
        before = {name: each.process.pid for name, each in supervisor.running.items()}
        await asyncio.gather(supervisor.roll(), supervisor.roll())  # the second one changes nothing
        after = {name: each.process.pid for name, each in supervisor.running.items()}
        assert {name for name in before if before[name] != after[name]} == {"worker", "other"}
        assert said[-1] == "every worker was restarted"
        assert supervisor.restarts == 0
        await supervisor.stop()

    asyncio.run(go())
    told = [event for event in events(tmp_path) if event[1] in ("worker", "other")][2:6]
    assert told in (
        [("end", "worker"), ("start", "worker"), ("end", "other"), ("start", "other")],
        [("end", "other"), ("start", "other"), ("end", "worker"), ("start", "worker")],
    )


def test_what_does_not_heed_a_sigterm_or_stands_still_is_killed(tmp_path, child):
    async def go():
        supervisor, _ = supervised(
            tmp_path, [child("deaf", Turn.WORKER, "stubborn"), child("still", Turn.WORKER)], Patience(drain=0.5)
        )
        await supervisor.start()
        os.kill(supervisor.running["still"].process.pid, signal.SIGSTOP)
        pids = [each.process.pid for each in supervisor.running.values()]
        await supervisor.stop()
        assert not [pid for pid in pids if psutil.pid_exists(pid)]

    asyncio.run(go())


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_the_whole_life_ends_at_a_signal_and_at_once_at_the_second(tmp_path, child, signals):
    how = "stubborn" if len(signals) > 1 else "steady"

    async def go():
        supervisor, _ = supervised(tmp_path, [child("one", Turn.GATEWAY, how)], Patience(drain=60))

        async def up():
            for place, number in enumerate(signals):
                asyncio.get_running_loop().call_later(0.1 + place * 0.5, os.kill, os.getpid(), number)

        assert await asyncio.wait_for(supervisor.run(up), 20) == 0
        assert not left()

    asyncio.run(go())


def test_a_signal_while_they_start_ends_those_that_have(tmp_path, child):
    async def go():
        program = child("slow", Turn.WORKER)
        deaf = Program(program.name, program.turn, program.module, program.arguments, lambda: False, program.leaves,
                       more=program.more)  # fmt: skip
        supervisor, _ = supervised(tmp_path, [child("store", Turn.STORE), deaf])

        async def never():
            raise AssertionError

        asyncio.get_running_loop().call_later(1.5, os.kill, os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(supervisor.run(never), 20) == 0
        assert not left()

    asyncio.run(go())


def test_a_gateway_that_keeps_ending_ends_the_fleet(tmp_path, child):
    async def go():
        supervisor, _ = supervised(tmp_path, [child("store", Turn.STORE), child("gateway", Turn.GATEWAY, "brief")])

        async def up():
            pass

        assert await asyncio.wait_for(supervisor.run(up), 30) == 1
        assert not left()

    asyncio.run(go())


def test_children_see_what_they_need_and_no_secret_of_ours(tmp_path, child, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    monkeypatch.setenv("DIPTYCH_ADMIN_TOKEN", "another")
    monkeypatch.setenv("DIPTYCH_CACHE", "/a/cache")
    seen = Program("x", Turn.WORKER, "m", (), bool, threads=3).environment()
    assert not {"OPENAI_API_KEY", "DIPTYCH_ADMIN_TOKEN"} & set(seen)
    assert (seen["DIPTYCH_CACHE"], seen["OMP_NUM_THREADS"]) == ("/a/cache", "3")
    assert set(seen) <= set(os.environ) | {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}


def test_logs_are_json_lines_when_asked_for(tmp_path, child):
    async def go():
        supervisor, _ = supervised(tmp_path, [child("bad", Turn.WORKER, "broken", DIPTYCH_LOG="json")])
        with pytest.raises(DidNotStart):
            await supervisor.start()

    asyncio.run(go())
    line = json.loads((tmp_path / "logs" / "bad.log").read_text().splitlines()[0])
    assert (line["level"], line["message"]) == ("ERROR", "the sky is falling")
    assert sys.platform != "linux" or line["pid"] > 0
