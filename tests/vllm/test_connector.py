"""DiptychConnector between two real vLLM processes that differ: right text, or a typed end; never another request's KV.

Each pair takes minutes to start, so that one pair serves many questions. Forced tokens are prompts cut at many places: decode
computes one token from KV that prefill made, beside the same token computed by itself. Kills are in `test_connector_kills.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from asking import (
    FORCED,
    LEASE_S,
    NEAR,
    TEXT,
    at_rest,
    chances,
    divergence,
    likeliest,
    pushed,
    read,
    server,
    through,
    ticket,
    told,
)
from pairs import Server, running

PYTHON = os.environ.get("DIPTYCH_VLLM_PYTHON", ".venv-vllm/bin/python")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"no {PYTHON}: `make test-vllm` makes it"),
]
FP8 = ("--kv-cache-dtype", "fp8")
MISMATCHES = {
    "block 64 to 128, decode in float16": (("bfloat16", 64), ("float16", 128), (), ""),
    "block 64 to 128, decode's KV in fp8": (("bfloat16", 64), ("bfloat16", 128), FP8, ""),
    "block 128 to 64": (("bfloat16", 128), ("bfloat16", 64), (), ""),
    "block 128 to 256, decode in float32": (("bfloat16", 128), ("float32", 256), (), ""),
    "float32 to bfloat16, cast before it crosses": (("float32", 64), ("bfloat16", 128), (), "bfloat16"),
    "decode's KV in fp8, fp8 on the wire": (("bfloat16", 128), ("bfloat16", 64), FP8, "fp8"),
    "int8 on the wire": (("bfloat16", 128), ("float32", 64), (), "int8"),
}
"""Prefill's dtype and block, decode's, decode's flags, and the wire's form."""


@pytest.fixture(scope="module")
def model() -> str:
    from diptych.runtime.model_files import demo_model

    return str(demo_model())


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_that_stock_vllm_fails_or_garbles(name, model, tmp_path) -> None:
    """Pulled and pushed: the same KV, so the same chances."""
    (first, size), (second, other), flags, wire = MISMATCHES[name]
    wires = {"wire": wire} if wire else {}
    prefill, decode = server("prefill", first, size, **wires), server("decode", second, other, *flags, policy="fail")
    with running(PYTHON, model, tmp_path, prefill, decode):
        moved, noise, same = [], [], 0
        for number, prompt in enumerate(FORCED):
            wanted = chances(decode, prompt)
            found = chances(decode, prompt, ticket(prefill, prompt))
            moved.append(divergence(wanted, found))
            noise.append(divergence(wanted, chances(prefill, prompt)))
            same += max(wanted, key=wanted.get) == max(found, key=found.get)
            if number % 4 == 0:
                other_way = likeliest(pushed(prefill, decode, prompt, 1, logprobs=20))
                assert divergence(found, other_way) < 1e-6
        mean, floor = sum(moved) / len(moved), max(sum(noise) / len(noise), 1e-3)
        print(f"{name}: KL {mean:.2e}, noise floor {sum(noise) / len(noise):.2e}, top-1 {same}/{len(FORCED)}")
        assert mean <= NEAR * floor
        assert same >= len(FORCED) - 2
        assert told(decode)["received"] == len(FORCED) + len(FORCED[::4])
        assert at_rest(prefill)


@pytest.fixture(scope="module")
def pair(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server, Path]]:
    """In float32, where equal text is to be expected; prefill has few blocks, so that they are soon another's."""
    folder = tmp_path_factory.mktemp("connector")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIPTYCH_FAILPOINTS", str(folder))
        prefill = server("prefill", "float32", 64, "--num-gpu-blocks-override", "20", lease_s=LEASE_S, wait_s=LEASE_S)
        decode = server("decode", "float32", 128)
        with running(PYTHON, model, folder, prefill, decode):
            yield prefill, decode, folder


def test_sixteen_at_once(pair) -> None:
    prefill, decode, _ = pair
    prompts = [f"{' '.join(TEXT[at : at + 14])} ({at})" for at in range(0, 64, 4)]
    alone = [decode.ask(prompt, 6) for prompt in prompts]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda prompt: through(prefill, decode, prompt), prompts))
    assert found == [(200, text) for text in alone]
    assert at_rest(prefill)
    assert at_rest(decode)


@pytest.mark.parametrize("decode_first", [0.0, 0.5], ids=["at once", "decode first"])
def test_pushed_text_is_pulled_text(pair, decode_first) -> None:
    prefill, decode, _ = pair
    before = told(prefill)["early_bytes"]
    for prompt in ("The capital of France is", " ".join(TEXT * 4)):
        alone = (200, decode.ask(prompt, 6))
        assert through(prefill, decode, prompt) == alone
        assert pushed(prefill, decode, prompt, decode_first=decode_first) == alone
    assert told(prefill)["early_bytes"] > before  # layers left before the last one was computed
    assert at_rest(prefill)
    assert at_rest(decode)


def test_what_was_pushed_for_another_prompt_is_recomputed(pair) -> None:
    prefill, decode, _ = pair
    prompt = " ".join(TEXT[:20])
    before = told(decode)["failed"]
    assert pushed(prefill, decode, prompt, asked=" ".join(TEXT[1:21])) == (200, decode.ask(prompt, 6))
    assert told(decode)["failed"] - before == 1
    assert at_rest(prefill)


def test_sixteen_pushed_at_once(pair) -> None:
    """More than prefill has blocks for at a time."""
    prefill, decode, _ = pair
    prompts = [f"{' '.join(TEXT[at : at + 14])} [{at}]" for at in range(0, 64, 4)]
    alone = [decode.ask(prompt, 6) for prompt in prompts]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda prompt: pushed(prefill, decode, prompt), prompts))
    assert found == [(200, text) for text in alone]
    assert at_rest(prefill)
    assert at_rest(decode)


def test_many_one_after_another(pair) -> None:
    prefill, decode, _ = pair
    before = told(decode)
    count = int(os.environ.get("DIPTYCH_VLLM_SEQUENTIAL", "200"))
    for number in range(count):
        prompt = f"{number} {' '.join(TEXT[number % 40 : number % 40 + 12])}"
        assert through(prefill, decode, prompt, 3) == (200, decode.ask(prompt, 3))
    after = told(decode)
    assert (after["received"] - before["received"], after["failed"] - before["failed"]) == (count, 0)
    assert at_rest(prefill)
    assert at_rest(decode)


def test_a_late_read_is_recomputed_and_never_answered_from_anothers_kv(pair) -> None:
    prefill, decode, _ = pair
    prompts = [f"Number {number}: {' '.join(TEXT[number : number + 10])}" for number in range(20)]
    alone = [decode.ask(prompt, 6) for prompt in prompts]
    before = told(decode)["failed"]
    tickets = [ticket(prefill, prompt) for prompt in prompts]
    time.sleep(LEASE_S + 1)
    for number in range(24):
        prefill.ask(f"Other {number} {' '.join(reversed(TEXT[number : number + 40]))}", 1)
    late = [read(decode, prompt, params) for prompt, params in zip(prompts, tickets, strict=True)]
    assert late == [(200, text) for text in alone]
    assert told(decode)["failed"] - before == 20
    assert at_rest(prefill)
