"""What a gateway adds to a first token: answers of one token over HTTP beside the same asked of the workers directly."""

from __future__ import annotations

import asyncio
import http.client
import json
import statistics
import time

from diptych.runtime.gateway.settings import Settings
from diptych.runtime.launch.program import reach
from diptych.runtime.probe.bench import Bench, ProbeFailed

ASKS = 10
TOKENS = 16
SECONDS = 60.0


async def added(bench: Bench, settings: Settings) -> float:
    """Seconds, the difference of two medians, turns in rotation; never below zero."""
    client = Client(settings)
    through, direct = [], []
    try:
        for _ in range(ASKS):
            through.append(await asyncio.to_thread(client.ask, bench.prompt(TOKENS)))
            direct.append(await _direct(bench))
    finally:
        client.close()
    return max(0.0, statistics.median(through) - statistics.median(direct))


async def _direct(bench: Bench) -> float:
    sources, targets = bench.of("prefill"), bench.of("decode")
    if sources and targets:
        return (await bench.handed(sources[0], targets[0], bench.prompt(TOKENS)))[0].ttft
    return (await bench.whole(bench.workers[0], bench.prompt(TOKENS))).ttft


class Client:
    """One connection to a gateway of this machine."""

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._headers = {"content-type": "application/json"}
        if settings.api_key:
            self._headers["authorization"] = f"Bearer {settings.api_key}"
        self._made = reach(settings.reached, settings.port, bool(settings.tls_certificate), SECONDS)

    def ask(self, prompt: tuple[int, ...]) -> float:
        """Seconds of one token. Raises ProbeFailed."""
        body = json.dumps({"model": self._model, "prompt": list(prompt), "max_tokens": 1, "ignore_eos": True})
        began = time.perf_counter()
        try:
            self._made.request("POST", "/v1/completions", body, self._headers)
            answer = self._made.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ProbeFailed(f"the gateway does not answer: {error}") from None
        if answer.status != 200:
            raise ProbeFailed(f"the gateway answered {answer.status}: {said[:200].decode(errors='replace')}")
        return time.perf_counter() - began

    def close(self) -> None:
        self._made.close()
