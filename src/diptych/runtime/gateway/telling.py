"""One answer's tokens becoming text, log probabilities and an end, piece by piece, for a stream or a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from diptych.runtime.gateway.asked import Asked
from diptych.runtime.gateway.stops import StopStrings
from diptych.runtime.gateway.text import Tokenizer
from diptych.runtime.messages import Chosen

LEAST = -9999.0
"""What stands for a probability of nothing: JSON has no infinity."""


@dataclass(slots=True)
class Piece:
    """What can be told now."""

    text: str = ""
    tokens: list[Chosen] = field(default_factory=list)
    begins: int = 0  # characters before it
    stopped: bool = False


class Telling:
    """One answer. Text behind a stop string is never told, nor a character before it is whole."""

    __slots__ = ("_asked", "_stops", "_stream", "_tokenizer", "count", "length")

    def __init__(self, asked: Asked, tokenizer: Tokenizer) -> None:
        self._asked, self._tokenizer = asked, tokenizer
        self._stream = tokenizer.stream(asked.skips_special)
        self._stops = StopStrings(asked.stop, asked.keeps_stop)
        self.count = self.length = 0

    def push(self, tokens: tuple[Chosen, ...]) -> Piece:
        """More tokens; those behind a stop string are not looked at."""
        begins, said, used = self.length, "", 0
        for chosen in tokens:
            self.count += 1
            used += 1
            text = self._stream.push(chosen.token)
            said += self._stops.push(text, self.count >= self._asked.params.min_tokens) if self._asked.stop else text
            if self._stops.hit:
                break
        self.length += len(said)
        return Piece(said, list(tokens[:used]), begins, bool(self._stops.hit))

    def end(self) -> Piece:
        """The tokens are over: what was held back."""
        begins = self.length
        said = ""
        if not self._stops.hit:
            rest = self._stream.flush()
            said = (self._stops.push(rest) if self._asked.stop else rest) if rest else ""
            if not self._stops.hit:
                said += self._stops.flush()
        self.length += len(said)
        return Piece(said, [], begins, bool(self._stops.hit))


def chat_logprobs(tokens: list[Chosen], tokenizer: Tokenizer, told: int) -> dict[str, Any]:
    """`logprobs` of a chat choice."""
    entries = []
    for chosen in tokens:
        entry = _entry(chosen.token, chosen.logprob, tokenizer)
        entry["top_logprobs"] = [_entry(token, value, tokenizer) for token, value in chosen.top[:told]]
        entries.append(entry)
    return {"content": entries, "refusal": None}


def _entry(token: int, value: float | None, tokenizer: Tokenizer) -> dict[str, Any]:
    piece = tokenizer.piece(token)
    return {"token": piece.decode("utf-8", "replace"), "logprob": finite(value), "bytes": list(piece)}


def completion_logprobs(
    tokens: list[Chosen], tokenizer: Tokenizer, told: int, begins: int, first_is_given: bool = False
) -> dict[str, Any]:
    """`logprobs` of a completion. With `first_is_given` nothing predicts the first token, so it has none."""
    words = [word(each.token, tokenizer) for each in tokens]
    offsets, at = [], begins
    for each in tokens:
        offsets.append(at)
        at += len(tokenizer.piece(each.token).decode("utf-8", "replace"))
    blank = range(int(first_is_given))
    return {
        "tokens": words,
        "token_logprobs": [None if place in blank else finite(each.logprob) for place, each in enumerate(tokens)],
        "top_logprobs": [None if place in blank else _top(each, tokenizer, told) for place, each in enumerate(tokens)],
        "text_offset": offsets,
    }


def _top(chosen: Chosen, tokenizer: Tokenizer, told: int) -> dict[str, float]:
    """The likeliest tokens and the chosen one."""
    found = {word(token, tokenizer): finite(value) for token, value in chosen.top[:told]}
    found.setdefault(word(chosen.token, tokenizer), finite(chosen.logprob))
    return found


def word(token: int, tokenizer: Tokenizer) -> str:
    """A token's text, or its bytes by name where it is no text by itself (as OpenAI writes them).

    >>> from diptych.runtime.gateway.text import ToyTokenizer
    >>> word(65, ToyTokenizer()), word(0xC3, ToyTokenizer())
    ('A', 'bytes:\\\\xc3')
    """
    piece = tokenizer.piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def finite(value: float | None) -> float:
    """A log probability that JSON can carry."""
    return LEAST if value is None or not value >= LEAST else float(value)
