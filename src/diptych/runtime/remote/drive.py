"""One request over a prefill and a decode worker of another engine: whom to ask, what to do when one fails, what is counted."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from diptych.runtime.gateway.refusal import Refusal, invalid
from diptych.runtime.remote.canary import PROMPT, counted
from diptych.runtime.remote.halves import (
    Body,
    Prefiller,
    Protocol,
    ask_mooncake,
    ask_sglang,
    ask_vllm_decode,
    ask_vllm_prefill,
    foreign,
)
from diptych.serving.router import Router, Routing

MAX_ANSWER = 64 << 20
PATIENCE = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=300)
PATHS = ("/v1/completions", "/v1/chat/completions")


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of a request whose prefill worker fails. The default is an error: nothing is silent.

    `retries` other prefill workers are tried first; `recompute` then lets decode compute the prompt, which it was not sized for.
    """

    retries: int = 0
    recompute: bool = False


class Peer:
    """A worker of another engine as the router sees it."""

    def __init__(self, url: str, index: int) -> None:
        self.url, self.index = url, index
        self.up, self.load = True, 0


class Answer:
    """A decode worker's answer on its way: its content type, and its bytes as they come. `close` it, read or not.

    A stream that breaks ends in a typed error, never in a silent cut; closing it early stops the worker.
    """

    def __init__(self, peer: Peer, answer: aiohttp.ClientResponse, size: int, counts: Counter[tuple[str, str]]) -> None:
        self.kind = answer.content_type
        self._peer, self._answer, self._size, self._counts = peer, answer, size, counts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._answer.content.iter_any():
                yield piece
        except aiohttp.ClientError as error:
            self._peer.up = False
            self._counts["decode failed", "mid-answer"] += 1
            broken = Refusal(502, f"the decode worker failed in the middle: {type(error).__name__}", "decode_failed")
            if self.kind != "text/event-stream":
                raise broken from None
            yield b"data: " + broken.envelope() + b"\n\n"
        finally:
            self.close()

    def close(self) -> None:
        """Idempotent."""
        self._answer.close()
        self._peer.load -= self._size
        self._size = 0


@dataclass(slots=True)
class Fleet:
    """Workers of one engine behind one protocol. `counts` says what was decided and why, by (what, reason)."""

    protocol: Protocol
    prefills: Sequence[Prefiller]
    decodes: Sequence[str]
    policy: Policy = Policy()
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: list[Peer] = field(init=False)
    second: list[Peer] = field(init=False)
    router: Router = field(init=False)

    def __post_init__(self) -> None:
        self.first = [Peer(each.url, index) for index, each in enumerate(self.prefills)]
        self.second = [Peer(url, index) for index, url in enumerate(self.decodes)]
        self.router = Router(Routing.LEAST_LOADED)


