"""How a router asks two vLLM processes with DiptychConnector, and what their metrics and logits say."""

from __future__ import annotations

import json
import math
import secrets
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from pairs import Server, free_port

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
USED = "vllm:kv_cache_usage_perc"


def port_of(of: Server) -> int:
    """Where decode asks for what will be pushed."""
    return of.extra["kv_connector_extra_config"]["port"]


def connector(**extra: object) -> dict[str, object]:
    return {
        "kv_connector": "DiptychConnector",
        "kv_connector_module_path": "diptych.integrations.vllm",
        "kv_connector_extra_config": extra,
    }


def server(role: str, dtype: str, block: int, *flags: str, policy: str = "recompute", **extra: object) -> Server:
    """Few blocks by default, so that several fit a small machine; a prefill worker serves pull and push."""
    pushes = {"ownership": "push", "port": free_port()} if role == "prefill" else {}
    more = {**connector(**pushes, **extra), "kv_load_failure_policy": policy}
    few = () if "--num-gpu-blocks-override" in flags else ("--num-gpu-blocks-override", "64")
    return Server(role, free_port(), dtype=dtype, flags=("--block-size", str(block), *few, *flags), extra=more)


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


def pushed(
    prefill: Server,
    decode: Server,
    prompt: str,
    tokens: int = 6,
    decode_first: float = 0.0,
    asked: str | None = None,
    **more: object,
) -> tuple[int, str]:
    """Decode's answer when both are asked at once, or decode before prefill. `asked`: what prefill is asked instead."""
    named = {"transfer_id": f"xfer-{secrets.token_hex(16)}"}
    first = {**named, "do_remote_decode": True, "do_remote_prefill": False}
    at = f"http://127.0.0.1:{port_of(prefill)}"
    second = {**named, "do_remote_prefill": True, "do_remote_decode": False, "remote_bootstrap_addr": at}
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(post, decode, prompt, tokens, kv_transfer_params=second, **more)
        time.sleep(decode_first)
        pool.submit(post, prefill, asked or prompt, kv_transfer_params=first)
        status, said = answer.result()
    return status, said if more else said["choices"][0]["text"] if status == 200 else said["error"]


def told(of: Server) -> dict[str, float]:
    """The connector's metrics, and the share of blocks in use; a request first, since vLLM collects them with its steps."""
    of.ask("x", 1)
    with urllib.request.urlopen(f"{of.url}/metrics", timeout=30) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(("vllm:diptych_", USED))]
    split = [(line.split("{")[0], float(line.rsplit(" ", 1)[1])) for line in lines if "_created" not in line]
    return {name.removeprefix("vllm:diptych_").removesuffix("_total"): value for name, value in split}


def at_rest(of: Server, seconds: float = 60) -> bool:
    """Whether no lease and no transfer is open, and no block in use, before long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = told(of)
        if not found["open_leases"] and not found["open_transfers"] and not found[USED]:
            return True
        time.sleep(0.5)
    return False


def chances(of: Server, prompt: str, params: dict | None = None) -> dict[str, float]:
    more = {"kv_transfer_params": params} if params else {}
    return likeliest(post(of, prompt, logprobs=20, **more))


def likeliest(answered: tuple[int, dict]) -> dict[str, float]:
    """The twenty likeliest first tokens."""
    status, answer = answered
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
