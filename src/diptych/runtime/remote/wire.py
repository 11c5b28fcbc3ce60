"""HTTP to another engine's workers: one session, the key and the certificates that they ask for, bounded answers."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec

from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.remote.halves import Body

MAX_ANSWER = 64 << 20
PATIENCE = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=300)
QUICK = aiohttp.ClientTimeout(total=10)
Broken = (aiohttp.ClientError, TimeoutError)
"""How a worker that does not answer shows."""


class Wire:
    """`token` is said to each worker, vLLM's and SGLang's `--api-key`; `tls` is whom we believe, and what we show them."""

    def __init__(self, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        connector = aiohttp.TCPConnector(limit=0, ssl=tls if tls is not None else True)
        self._session = aiohttp.ClientSession(timeout=PATIENCE, connector=connector, headers=headers, trust_env=False)

    async def close(self) -> None:
        await self._session.close()

    async def begin(self, url: str, body: Body, request: str, rank: int | None = None) -> aiohttp.ClientResponse:
        """An answer's head. `rank` names a data-parallel rank, as vLLM reads it. Raises ClientError, TimeoutError."""
        headers = {"X-Request-Id": request}
        if rank is not None:
            headers["X-data-parallel-rank"] = str(rank)
        return await self._session.post(url, json=body, headers=headers)

    async def whole(self, url: str, body: Body, request: str, rank: int | None = None) -> Body:
        """The whole answer as an object. Raises ClientError, TimeoutError, or Refusal with the worker's own status."""
        async with await self.begin(url, body, request, rank) as answer:
            text = await read(answer)
            if answer.status != 200:
                raise refusal(answer.status, text)
        try:
            told = msgspec.json.decode(text)
        except msgspec.DecodeError:
            raise Refusal(502, "a worker's answer is not JSON", "bad_answer") from None
        return told if isinstance(told, dict) else {}

    async def get(self, url: str) -> tuple[int, bytes]:
        """A small answer, quickly. Raises ClientError, TimeoutError, Refusal for one that is too long."""
        async with self._session.get(url, timeout=QUICK, allow_redirects=False) as answer:
            return answer.status, await read(answer)

    async def abort(self, url: str, name: str) -> None:
        """Stop a request of SGLang by its name; a worker that is gone has stopped it."""
        with suppress(*Broken):
            async with self._session.post(f"{url}/abort_request", json={"rid": name}, timeout=QUICK):
                pass


async def read(answer: aiohttp.ClientResponse) -> bytes:
    """An answer's bytes, at most so many: a worker is not believed about its size either. Raises Refusal."""
    room = bytearray()
    async for piece in answer.content.iter_any():
        room += piece
        if len(room) > MAX_ANSWER:
            raise Refusal(502, "a worker's answer is too long", "bad_answer")
    return bytes(room)


def refusal(status: int, text: bytes) -> Refusal:
    """A worker's error as ours: its sentence where it has one, its status where a client could act on it."""
    sentence = ""
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        told: Any = msgspec.json.decode(text)
        error = told.get("error", told) if isinstance(told, dict) else {}
        sentence = str(error.get("message", "")) if isinstance(error, dict) else str(error)
    if status in (400, 404, 413, 422, 429):
        return Refusal(400 if status == 422 else status, sentence or f"a worker answered {status}")
    return Refusal(502, f"a worker answered {status}{': ' + sentence if sentence else ''}", "worker_failed", after=1)
