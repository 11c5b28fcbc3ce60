"""A fleet of real processes: every stream's tokens, restarts, rolling restarts, and nothing left behind."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from diptych.runtime.launch.run_dir import PREFIX
from fleets import Load, running, shared_memory, stream, toy_fleet


def test_every_stream_has_the_right_tokens_both_ways_of_ownership_and_through_a_rolling_restart(tmp_path):
    async def go(ownership):
        async with running(toy_fleet(ownership, step=0.005), Path("/tmp")) as living:
            before = living.belongings()
            load = Load(living, count=16)
            while sum(each.served for each in load.streams) < 40:
                await asyncio.sleep(0.05)
            if ownership == "push":
                await asyncio.wait_for(living.supervisor.roll(), 90)
            await load.end()
            assert not [why for each in load.streams if (why := each.wrong())]
            assert not [each for each in load.streams if not each.served], [
                (each.error, each.cut) for each in load.streams if not each.served
            ]
            await living.settled()
            routes = (await living.get("/ui/data"))["routes"]
            assert sum(each["count"] for each in routes if each["path"] == "apart") > len(load.streams) * 0.9, routes
            assert living.belongings() == before

    asyncio.run(go("push"))
    asyncio.run(go("pull"))


def test_the_store_and_the_tiers_are_used(tmp_path):
    async def go():
        async with running(toy_fleet(step=0.002, prefill=1, decode=1, blocks=64), Path("/tmp")) as living:
            load = Load(living, count=8)
            while sum(each.served for each in load.streams) < 120:
                await asyncio.sleep(0.05)
            await load.end()
            assert not [why for each in load.streams if (why := each.wrong())]
            await living.settled()
            tiers = {
                tier["name"]: tier
                for each in (await living.get("/ui/data"))["workers"]
                if each["role"] == "prefill"
                for tier in each["tiers"]
            }
            assert set(tiers) == {"dram", "remote"}
            assert tiers["dram"]["found"] + tiers["remote"]["found"] > 0
            assert tiers["dram"]["damaged"] + tiers["remote"]["damaged"] == 0

    asyncio.run(go())


def test_a_killed_worker_is_started_again_and_nobody_notices(tmp_path):
    async def go():
        async with running(toy_fleet(store=0), Path("/tmp")) as living:
            load = Load(living, count=12)
            while load.flowing < 10:
                await asyncio.sleep(0.02)
            os.kill(living.pid("decode-1"), signal.SIGKILL)
            while living.supervisor.restarts == 0:
                await asyncio.sleep(0.02)
            await load.end()
            assert all(each.served for each in load.streams)
            assert not [why for each in load.streams if (why := each.wrong())]
            await living.settled()

    asyncio.run(go())


# --- the command ------------------------------------------------------------------------------------------------------


class Command:
    """`diptych serve` as a user starts it."""

    def __init__(self, *arguments):
        environ = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "diptych", "serve", "--model", "toy", "--port", "0", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1,
            env=environ | {"A_SECRET_OF_MINE": "hunter2", "COLUMNS": "200"},
        )  # fmt: skip
        self.said = ""

    def until(self, pattern, seconds=90):
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.said)):
            line = self.process.stdout.readline()
            assert line, f"ended: {self.said}"
            assert time.monotonic() < end, self.said
            self.said += line
        return found

    def rest(self, seconds=60):
        self.said += self.process.communicate(timeout=seconds)[0]
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_the_command_says_where_to_look_answers_a_prompt_and_leaves_nothing_at_sigterm():
    with Command("--ask", "Hello there") as command:
        folder = Path(command.until(r"token is in (\S+)/admin\.token")[1])
        command.until(r"> Hello there\n.+\n")
        assert folder.stat().st_mode & 0o777 == 0o700
        secret = (folder / "admin.token").read_text().strip()
        for path in folder.iterdir():
            assert (
                path.is_socket()
                or path.is_dir()
                or path.name in ("lock", "gateway.port")
                or (path.stat().st_mode & 0o077 == 0)
            ), path
        children = psutil.Process(command.process.pid).children(recursive=True)
        assert len(children) == 4  # two workers, the gateway and its spare
        for child in children:
            assert secret not in " ".join(child.cmdline())
            environment = child.environ()
            assert "hunter2" not in environment.values()
            assert secret not in environment.values()
            listening = [each.laddr.ip for each in child.net_connections("tcp") if each.status == "LISTEN"]
            assert set(listening) <= {"127.0.0.1"}
        assert secret not in command.said
        command.process.send_signal(signal.SIGTERM)
        assert command.rest() == 0, command.said
        assert not folder.exists()
        assert not [each for each in children if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        assert not shared_memory()


def test_when_the_supervisor_is_killed_its_processes_end_and_the_next_one_tidies_up():
    with Command() as command:
        folder = Path(command.until(r"token is in (\S+)/admin\.token")[1])
        children = psutil.Process(command.process.pid).children(recursive=True)
        command.process.kill()
        _, alive = psutil.wait_procs(children, timeout=15)
        assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
        assert folder.exists()
    with Command() as command:
        command.until("is served at")
        assert not folder.exists()
        command.process.send_signal(signal.SIGINT)
        assert command.rest() == 0


def test_an_engine_that_cannot_start_ends_the_command_with_its_last_words(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 99,'
        ' "intermediate_size": 128, "rms_norm_eps": 1e-5}'
    )
    (model / "tokenizer.json").write_text("{}")
    own = Path(
        tempfile.mkdtemp(dir="/tmp")
    )  # other fleets on this machine are none of its business; sockets want short paths
    done = subprocess.run(
        [sys.executable, "-m", "diptych", "serve", "--model", str(model), "--port", "0"],
        capture_output=True, text=True, timeout=90, env=os.environ | {"COLUMNS": "200", "XDG_RUNTIME_DIR": str(own)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "holds no *.safetensors" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(own.glob(PREFIX + "*"))
    own.rmdir()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], ["--token-file: is missing", "--tls-cert: is missing"]),
        (["--prefill", "1 x tpu"], ["'1 x tpu' is no pool"]),
        (["--decode", "0 x cpu", "--prefill", "1 x cpu, kv=in8"], ["0 workers", "did you mean int8"]),
        (["--residency", "nvme:var:2GiB, dram:3"], ["is no absolute path", "'3' has no unit"]),
        (["--policy", "decode=never"], ["'decode=never'"]),
        (["--token-file", "/nonexistent"], ["cannot be read"]),
    ],
)
def test_mistakes_are_told_together_and_nothing_starts(arguments, said):
    done = subprocess.run(
        [sys.executable, "-m", "diptych", "serve", "--model", "toy", "--port", "0", *arguments],
        capture_output=True, text=True, timeout=60, env=os.environ | {"COLUMNS": "250"},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert not [each for each in said if each not in done.stderr], done.stderr
    assert "is up" not in done.stderr


def test_a_request_to_a_fleet_at_rest_is_answered_at_once_with_the_right_tokens():
    async def go():
        async with running(toy_fleet(store=0, prefill=1, decode=1), Path("/tmp")) as living:
            said = await stream(living.session, living.url, list(range(40)), 12)
            assert said.served, (said.error, said.cut, living.logs())
            assert not said.wrong()

    asyncio.run(go())
