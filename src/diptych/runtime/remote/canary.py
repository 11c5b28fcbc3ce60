"""Whether KV really crosses between two running engines, and means the same there.

Their own counters before and after one long prompt say that it crossed. Its text beside that of the decode worker alone says what
it means: blocks that are read in another order than they were written are answered with HTTP 200 all the same.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from dataclasses import dataclass

import msgspec

from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.gateway.roster import Worker
from diptych.runtime.remote.drive import PATHS, Driver
from diptych.runtime.remote.halves import Body

COUNTERS = {
    "vllm": re.compile(
        r'^vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\}\s+(\S+)', re.MULTILINE
    ),
    "sglang": re.compile(r"^sglang:kv_transfer_total_mb_sum(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE),
}
"""vLLM counts on decode the prompt tokens taken from a transfer, SGLang on prefill the megabytes sent."""
PROMPT = " ".join(f"Item {number} is {number * 7 % 97}." for number in range(50))
TRIES = 3
"""So many prompts whose texts all differ are no ties that fell otherwise."""


@dataclass(frozen=True, slots=True)
class Canary:
    """`crossed`: what the engine counts as transferred, tokens or megabytes; 0 where decode computed the prompt itself.

    `alone`, `through`: the decode worker's own text and that from prefill's KV, of the last prompt; empty where a worker of this
    engine does not answer a request alone.
    """

    crossed: float
    is_right: bool = True
    alone: str = ""
    through: str = ""


def counted(engine: str, exposition: str) -> float:
    """The engine's count in the text of its /metrics; 0 where it has none yet."""
    return sum(float(value) for value in COUNTERS[engine].findall(exposition))


async def send(driver: Driver, model: str) -> Canary:
    """One long prompt, and up to two more while texts differ.

    Raises Refusal, ClientError or TimeoutError where it gets no answer.
    """
    if driver.fleet.engine == "sglang":
        return Canary((await _through(driver, _ask(model), driver.fleet.first))[0])
    told = Canary(0.0)
    for _ in range(TRIES):
        body = _ask(model)
        alone = await _alone(driver, body)
        crossed, through = await _through(driver, body, driver.fleet.second)
        told = Canary(crossed, through == alone, alone, through)
        if told.is_right or not crossed:
            break
    return told


def _ask(model: str) -> Body:
    return {"model": model, "prompt": f"{secrets.token_hex(8)} {PROMPT}", "max_tokens": 4, "temperature": 0}


async def _alone(driver: Driver, body: Body) -> str:
    """The text of a decode worker that knows nothing of prefill, under a salt of its own: not from transferred blocks."""
    worker = next((each for each in driver.fleet.second if each.up), driver.fleet.second[0])
    salted = {**body, "cache_salt": secrets.token_hex(16)}
    return _text(await driver.wire.whole(worker.endpoint.address + PATHS[0], salted, secrets.token_hex(16)))


async def _through(driver: Driver, body: Body, counting: list[Worker]) -> tuple[float, str]:
    """What was counted on the way, and the text."""
    before = await _sum(driver, counting)
    answer = b"".join([piece async for piece in await driver.ask(PATHS[0], body)])
    try:
        text = _text(msgspec.json.decode(answer))
    except msgspec.DecodeError:
        raise Refusal(502, "a worker's answer is not JSON", "bad_answer") from None
    for _ in range(20):
        arrived = await _sum(driver, counting) - before
        if arrived > 0:
            return arrived, text
        await asyncio.sleep(0.1)
    return 0.0, text


def _text(told: Body) -> str:
    """Raises Refusal."""
    try:
        return str(told["choices"][0]["text"])[:400]
    except (KeyError, IndexError, TypeError):
        raise Refusal(502, "a worker's answer has no text", "bad_answer") from None


async def _sum(driver: Driver, workers: list[Worker]) -> float:
    total = 0.0
    for worker in workers:
        _, text = await driver.wire.get(f"{worker.endpoint.address}/metrics")
        total += counted(driver.fleet.engine, text.decode(errors="replace"))
    return total
