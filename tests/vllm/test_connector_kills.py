"""Either worker killed, or the client gone, at each stage of a handoff: the colocated text or a typed end, and nothing is left.

Between two vLLM processes over a small random model, since each kill costs a start.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from asking import TEXT, at_rest, post, pushed, read, server, through, ticket
from even_heads import make
from pairs import Server, running

PYTHON = os.environ.get("DIPTYCH_VLLM_PYTHON", ".venv-vllm/bin/python")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"no {PYTHON}: `make test-vllm` makes it"),
]
PROMPT = " ".join(TEXT)


class Pair:
    """A pair whose processes are started again after they were killed."""

    def __init__(self, model: str, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.prefill = server("prefill", "float32", 64, lease_s=20.0, wait_s=20.0)
        self.decode = server("decode", "float32", 128, wait_s=20.0)

    def up(self) -> None:
        """Start what has ended."""
        ended = [
            each for each in (self.prefill, self.decode) if each.process is None or each.process.poll() is not None
        ]
        for each in ended:
            each.start(PYTHON, self.model, self.folder)
        for each in ended:
            each.wait()

    def arm(self, point: str, deed: str) -> None:
        for file in self.folder.glob(f"{point}.*"):
            file.unlink()
        (self.folder / f"{point}.arm").write_text(deed)

    def hit(self, point: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not (self.folder / f"{point}.hit").exists():
            assert time.monotonic() < end, f"{point} was not reached"
            time.sleep(0.01)

    def dies(self, which: Server, point: str) -> None:
        """Its worker has killed itself at a point; the rest of it is ended too, and started again by the next test."""
        self.hit(point)
        which.kill()

    def go(self, point: str) -> None:
        (self.folder / f"{point}.go").write_text("")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("kills")
    model = str(make(folder / "model"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIPTYCH_FAILPOINTS", str(folder))
        made = Pair(model, folder)
        with running(PYTHON, model, folder, made.prefill, made.decode):
            yield made


@pytest.mark.parametrize(
    ("point", "way"), [("vllm.prefill.send", "pull"), ("prefill.frame", "pull"), ("prefill.frame", "push")]
)
def test_prefill_killed_in_the_transfer_is_recomputed(pair, point, way) -> None:
    pair.up()
    alone = (200, pair.decode.ask(PROMPT, 6))
    params = ticket(pair.prefill, PROMPT) if way == "pull" else {}
    pair.arm(point, "kill")
    found = read(pair.decode, PROMPT, params) if way == "pull" else pushed(pair.prefill, pair.decode, PROMPT)
    assert found == alone
    pair.dies(pair.prefill, point)
    assert at_rest(pair.decode)


def test_prefill_killed_before_the_read_is_recomputed(pair) -> None:
    pair.up()
    alone, params = (200, pair.decode.ask(PROMPT, 6)), ticket(pair.prefill, PROMPT)
    pair.prefill.kill()
    assert read(pair.decode, PROMPT, params) == alone
    assert at_rest(pair.decode)


def test_prefill_killed_after_the_transfer_changes_nothing(pair) -> None:
    """Decode has its own copy from the commit on."""
    pair.up()
    alone = (200, pair.decode.ask(PROMPT, 12))
    params = ticket(pair.prefill, PROMPT)
    pair.arm("vllm.decode.activate", "wait")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(read, pair.decode, PROMPT, params, 12)
        pair.hit("vllm.decode.activate")
        pair.prefill.kill()
        pair.go("vllm.decode.activate")
        assert answer.result() == alone
    assert at_rest(pair.decode)


@pytest.mark.parametrize(
    ("point", "way"),
    [
        ("vllm.decode.reserve", "pull"),
        ("decode.frame", "pull"),
        ("vllm.decode.write", "pull"),
        ("vllm.decode.activate", "pull"),
        ("decode.frame", "push"),
    ],
)
def test_decode_killed_leaves_prefill_free(pair, point, way) -> None:
    pair.up()
    params = ticket(pair.prefill, PROMPT) if way == "pull" else {}
    pair.arm(point, "kill")
    with suppress(OSError, json.JSONDecodeError):  # its connection ends, or HTTP 500
        status, _ = read(pair.decode, PROMPT, params) if way == "pull" else pushed(pair.prefill, pair.decode, PROMPT)
        assert status >= 500
    pair.dies(pair.decode, point)
    assert at_rest(pair.prefill)


def test_decode_killed_before_the_read_frees_prefill_with_its_lease(pair) -> None:
    pair.up()
    ticket(pair.prefill, PROMPT)
    pair.decode.kill()
    assert at_rest(pair.prefill)


@pytest.mark.parametrize("way", ["pull", "push"])
@pytest.mark.parametrize("stage", ["vllm.decode.reserve", "decode.frame", "vllm.decode.write", "vllm.prefill.send"])
def test_a_client_that_leaves_at_a_stage_leaves_nothing(pair, stage, way) -> None:
    pair.up()
    params = ticket(pair.prefill, PROMPT) if way == "pull" else None
    pair.arm(stage, "wait")
    if params is None:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(leave_both, pair, stage)
            asked.result()
    else:
        with leaving(pair.decode, params):
            pair.hit(stage)
    time.sleep(0.5)
    pair.go(stage)
    assert at_rest(pair.prefill)
    assert at_rest(pair.decode)
    assert through(pair.prefill, pair.decode, PROMPT) == (200, pair.decode.ask(PROMPT, 6))


def test_a_client_that_leaves_prefill_or_decode_alone_leaves_nothing(pair) -> None:
    """Of a pushed prompt only one half was asked, and its client leaves."""
    pair.up()
    named = {"transfer_id": "xfer-alone-0123456789"}
    at = f"http://127.0.0.1:{pair.prefill.extra['kv_connector_extra_config']['port']}"
    first = {**named, "do_remote_decode": True, "do_remote_prefill": False}
    second = {**named, "do_remote_prefill": True, "do_remote_decode": False, "remote_bootstrap_addr": at}
    for of, params in ((pair.prefill, first), (pair.decode, {**second, "transfer_id": "xfer-other-0123456789"})):
        with leaving(of, params):
            time.sleep(1.0)
        assert at_rest(pair.prefill)
        assert at_rest(pair.decode)


def test_prefill_that_nobody_meets_answers_all_the_same(pair) -> None:
    """It waits for room for its limit, and then computes for nobody."""
    pair.up()
    params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "xfer-nobody-0123456789"}
    status, _ = post(pair.prefill, PROMPT, kv_transfer_params=params)
    assert status == 200
    assert at_rest(pair.prefill)


class leaving:
    """A client that asks, and closes its connection before it is answered."""

    def __init__(self, of: Server, params: dict) -> None:
        body = json.dumps({"model": "m", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "stream": True,
                           "kv_transfer_params": params}).encode()  # fmt: skip
        self.sock = socket.create_connection(("127.0.0.1", of.port))
        fields = (
            "POST /v1/completions HTTP/1.1",
            "Host: x",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        head = "\r\n".join((*fields, "", ""))
        self.sock.sendall(head.encode() + body)

    def __enter__(self) -> leaving:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def leave_both(pair: Pair, stage: str) -> None:
    named = {"transfer_id": f"xfer-{stage}-{time.time_ns()}"}
    at = f"http://127.0.0.1:{pair.prefill.extra['kv_connector_extra_config']['port']}"
    second = {**named, "do_remote_prefill": True, "do_remote_decode": False, "remote_bootstrap_addr": at}
    with (
        leaving(pair.decode, second),
        leaving(pair.prefill, {**named, "do_remote_decode": True, "do_remote_prefill": False}),
    ):
        pair.hit(stage)
