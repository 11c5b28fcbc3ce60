"""A worker killed (SIGKILL), or a request given up, at each stage of a handoff: the other side is told and holds nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from joint_process import BLOCKS, TOKENS, compute, run
from joints import KEY, Worker, values

from diptych.integrations.vllm.jobs import Fetch, Keep, Make
from diptych.integrations.vllm.ticket import Place

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["joint_process"])


@pytest.fixture(scope="module", autouse=True)
def forks() -> None:
    """A process that has imported everything, of which others are copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()


class Process:
    """A joint in its own process."""

    def __init__(self, folder: Path, role: str, **settings: object) -> None:
        self.folder = folder
        self.pipe, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=run, args=(role, settings, str(folder), theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.place = Place(*self.read())

    def read(self) -> Any:
        assert self.pipe.poll(30), "nothing is told"
        return self.pipe.recv()

    def tell(self, *deed: str) -> None:
        self.pipe.send(deed)

    def until(self, name: str) -> None:
        """It would have told vLLM so."""
        while name not in self.read():
            pass

    def arm(self, point: str, deed: str) -> None:
        (self.folder / f"{point}.arm").write_text(deed)

    def hit(self, point: str) -> None:
        end = time.monotonic() + 20
        while not (self.folder / f"{point}.hit").exists():
            assert time.monotonic() < end, f"{point} was not reached"
            time.sleep(0.005)

    def go(self, point: str) -> None:
        (self.folder / f"{point}.go").write_text("")

    def ended(self) -> int | None:
        self.process.join(20)
        return self.process.exitcode

    def close(self) -> None:
        self.process.kill()
        self.process.join(20)
        self.pipe.close()


@pytest.fixture
def made() -> Iterator[list]:
    workers: list = []
    yield workers
    for worker in workers:
        worker.close() if isinstance(worker, Process) else worker.joint.close()


def kept(made: list, worker: object) -> object:
    made.append(worker)
    return worker


def wants(decode: Worker, place: Place, meeting: str) -> None:
    ranks = () if meeting else (place,)
    decode.joint.fetch(Fetch(KEY, "d", BLOCKS, TOKENS, 0, "same", ranks=ranks, meeting=meeting))


PREFILL_POINTS = [
    ("vllm.prefill.send", "pull"),
    ("prefill.frame", "pull"),
    ("prefill.frame", "push"),
    ("vllm.prefill.send", "push"),
]


@pytest.mark.parametrize(("point", "way"), PREFILL_POINTS)
def test_a_prefill_worker_that_is_killed_fails_the_prompt_at_decode(made, tmp_path, free_ports, point, way) -> None:
    port = free_ports(1)
    pushes = {"ownership": "push", "port": port} if way == "push" else {}
    prefill, decode = kept(made, Process(tmp_path, "prefill", **pushes)), kept(made, Worker(32, "torch.float32"))
    prefill.arm(point, "kill")
    if way == "push":
        wants(decode, prefill.place, f"tcp:127.0.0.1:{port}")
        prefill.tell("make")
        prefill.until("roomy")
        prefill.tell("compute")
    else:
        prefill.tell("keep")
        wants(decode, prefill.place, "")
    assert decode.wait(received="d").failed == {"d"}
    assert prefill.ended() == -signal.SIGKILL
    assert decode.joint.counted()["open_transfers"] == 0
    again = kept(made, Worker(32, "torch.float32"))  # and goes on with another
    told = values(40)
    again.put(told, [3, 4])
    key = (b"another-handoff!", 1)
    again.joint.keep(Keep(key, "p", (3, 4), 40))
    decode.fetch(again, 40, [7, 8], key=key, request="e")
    assert "e" not in decode.wait(received="e").failed
    np.testing.assert_array_equal(decode.get(40, [7, 8]), told)


DECODE_POINTS = ["vllm.decode.reserve", "decode.frame", "vllm.decode.write", "vllm.decode.activate"]


@pytest.mark.parametrize("way", ["pull", "push"])
@pytest.mark.parametrize("point", DECODE_POINTS)
def test_a_decode_worker_that_is_killed_leaves_prefill_free(made, tmp_path, free_ports, point, way) -> None:
    """Long before the lease: the connection's end says it."""
    port = free_ports(1)
    pushes = {"ownership": "push", "port": port} if way == "push" else {}
    prefill = kept(made, Worker(32, "torch.float32", lease_s=60, wait_s=60, **pushes))
    decode = kept(made, Process(tmp_path, "decode"))
    decode.arm(point, "kill")
    if way == "push":
        decode.tell("reserve", f"tcp:127.0.0.1:{port}")
        prefill.joint.make(Make(KEY, "p", TOKENS, "same"))
        prefill.wait(**{"forsaken" if point == "vllm.decode.reserve" else "roomy": "p"})
        compute(prefill)
    else:
        prefill.joint.keep(Keep(KEY, "p", BLOCKS, TOKENS))
        decode.tell("fetch", prefill.place.worker, prefill.place.doorbell)
    assert decode.ended() == -signal.SIGKILL
    prefill.wait(sent="p", seconds=20)
    assert prefill.joint.leases == 0


@pytest.mark.parametrize("point", [*DECODE_POINTS[:3], "vllm.prefill.send"])
@pytest.mark.parametrize("way", ["pull", "push"])
def test_a_request_that_is_given_up_at_a_stage_leaves_nothing_on_either_side(
    made, tmp_path, free_ports, point, way
) -> None:
    """As when its client has left: vLLM says so to decode, and under push to prefill as well."""
    port = free_ports(1)
    pushes = {"ownership": "push", "port": port} if way == "push" else {}
    prefill = kept(made, Process(tmp_path, "prefill", lease_s=60, wait_s=60, **pushes))
    decode = kept(made, Process(tmp_path, "decode", wait_s=60))
    decode.arm(point, "wait")
    if way == "push":
        decode.tell("reserve", f"tcp:127.0.0.1:{port}")
        prefill.tell("make")
        if point == "vllm.decode.reserve":
            decode.hit(point)
        else:
            prefill.until("roomy")
            prefill.tell("compute")
    else:
        prefill.tell("keep")
        decode.tell("fetch", prefill.place.worker, prefill.place.doorbell)
    decode.hit(point)
    decode.tell("cancel")
    if way == "push" and point == "vllm.decode.reserve":
        prefill.tell("halt")
    time.sleep(0.05)
    decode.go(point)
    decode.until("received")
    prefill.until("sent")
