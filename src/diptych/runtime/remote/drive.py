"""One request over a prefill and a decode worker of another engine: whom to ask, what to do when one fails, what is counted."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import Any

from diptych.runtime.gateway.refusal import Refusal, invalid
from diptych.runtime.gateway.roster import Worker
from diptych.runtime.remote.answer import Answer
from diptych.runtime.remote.fleet import Fleet, answers, fails
from diptych.runtime.remote.halves import (
    Body,
    Prefiller,
    Protocol,
    ask_meeting,
    ask_sglang,
    ask_vllm_decode,
    ask_vllm_prefill,
    foreign,
    several,
)
from diptych.runtime.remote.mooncake import engines_of
from diptych.runtime.remote.wire import Broken, Wire, read, refusal
from diptych.serving.router import Router, Routing

PATHS = ("/v1/completions", "/v1/chat/completions")


class Driver:
    """Sends requests through a fleet, over a wire that it closes."""

    def __init__(self, fleet: Fleet, wire: Wire | None = None) -> None:
        self.fleet, self.wire = fleet, wire or Wire()
        self._router = Router(Routing.LEAST_LOADED)
        self._engines: dict[str, dict[int, str]] = {}

    async def close(self) -> None:
        await self.wire.close()

    async def ask(self, path: str, body: Body) -> Answer:
        """The answer of both halves together. Raises Refusal."""
        _check(path, body)
        decode = self._pick(self.fleet.second, "decode")
        size = len(str(body.get("prompt") or body.get("messages") or ""))
        decode.load += size
        try:
            if self.fleet.protocol.is_sequential:
                return await self._one_after_the_other(path, body, decode, size)
            return await self._at_once(path, body, decode, size)
        except BaseException:
            decode.load -= size
            raise

    # --- vLLM with NIXL, or with our connector --------------------------------------------------------------------------

    async def _one_after_the_other(self, path: str, body: Body, decode: Worker, size: int) -> Answer:
        request = secrets.token_hex(16)
        ticket = await self._ticket(path, body, request, size)
        self.fleet.counts["route", "remote prefill" if ticket else "local"] += 1
        return await self._stream(decode, path, ask_vllm_decode(body, ticket), request, size)

    async def _ticket(self, path: str, body: Body, request: str, size: int) -> Any:
        """Prefill's ticket; None where decode must compute, by policy or because prefill kept nothing."""
        asked, tried = ask_vllm_prefill(body), 0
        while True:
            worker = self._pick(self.fleet.first, "prefill", refuse=not self.fleet.policy.recompute)
            if worker is None:
                self.fleet.counts["fallback", "no prefill worker"] += 1
                return None
            try:
                told = await self._post(worker, path, asked, request, size)
            except Broken as error:
                why = type(error).__name__
            except Refusal as refused:
                if refused.status < 500:
                    raise
                why = f"answered {refused.status}"
            else:
                ticket = told.get("kv_transfer_params")
                if not ticket:
                    self.fleet.counts["fallback", "no ticket"] += 1
                return ticket
            self.fleet.counts["prefill failed", why] += 1
            tried += 1
            if tried > self.fleet.policy.retries:
                if self.fleet.policy.recompute:
                    self.fleet.counts["fallback", why] += 1
                    return None
                raise Refusal(502, f"the prefill worker failed: {why}", "prefill_failed", after=1)

    # --- vLLM with Mooncake or our connector under push, SGLang --------------------------------------------------------

    async def _at_once(self, path: str, body: Body, decode: Worker, size: int) -> Answer:
        """Both halves together; when either fails the other is stopped, since nothing else would."""
        worker = self._pick(self.fleet.first, "prefill")
        (first, second), rank = await self._halves(body, worker)
        request = secrets.token_hex(16)
        self.fleet.counts["route", "remote prefill"] += 1
        prefill = asyncio.ensure_future(self._post(worker, path, first, request, size, rank))
        answer = asyncio.ensure_future(self._stream(decode, path, second, request, size))
        try:
            done, _ = await asyncio.wait((prefill, answer), return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            await self._stop_both(prefill, answer, (worker, decode), (first, second))
            raise
        failed = next((task.exception() for task in done if task.exception()), None)
        if failed is None:
            prefill.result()
            return answer.result()
        what = "prefill failed" if prefill in done and prefill.exception() else "decode failed"
        self.fleet.counts[what, type(failed).__name__] += 1
        self._engines.pop(worker.name, None)
        await self._stop_both(prefill, answer, (worker, decode), (first, second))
        if isinstance(failed, Refusal):
            raise failed
        raise Refusal(502, f"a worker failed: {type(failed).__name__}", "worker_failed", after=1) from None

    async def _halves(self, body: Body, worker: Worker) -> tuple[tuple[Body, Body], int | None]:
        """Both halves' requests, and the rank of prefill that is asked. Raises Refusal."""
        prefiller = self.fleet.prefiller(worker)
        if self.fleet.protocol is Protocol.SGLANG:
            return ask_sglang(body, prefiller), None
        if self.fleet.protocol is Protocol.VLLM_PUSH:
            return ask_meeting(body, prefiller), None
        rank, engine = secrets.choice(list((await self._engines_of(worker, prefiller)).items()))
        return ask_meeting(body, prefiller, engine), rank if rank else None

    async def _engines_of(self, worker: Worker, prefiller: Prefiller) -> dict[int, str]:
        """The engines of a prefill worker by rank, asked for once in its life. Raises Refusal."""
        if worker.name not in self._engines:
            try:
                self._engines[worker.name] = await engines_of(self.wire, prefiller)
            except Broken as error:
                self._fails(worker, type(error).__name__)
                raise Refusal(502, "the prefill worker's bootstrap server is gone", "prefill_failed", after=1) from None
        return self._engines[worker.name]

    async def _stop_both(
        self,
        prefill: asyncio.Future[Any],
        answer: asyncio.Future[Answer],
        workers: tuple[Worker, Worker],
        bodies: tuple[Body, Body],
    ) -> None:
        for task in (prefill, answer):
            task.cancel()
            with suppress(BaseException):
                await task
        for worker, body in zip(workers, bodies, strict=True):
            if "rid" in body:
                await self.wire.abort(worker.endpoint.address, body["rid"])

    # --- one worker -----------------------------------------------------------------------------------------------------

    def _pick(self, workers: list[Worker], role: str, refuse: bool = True) -> Any:
        """The least loaded worker that is up; those that failed are tried again once none is left."""
        chosen = self._router.pick(workers, None)
        if chosen is None:
            if not refuse:
                return None
            for worker in workers:
                answers(worker)
            raise Refusal(503, f"no {role} worker answers", f"no_{role}_worker", after=1)
        return chosen

    def _fails(self, worker: Worker, why: str) -> None:
        self._engines.pop(worker.name, None)
        fails(worker, why)

    async def _post(
        self, worker: Worker, path: str, body: Body, request: str, size: int, rank: int | None = None
    ) -> Body:
        """The whole answer as an object. Raises ClientError, or Refusal with the worker's own status."""
        worker.load += size
        try:
            return await self.wire.whole(worker.endpoint.address + path, body, request, rank)
        except Broken as error:
            self._fails(worker, type(error).__name__)
            raise
        finally:
            worker.load -= size

    async def _stream(self, worker: Worker, path: str, body: Body, request: str, size: int) -> Answer:
        try:
            answer = await self.wire.begin(worker.endpoint.address + path, body, request)
            text = await read(answer) if answer.status != 200 else b""
        except Broken as error:
            self._fails(worker, type(error).__name__)
            self.fleet.counts["decode failed", type(error).__name__] += 1
            raise Refusal(502, f"the decode worker failed: {type(error).__name__}", "decode_failed", after=1) from None
        if answer.status != 200:
            answer.release()
            self.fleet.counts["decode failed", f"answered {answer.status}"] += 1
            raise refusal(answer.status, text)
        return Answer(worker, answer, size, self.fleet.counts)


def _check(path: str, body: Body) -> None:
    """Raises Refusal: not served here, or not a client's to say."""
    if path not in PATHS:
        raise Refusal(404, f"{path} is not served here")
    names = foreign(body)
    if names:
        raise invalid(f"{names[0]} is chosen here, never by a client", names[0], "forbidden_field")
    name = several(body)
    if name:
        told = "one prompt and one answer for each request: the KV of a prompt is handed over once"
        raise invalid(told, name, "one_answer_each")
