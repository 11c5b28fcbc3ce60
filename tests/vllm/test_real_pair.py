"""Our driver over two real vLLM processes: right text, a canary that means it, and what happens when one dies.

Run by `make test-vllm`. What stock vLLM answers with HTTP 200 and garbage is refused before traffic: the same commands are
read by `diptych check`, which names the rule.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pairs import Server, free_port, running

from diptych.catalog.catalog import Catalog
from diptych.deploy.commands.read import read_pair
from diptych.deploy.folders import with_folders
from diptych.engines.check import check
from diptych.engines.rule import Severity
from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.remote.canary import send
from diptych.runtime.remote.drive import Driver
from diptych.runtime.remote.fleet import Fleet, Policy
from diptych.runtime.remote.halves import Prefiller, Protocol

PYTHON = os.environ.get("DIPTYCH_VLLM_PYTHON", ".venv-vllm/bin/python")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"no {PYTHON}: `make test-vllm` makes it"),
]
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "Water boils at a temperature of",
    "The quick brown fox jumps over",
    "In the year 1969, humans first",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from diptych.runtime.model_files import demo_model

    return str(demo_model())


@pytest.fixture(scope="module")
def pair(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    prefill = Server("prefill", free_port())
    decode = Server("decode", free_port(), extra={"kv_load_failure_policy": "recompute"})
    with running(PYTHON, model, tmp_path_factory.mktemp("vllm"), prefill, decode):
        yield prefill, decode


def through(pair: tuple[Server, Server], test, policy: Policy = Policy()):  # noqa: B008
    prefill, decode = pair

    async def run():
        driver = Driver(Fleet(Protocol.VLLM_NIXL, [Prefiller(prefill.url)], [decode.url], policy))
        try:
            return await test(driver)
        finally:
            await driver.close()

    return asyncio.run(run())


async def told(driver: Driver, prompt: str) -> str:
    body = {"model": "m", "prompt": prompt, "max_tokens": 16, "temperature": 0}
    text = b"".join([piece async for piece in await driver.ask("/v1/completions", body)])
    return str(json.loads(text)["choices"][0]["text"])


def test_the_text_is_that_of_one_engine_alone(pair) -> None:
    alone = [pair[1].ask(prompt) for prompt in PROMPTS]

    async def test(driver):
        return [await told(driver, prompt) for prompt in PROMPTS]

    assert through(pair, test) == alone


def test_the_canary_counts_what_really_crossed(pair) -> None:
    async def test(driver):
        return await send(driver, "m")

    told = through(pair, test)
    assert told.crossed > 100
    assert told.is_right


def test_sixteen_at_once(pair) -> None:
    prompts = [f"{prompt} ({number})" for number, prompt in enumerate(PROMPTS * 3)]
    alone = [pair[1].ask(prompt) for prompt in prompts]

    async def test(driver):
        return await asyncio.gather(*(told(driver, prompt) for prompt in prompts))

    assert through(pair, test) == alone


def test_a_killed_prefill_is_an_error_or_recomputed_as_the_policy_says(pair) -> None:
    alone = pair[1].ask(PROMPTS[0])
    pair[0].kill()

    async def refused(driver):
        with pytest.raises(Refusal) as error:
            await told(driver, PROMPTS[0])
        return error.value.status

    async def recomputed(driver):
        text = await told(driver, PROMPTS[0])
        return text, sum(count for (what, _), count in driver.fleet.counts.items() if what == "fallback")

    assert through(pair, refused) == 502
    assert through(pair, recomputed, Policy(recompute=True)) == (alone, 1)


def test_a_killed_decode_is_a_typed_error(pair) -> None:
    pair[1].kill()

    async def refused(driver):
        with pytest.raises(Refusal) as error:
            await told(driver, PROMPTS[0])
        return error.value.status

    assert through(pair, refused, Policy(recompute=True)) == 502


GARBAGE = {
    "block 64 → 128": (("--block-size", "64"), ("--block-size", "128"), {}, "VN32"),
    "block 128 → 256": (("--block-size", "128"), ("--block-size", "256"), {}, "VN32"),
    "float16 with the check off": (
        (),
        ("--dtype", "float16"),
        {"kv_connector_extra_config": {"enforce_handshake_compat": False}},
        "VN23",
    ),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_what_stock_vllm_answers_with_garbage_is_refused_before_traffic(name, model) -> None:
    first, second, extra, rule = GARBAGE[name]
    prefill, decode = Server("prefill", 1, "bfloat16", first, extra), Server("decode", 2, "bfloat16", second, extra)
    commands = [f"VLLM_CPU_KVCACHE_SPACE=1 python {shlex.join(server.command(model))}" for server in (prefill, decode)]
    report = check(with_folders(read_pair(commands[:1], commands[1:])), Catalog.load())
    assert (rule, Severity.SILENT) in [(each.rule.id, each.severity) for each in report.broken], report.broken
