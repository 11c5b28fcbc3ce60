"""`diptych serve --engine vllm` over real vLLM processes, as a person types it: checked, asked, looked at, one side killed.

A pair that stock vLLM answers with HTTP 200 and garbage is refused before traffic, by the rule's id; and by the canary's text
where nobody says what the workers run on.
"""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pairs import Server, free_port, running

from diptych.runtime.remote.canary import send
from diptych.runtime.remote.drive import Driver
from diptych.runtime.remote.fleet import Fleet
from diptych.runtime.remote.halves import Prefiller, Protocol
from serve_command import Command, command, look

PYTHON = os.environ.get("DIPTYCH_VLLM_PYTHON", ".venv-vllm/bin/python")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"no {PYTHON}: `make test-vllm` makes it"),
]
PATIENCE = 180
PROMPT = "The capital of France is"
LONG = " ".join(f"Item {number} is {number * 3 % 89}." for number in range(30))


@pytest.fixture(scope="module")
def model() -> str:
    from diptych.runtime.model_files import demo_model

    return str(demo_model())


@pytest.fixture(scope="module")
def pair(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    servers = Server("prefill", free_port()), Server("decode", free_port())
    with running(PYTHON, model, tmp_path_factory.mktemp("serve"), *servers):
        yield servers


def words(pair: tuple[Server, Server], *more: str) -> tuple[str, ...]:
    return "--engine", "vllm", "--prefill-url", pair[0].url, "--decode-url", pair[1].url, *more


async def state(serving: Command, role: str, condition: str, seconds: float = 90) -> dict:
    """The gateway's snapshot once its worker of a role is in a condition."""
    for _ in range(int(seconds)):
        data = await serving.data()
        if next(each for each in data["workers"] if each["role"] == role)["condition"] == condition:
            return data
        await asyncio.sleep(1)
    raise AssertionError(data["workers"])


def test_checked_asked_looked_at_and_what_is_seen_when_each_side_is_killed(pair) -> None:
    """Two gateways over one pair: one that fails what prefill does not do, and one that has decode compute it."""
    prefill, decode = pair

    async def go():
        more = ("--prices", "prefill=4, decode=2", "--ask", "What is a lighthouse?")
        async with (
            command(*words(pair, *more), patience=PATIENCE) as strict,
            command(*words(pair, "--policy", "prefill=recompute"), patience=PATIENCE) as mild,
        ):
            alone = await asyncio.to_thread(decode.ask, PROMPT, 8)
            assert await strict.wait("> What is a lighthouse?"), strict.text
            assert await mild.wait(), mild.text
            assert "no rule forbids these pairs" in strict.text
            assert "over vllm-nixl" in strict.text
            await whole(strict, alone)
            prefill.kill()
            status, told = await strict.ask(prompt=PROMPT)
            assert (status, told["error"]["code"]) in ((502, "prefill_failed"), (503, "no_prefill_worker"))
            assert (await state(strict, "prefill", "down"))["status"] != "ready"
            assert (await strict.told("/ready"))[0] == 503
            assert (await look("status", strict))[0] == 1
            for _ in range(2):
                status, told = await mild.ask(prompt=PROMPT, max_tokens=8, temperature=0)
                assert (status, told["choices"][0]["text"]) == (200, alone)
            data = await state(mild, "prefill", "down")
            assert data["fallbacks"], data
            assert data["status"] == "ready"
            decode.kill()
            status, told = await mild.ask(prompt=PROMPT)
            assert (status, told["error"]["code"]) in ((502, "decode_failed"), (503, "no_decode_worker"))
            await state(mild, "decode", "down")
        assert strict.code == mild.code == 0, strict.text + mild.text
        async with command(*words(pair), patience=PATIENCE) as late:
            assert not await late.wait(), late.text
        assert late.code == 2
        assert late.text.count("connection refused") == 2

    asyncio.run(go())


async def whole(serving: Command, alone: str) -> None:
    """What a person and Prometheus see of a gateway that serves."""
    status, told = await serving.ask(prompt=PROMPT, max_tokens=8, temperature=0)
    assert (status, told["choices"][0]["text"]) == (200, alone)
    assert (await serving.ask(model="another"))[0] == 404
    assert (await serving.ask(prompt=["a", "b"]))[0] == 400
    code, text = await look("status", serving)
    assert code == 0, text
    code, text = await look("top", serving)
    assert "remote prefill" in text, text
    data = await serving.data()
    assert data["status"] == "ready"
    assert sum(each["bytes"] for each in data["transfers"]) > 0, data["transfers"]
    assert all(each["blocks"] for each in data["workers"]), data["workers"]
    assert 'vllm:generation_tokens_total{model_name="m"}' in (await serving.told("/metrics"))[1]
    assert "<!doctype html>" in (await serving.told("/ui"))[1]


def test_blocks_that_stock_vllm_garbles_are_refused_before_traffic_and_seen_by_the_canary(
    model, tmp_path, monkeypatch
) -> None:
    """By the rule where the workers say what they run on; by the text of one prompt where they do not."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    servers = (
        Server("prefill", free_port(), "bfloat16", ("--block-size", "64")),
        Server("decode", free_port(), "bfloat16", ("--block-size", "128")),
    )

    async def go():
        async with command(*words(servers), patience=PATIENCE) as serving:
            assert not await serving.wait(), serving.text
        assert serving.code == 1, serving.text
        assert "VN32" in serving.text
        assert asked(servers[0]) == asked(servers[1]) == 0
        driver = Driver(Fleet(Protocol.VLLM_NIXL, [Prefiller(servers[0].url)], [servers[1].url]))
        try:
            told = await send(driver, "m")
        finally:
            await driver.close()
        assert told.crossed > 0
        assert not told.is_right, told

    with running(PYTHON, model, tmp_path, *servers):
        asyncio.run(go())


def test_a_pair_that_differs_is_served_over_our_connector_by_pull_and_by_push(model, tmp_path) -> None:
    """Model dtype and blocks that stock vLLM refuses or garbles; who moves KV is the gateway's choice."""
    meeting = free_port()
    ours = {"kv_connector": "DiptychConnector", "kv_connector_module_path": "diptych.integrations.vllm"}
    push = {"kv_connector_extra_config": {"ownership": "push", "port": meeting}}
    servers = (
        Server("prefill", free_port(), "bfloat16", ("--block-size", "64"), {**ours, **push}),
        Server("decode", free_port(), "float32", ("--block-size", "128"), ours),
    )
    first, second = (server.url for server in servers)

    async def go():
        pulled = "--engine", "vllm", "--connector", "diptych", "--prefill-url", first, "--decode-url", second
        async with command(*pulled, patience=PATIENCE) as serving:
            assert await serving.wait(), serving.text
            status, told = await serving.ask(prompt=LONG, max_tokens=8, temperature=0)
            assert status == 200, told
            assert "over vllm-nixl" in serving.text
            data = await serving.data()
            assert sum(each["bytes"] for each in data["transfers"]) > 0, data["transfers"]
        met = f"{first},{meeting}"
        pushed = (
            "--engine",
            "vllm",
            "--connector",
            "diptych",
            "--ownership",
            "push",
            "--prefill-url",
            met,
            "--decode-url",
            second,
        )
        async with command(*pushed, patience=PATIENCE) as serving:
            assert await serving.wait(), serving.text
            assert "over vllm-diptych-push" in serving.text
            assert (await serving.ask(prompt=f"Again: {LONG}", max_tokens=8, temperature=0))[0] == 200

    with running(PYTHON, model, tmp_path, *servers):
        asyncio.run(go())


def asked(server: Server) -> float:
    """Requests that a worker has had."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:request_success_total"))