class Driver:
    """Sends requests through a fleet. One session; `close` it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._session = aiohttp.ClientSession(
            timeout=PATIENCE, connector=aiohttp.TCPConnector(limit=0), trust_env=False
        )

    async def close(self) -> None:
        await self._session.close()

    async def ask(self, path: str, body: Body) -> Answer:
        """The answer of both halves together. Raises Refusal."""
        if path not in PATHS:
            raise Refusal(404, f"{path} is not served here")
        names = foreign(body)
        if names:
            raise invalid(f"{names[0]} is chosen here, never by a client", names[0], "forbidden_field")
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

    # --- vLLM with NIXL -------------------------------------------------------------------------------------------------

    async def _one_after_the_other(self, path: str, body: Body, decode: Peer, size: int) -> Answer:
        request = secrets.token_hex(16)
        ticket = await self._ticket(path, body, request, size)
        self.fleet.counts["route", "remote prefill" if ticket else "local"] += 1
        return await self._stream(decode, path, ask_vllm_decode(body, ticket), request, size)

    async def _ticket(self, path: str, body: Body, request: str, size: int) -> Any:
        """Prefill's ticket; None where decode must compute, by policy or because prefill kept nothing."""
        asked, tried = ask_vllm_prefill(body), 0
        while True:
            peer = self._pick(self.fleet.first, "prefill", refuse=not self.fleet.policy.recompute)
            if peer is None:
                self.fleet.counts["fallback", "no prefill worker"] += 1
                return None
            try:
                told = await self._post(peer, path, asked, request, size)
            except aiohttp.ClientError as error:
                peer.up = False
                why = type(error).__name__
            except Refusal as refusal:
                if refusal.status < 500:
                    raise
                why = f"answered {refusal.status}"
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

    # --- vLLM with Mooncake, SGLang -------------------------------------------------------------------------------------

    async def _at_once(self, path: str, body: Body, decode: Peer, size: int) -> Answer:
        """Both halves together; when either fails the other is stopped, since nothing else would."""
        peer = self._pick(self.fleet.first, "prefill")
        prefiller = self.fleet.prefills[peer.index]
        mooncake = self.fleet.protocol is Protocol.VLLM_MOONCAKE
        first, second = (ask_mooncake if mooncake else ask_sglang)(body, prefiller)
        request = secrets.token_hex(16)
        self.fleet.counts["route", "remote prefill"] += 1
        prefill = asyncio.ensure_future(self._post(peer, path, first, request, size))
        answer = asyncio.ensure_future(self._stream(decode, path, second, request, size))
        done, _ = await asyncio.wait((prefill, answer), return_when=asyncio.FIRST_EXCEPTION)
        failed = next((task.exception() for task in done if task.exception()), None)
        if failed is None:
            prefill.result()
            return answer.result()
        self.fleet.counts[
            "prefill failed" if prefill in done and prefill.exception() else "decode failed", type(failed).__name__
        ] += 1
        await self._stop_both(prefill, answer, (peer, decode), (first, second))
        if isinstance(failed, Refusal):
            raise failed
        raise Refusal(502, f"a worker failed: {type(failed).__name__}", "worker_failed", after=1) from None

    async def _stop_both(
        self,
        prefill: asyncio.Future[Any],
        answer: asyncio.Future[Answer],
        peers: tuple[Peer, Peer],
        bodies: tuple[Body, Body],
    ) -> None:
        for task in (prefill, answer):
            task.cancel()
            with suppress(BaseException):
                await task
        for peer, body in zip(peers, bodies, strict=True):
            if "rid" in body:
                with suppress(aiohttp.ClientError, asyncio.TimeoutError):
                    async with self._session.post(f"{peer.url}/abort_request", json={"rid": body["rid"]}):
                        pass

    # --- one worker -----------------------------------------------------------------------------------------------------

    def _pick(self, peers: list[Peer], role: str, refuse: bool = True) -> Any:
        """The least loaded worker that is up; those that failed are tried again once none is left."""
        chosen = self.fleet.router.pick(peers, None)
        if chosen is None:
            if not refuse:
                return None
            for peer in peers:
                peer.up = True
            raise Refusal(503, f"no {role} worker answers", f"no_{role}_worker", after=1)
        return chosen

    async def _post(self, peer: Peer, path: str, body: Body, request: str, size: int) -> dict[str, Any]:
        """The whole answer as an object. Raises ClientError, or Refusal with the worker's own status."""
        peer.load += size
        try:
            async with self._session.post(peer.url + path, json=body, headers={"X-Request-Id": request}) as answer:
                text = await _whole(answer)
                if answer.status != 200:
                    raise _refusal(answer.status, text)
                told = msgspec.json.decode(text)
                return told if isinstance(told, dict) else {}
        except msgspec.DecodeError:
            raise Refusal(502, "a worker's answer is not JSON", "bad_answer") from None
        finally:
            peer.load -= size

    async def _stream(self, peer: Peer, path: str, body: Body, request: str, size: int) -> Answer:
        try:
            answer = await self._session.post(peer.url + path, json=body, headers={"X-Request-Id": request})
        except aiohttp.ClientError as error:
            peer.up = False
            self.fleet.counts["decode failed", type(error).__name__] += 1
            raise Refusal(502, f"the decode worker failed: {type(error).__name__}", "decode_failed", after=1) from None
        if answer.status != 200:
            text = await _whole(answer)
            answer.release()
            self.fleet.counts["decode failed", f"answered {answer.status}"] += 1
            raise _refusal(answer.status, text)
        return Answer(peer, answer, size, self.fleet.counts)

    # --- proof ----------------------------------------------------------------------------------------------------------

    async def canary(self, model: str) -> float:
        """One long prompt through both: what the engine counted as transferred. 0 means that decode computed it itself."""
        engine = "sglang" if self.fleet.protocol is Protocol.SGLANG else "vllm"
        peers = self.fleet.first if engine == "sglang" else self.fleet.second
        before = await self._counted(engine, peers)
        prompt = f"{secrets.token_hex(8)} {PROMPT}"
        answer = await self.ask(PATHS[0], {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0})
        async for _ in answer:
            pass
        for _ in range(20):
            arrived = await self._counted(engine, peers) - before
            if arrived > 0:
                return arrived
            await asyncio.sleep(0.1)
        return 0.0

    async def _counted(self, engine: str, peers: list[Peer]) -> float:
        total = 0.0
        for peer in peers:
            async with self._session.get(f"{peer.url}/metrics") as answer:
                total += counted(engine, (await _whole(answer)).decode(errors="replace"))
        return total


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    """An answer's bytes, at most so many: a worker is not believed about its size either."""
    room = bytearray()
    async for piece in answer.content.iter_any():
        room += piece
        if len(room) > MAX_ANSWER:
            raise Refusal(502, "a worker's answer is too long", "bad_answer")
    return bytes(room)


def _refusal(status: int, text: bytes) -> Refusal:
    """A worker's error as ours: its sentence where it has one, its status where a client could act on it."""
    sentence = ""
    with suppress(msgspec.DecodeError):
        told = msgspec.json.decode(text)
        error = told.get("error", told) if isinstance(told, dict) else {}
        sentence = str(error.get("message", "")) if isinstance(error, dict) else str(error)
    if status in (400, 404, 413, 422, 429):
        return Refusal(400 if status == 422 else status, sentence or f"a worker answered {status}")
    return Refusal(502, f"a worker answered {status}{': ' + sentence if sentence else ''}", "worker_failed", after=1)
