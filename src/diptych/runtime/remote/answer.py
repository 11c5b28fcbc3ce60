"""A decode worker's answer on its way to a client."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import aiohttp

from diptych.runtime.gateway.refusal import Refusal
from diptych.runtime.gateway.roster import Worker
from diptych.runtime.remote.fleet import fails
from diptych.runtime.remote.wire import Broken

STREAM = "text/event-stream"


class Answer:
    """Its content type, and its bytes as they come. `close` it, read or not.

    A stream that breaks ends in a typed error, never in a silent cut; closing it early stops the worker.
    """

    def __init__(
        self, worker: Worker, answer: aiohttp.ClientResponse, size: int, counts: Counter[tuple[str, str]]
    ) -> None:
        self.kind = answer.content_type
        self._worker, self._answer, self._size, self._counts = worker, answer, size, counts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._answer.content.iter_any():
                yield piece
        except Broken as error:
            fails(self._worker, f"broke off: {type(error).__name__}")
            self._counts["decode failed", "mid-answer"] += 1
            broken = Refusal(502, f"the decode worker failed in the middle: {type(error).__name__}", "decode_failed")
            if self.kind != STREAM:
                raise broken from None
            yield b"data: " + broken.envelope() + b"\n\n"
        finally:
            self.close()

    def close(self) -> None:
        """Idempotent."""
        self._answer.close()
        self._worker.load -= self._size
        self._size = 0
