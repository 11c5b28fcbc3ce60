"""What one answer of another engine's worker comes to: when its tokens came, how many, and how it ended.

A stream is asked for its usage, since only the worker knows how many tokens it made of a prompt; a client that has not asked
for it is not shown it. Nothing else of an answer is changed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import msgspec

from diptych.runtime.remote.halves import Body

MOST_HELD = 1 << 20
_ENDED = re.compile(rb'"finish_reason":\s*"([a-z_]{1,32})"')


class Tally:
    """Of one answer. Times are those of the clock that `read` is given."""

    def __init__(self, began: float, body: Body) -> None:
        self.began, self.first, self.last, self.ended = began, 0.0, 0.0, ""
        self.prompt_tokens = self.output_tokens = 0
        self.is_broken = False
        options = body.get("stream_options")
        self._asked = bool(options.get("include_usage")) if isinstance(options, dict) else False
        self._rest = b""

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first, where there was more than one and they were seen to come."""
        gaps = self.output_tokens - 1
        return (self.last - self.first) / gaps if gaps > 0 and self.last > self.first else None

    def streamed(self, piece: bytes, now: float) -> bytes:
        """What the client gets of a piece of a stream: whole events."""
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        if len(self._rest) > MOST_HELD:
            events, self._rest = [*events, self._rest], b""
        return b"".join(event + b"\n\n" for event in events if self._event(event, now))

    def rest(self) -> bytes:
        """What is left of a stream that ends within an event."""
        rest, self._rest = self._rest, b""
        return rest

    def whole(self, body: bytes, now: float) -> None:
        """An answer that came at once."""
        self.first = self.last = now
        told = _read(body)
        self._used(told.get("usage"))
        found = _ENDED.search(body)
        self.ended = found[1].decode() if found else ""

    def _event(self, event: bytes, now: float) -> bool:
        """Note an event of a stream; whether the client is to see it."""
        if b'"error"' in event and "error" in _read(event.removeprefix(b"data: ")):
            self.is_broken = True
            return True
        if b'"usage"' in event:
            told = _read(event.removeprefix(b"data: "))
            if self._used(told.get("usage")) and not told.get("choices"):
                return self._asked
        if event.startswith(b"data: {"):
            self.first, self.last = self.first or now, now
            found = _ENDED.search(event)
            self.ended = found[1].decode() if found else self.ended
        return True

    def _used(self, usage: Any) -> bool:
        if not isinstance(usage, dict):
            return False
        self.prompt_tokens, self.output_tokens = (
            value if isinstance(value := usage.get(name), int) and 0 <= value < 1 << 40 else 0
            for name in ("prompt_tokens", "completion_tokens")
        )
        return True


def with_usage(body: Body) -> Body:
    """The request, asking a stream for its usage too."""
    if not body.get("stream"):
        return body
    options = body.get("stream_options")
    return {**body, "stream_options": {**(options if isinstance(options, dict) else {}), "include_usage": True}}


def _read(text: bytes) -> dict[str, Any]:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        told = msgspec.json.decode(text)
        return told if isinstance(told, dict) else {}
    return {}
