"""DiptychConnector between two real vLLM processes that differ: right text, or a typed end; never another request's KV.

Each pair takes minutes to start, so that one pair serves many questions. Forced tokens are prompts cut at many places: decode
computes one token from KV that prefill made, beside the same token computed by itself.
"""

from __future__ import annotations

import json
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pairs import Server, free_port, running

PYTHON = os.environ.get("DIPTYCH_VLLM_PYTHON", ".venv-vllm/bin/python")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"no {PYTHON}: `make test-vllm` makes it"),
]
PROSE = (
    "The first lighthouses were fires built on hilltops by people who had watched too many boats break on the rocks below. "
    "Later they were raised on towers of stone, and the keepers who lived in them kept careful books of every ship, every storm "
    "and every gallon of oil. When lamps were improved by lenses that gathered light into a single beam, a keeper could be heard "
    "to say that the sea itself had become smaller. Today most of them are automatic, and nobody climbs the stairs except "
    "painters and visitors."
)
TEXT = PROSE.split()
FORCED = [" ".join((TEXT * 3)[:count]) for count in (12, 20, 28, 36, 44, 52, 60, 68, 76, 84, 120, 180)]
NEAR = 3.0
"""How many times the noise floor (the two precisions, each alone) a handed-over token's divergence may be."""
LEASE_S = 8.0


def connector(**extra: object) -> dict[str, object]:
    return {
        "kv_connector": "DiptychConnector",
        "kv_connector_module_path": "diptych.integrations.vllm",
        "kv_connector_extra_config": extra,
    }


def server(role: str, dtype: str, block: int, *flags: str, policy: str = "recompute", **extra: object) -> Server:
    more = {**connector(**extra), "kv_load_failure_policy": policy}
    return Server(role, free_port(), dtype=dtype, flags=("--block-size", str(block), *flags), extra=more)


def post(to: Server, prompt: str, tokens: int = 1, **more: object) -> tuple[int, dict]:
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}).encode()
    request = urllib.request.Request(f"{to.url}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, {"error": error.read().decode(errors="replace")}


def ticket(prefill: Server, prompt: str) -> dict:
    status, answer = post(prefill, prompt, kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False})
    assert status == 200, answer
    return answer["kv_transfer_params"]


def through(prefill: Server, decode: Server, prompt: str, tokens: int = 6) -> tuple[int, str]:
    return read(decode, prompt, ticket(prefill, prompt), tokens)


def read(decode: Server, prompt: str, params: dict, tokens: int = 6) -> tuple[int, str]:
    status, answer = post(decode, prompt, tokens, kv_transfer_params=params)
    return status, answer["choices"][0]["text"] if status == 200 else answer["error"]


def told(of: Server) -> dict[str, float]:
    """The connector's metrics; a request first, since vLLM collects them with its steps."""
    of.ask("x", 1)
    with urllib.request.urlopen(f"{of.url}/metrics", timeout=30) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith("vllm:diptych_")]
    split = [(line.split("{")[0], float(line.rsplit(" ", 1)[1])) for line in lines if "_created" not in line]
    return {name.removeprefix("vllm:diptych_").removesuffix("_total"): value for name, value in split}


def at_rest(of: Server, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = told(of)
        if not found["open_leases"] and not found["open_transfers"]:
            return True
        time.sleep(0.5)
    return False


def chances(of: Server, prompt: str, params: dict | None = None) -> dict[str, float]:
    more = {"kv_transfer_params": params} if params else {}
    status, answer = post(of, prompt, logprobs=20, **more)
    assert status == 200, answer
    return answer["choices"][0]["logprobs"]["top_logprobs"][0]


def divergence(wanted: dict[str, float], found: dict[str, float]) -> float:
    """KL over the twenty likeliest tokens and the rest as one, in nats."""
    least = min(found.values())
    mine = {token: math.exp(value) for token, value in wanted.items()}
    theirs = {token: math.exp(found.get(token, least)) for token in mine}
    mine[""], theirs[""] = max(1 - sum(mine.values()), 1e-9), max(1 - sum(map(math.exp, found.values())), 1e-9)
    whole = sum(theirs.values())
    return sum(mine[token] * math.log(mine[token] * whole / theirs[token]) for token in mine)


MISMATCHES = {
    "block 64 to 128, decode in float16": (("bfloat16", 64), ("float16", 128), ()),
    "block 64 to 128, decode's KV in fp8": (("bfloat16", 64), ("bfloat16", 128), ("--kv-cache-dtype", "fp8")),
    "block 128 to 64": (("bfloat16", 128), ("bfloat16", 64), ()),
    "block 128 to 256, decode in float32": (("bfloat16", 128), ("float32", 256), ()),
}


@pytest.fixture(scope="module")
def model() -> str:
    from diptych.runtime.model_files import demo_model

    return str(demo_model())


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_that_stock_vllm_fails_or_garbles(name, model, tmp_path) -> None:
    (first, size), (second, other), flags = MISMATCHES[name]
    prefill, decode = server("prefill", first, size), server("decode", second, other, *flags, policy="fail")
    with running(PYTHON, model, tmp_path, prefill, decode):
        moved, noise, same = [], [], 0
        for prompt in FORCED:
            wanted = chances(decode, prompt)
            found = chances(decode, prompt, ticket(prefill, prompt))
            moved.append(divergence(wanted, found))
            noise.append(divergence(wanted, chances(prefill, prompt)))
            same += max(wanted, key=wanted.get) == max(found, key=found.get)
        mean, floor = sum(moved) / len(moved), max(sum(noise) / len(noise), 1e-3)
        print(f"{name}: KL {mean:.2e}, noise floor {sum(noise) / len(noise):.2e}, top-1 {same}/{len(FORCED)}")
        assert mean <= NEAR * floor
        assert same >= len(FORCED) - 2
        assert told(decode)["received"] == len(FORCED)


@pytest.fixture(scope="module")
def pair(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server, Path]]:
    """In float32, where equal text is to be expected; prefill has few blocks, so that they are soon another's."""
    folder = tmp_path_factory.mktemp("connector")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIPTYCH_FAILPOINTS", str(folder))
        prefill = server("prefill", "float32", 64, "--num-gpu-blocks-override", "20", lease_s=LEASE_S)
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


def test_many_one_after_another(pair) -> None:
    prefill, decode, _ = pair
    for number in range(int(os.environ.get("DIPTYCH_VLLM_SEQUENTIAL", "40"))):
        prompt = f"{number} {' '.join(TEXT[number % 40 : number % 40 + 12])}"
        assert through(prefill, decode, prompt, 3) == (200, decode.ask(prompt, 3))


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


def test_a_prefill_killed_in_the_transfer_is_recomputed(pair) -> None:
    """Last: this prefill worker does not come back."""
    prefill, decode, folder = pair
    prompt = " ".join(TEXT)
    alone, params = decode.ask(prompt, 6), ticket(prefill, prompt)
    (folder / "prefill.frame.arm").write_text("kill")
    assert read(decode, prompt, params) == (200, alone)
    assert (folder / "prefill.frame.hit").exists()
    assert at_rest(decode)
    assert read(decode, prompt, params) == (200, alone)  # and dead before it
    assert at_rest(decode)
