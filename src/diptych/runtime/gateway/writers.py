"""Answers in OpenAI's words: chunks of a stream, or one whole document; for chats and for completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from diptych.runtime.gateway.answer import Answer
from diptych.runtime.gateway.asked import Asked
from diptych.runtime.gateway.mailbox import Done, Given
from diptych.runtime.gateway.telling import Piece, Telling, chat_logprobs, completion_logprobs
from diptych.runtime.gateway.text import Tokenizer
from diptych.runtime.messages import Chosen

_json = msgspec.json.Encoder()
DONE = b"data: [DONE]\n\n"

Stopper = Callable[[Answer, str], None]


class Writer:
    """What the two share: one request's answers becoming text. `on_stop` is told of an answer that a stop string ends."""

    def __init__(self, asked: Asked, answers: Sequence[Answer], tokenizer: Tokenizer, on_stop: Stopper) -> None:
        self.asked, self.answers, self.tokenizer = asked, answers, tokenizer
        self._on_stop = on_stop
        self._tellings = [Telling(asked, tokenizer) for _ in answers]
        self.open = len(answers)
        self._over = [False] * len(answers)
        self.head = {
            "id": ("chatcmpl-" if asked.chat else "cmpl-") + secrets.token_hex(16),
            "object": "",
            "created": int(time.time()),
            "model": asked.model,
        }

    def pieces(self, event: Given | Done) -> list[tuple[int, Piece, str]]:
        """What an event lets be told: (choice, piece, finish reason or '')."""
        choice = event.choice
        if self._over[choice]:
            return []
        telling = self._tellings[choice]
        if isinstance(event, Given):
            piece = Piece(tokens=[]) if self.asked.silent else telling.push(event.tokens)
            if not piece.stopped:
                return [(choice, piece, "")]
            self._on_stop(self.answers[choice], "stop")
            return [(choice, piece, self._closes(choice, "stop"))]
        rest = telling.end()
        return [(choice, rest, self._closes(choice, "stop" if rest.stopped else event.reason))]

    def _closes(self, choice: int, reason: str) -> str:
        self._over[choice] = True
        self.open -= 1
        return "length" if self.asked.silent else reason

    def usage(self) -> dict[str, Any]:
        """Tokens counted: each prompt once, however many answers it has."""
        prompt = sum(len(each) for each in self.asked.prompts)
        said = sum(telling.count for telling in self._tellings)
        cached = sum(each.cached for each in self.answers[:: self.asked.n])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": said,
            "total_tokens": prompt + said,
            "prompt_tokens_details": {"cached_tokens": min(cached, prompt)},
        }

    # --- choices ----------------------------------------------------------------------------------------------------

    def logprobs(self, choice: int, piece: Piece) -> dict[str, Any] | None:
        """Of a piece's tokens, in this endpoint's style."""
        told = self.asked.logprobs
        if told is None or not piece.tokens:
            return None
        if self.asked.chat:
            return chat_logprobs(piece.tokens, self.tokenizer, told)
        before = len(self.text_of(choice)) if self.asked.echo else 0
        return completion_logprobs(piece.tokens, self.tokenizer, told, before + piece.begins)

    def text_of(self, choice: int) -> str:
        """The prompt's text, for echo."""
        return self.asked.texts[choice // self.asked.n]

    def echoed(self, choice: int) -> dict[str, Any] | None:
        """Log probabilities of the prompt."""
        if self.asked.logprobs is None:
            return None
        prompt = self.asked.prompts[choice // self.asked.n]
        told = self.answers[choice].prompt_told
        if len(told) != len(prompt) - 1:
            return None
        return completion_logprobs([Chosen(prompt[0]), *told], self.tokenizer, self.asked.logprobs, 0, True)


class StreamWriter(Writer):
    """Chunks as server-sent events."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.head["object"] = "chat.completion.chunk" if self.asked.chat else "text_completion"
        self._begun = [False] * len(self.answers)
        head = _json.encode(self.head)[:-1]
        self._front = b"data: " + head + b',"choices":[{"index":'
        tail = b',"usage":null' if self.asked.usage else b""
        self._back = b"}]" + tail + b"}\n\n"
        self._is_plain = self.asked.logprobs is None and not self.asked.token_ids

    def write(self, event: Given | Done) -> bytes:
        """The chunks of one event."""
        return b"".join(self._chunk(*each) for each in self.pieces(event))

    def _chunk(self, choice: int, piece: Piece, finish: str) -> bytes:
        front = b"" if self._begun[choice] else self._opening(choice)
        if not (piece.text or finish or (piece.tokens and not self._is_plain)):
            return front
        body = [self._front, b"%d" % choice]
        if self.asked.chat:
            delta = b'{"content":' + _json.encode(piece.text) + b"}" if piece.text or not finish else b"{}"
            body += [b',"delta":', delta]
        else:
            body += [b',"text":', _json.encode(piece.text)]
        found = None if self._is_plain else self.logprobs(choice, piece)
        body += [b',"logprobs":', b"null" if found is None else _json.encode(found)]
        if self.asked.token_ids:
            body += [b',"token_ids":', _json.encode([each.token for each in piece.tokens])]
        body += [b',"finish_reason":', b'"%s"' % finish.encode() if finish else b"null", self._back]
        return front + b"".join(body)

    def _opening(self, choice: int) -> bytes:
        """A chat says its role first, an echo its prompt."""
        self._begun[choice] = True
        if self.asked.chat:
            said: dict[str, Any] = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
        elif self.asked.echo:
            said = {"text": self.text_of(choice), "logprobs": self.echoed(choice)}
        else:
            return b""
        rest = _json.encode({**said, "finish_reason": None})[1:-1]
        return self._front + b"%d," % choice + rest + self._back

    def close(self) -> bytes:
        """Usage where it is asked for, and the end."""
        if not self.asked.usage:
            return DONE
        return b"data: " + _json.encode({**self.head, "choices": [], "usage": self.usage()}) + b"\n\n" + DONE


class WholeWriter(Writer):
    """One document."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.head["object"] = "chat.completion" if self.asked.chat else "text_completion"
        self._pieces: list[list[Piece]] = [[] for _ in self.answers]
        self._reasons = [""] * len(self.answers)

    def write(self, event: Given | Done) -> None:
        """Keep what an event tells."""
        for choice, piece, finish in self.pieces(event):
            self._pieces[choice].append(piece)
            self._reasons[choice] = finish or self._reasons[choice]

    def document(self) -> bytes:
        """The response."""
        choices = [self._choice(place) for place in range(len(self.answers))]
        return _json.encode({**self.head, "choices": choices, "usage": self.usage()})

    def _choice(self, choice: int) -> dict[str, Any]:
        text = "".join(piece.text for piece in self._pieces[choice])
        tokens = [each for piece in self._pieces[choice] for each in piece.tokens]
        found = self.logprobs(choice, Piece(text, tokens))
        made: dict[str, Any] = {"index": choice, "logprobs": found, "finish_reason": self._reasons[choice]}
        if self.asked.token_ids:
            made["token_ids"] = [each.token for each in tokens]
        if self.asked.chat:
            made["message"] = {"role": "assistant", "content": text, "refusal": None}
            return made
        if self.asked.echo:
            text = self.text_of(choice) + text
            made["logprobs"] = _joined(self.echoed(choice), found)
        return {**made, "text": text}


def _joined(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    """Two stretches of log probabilities as one."""
    if first is None or second is None:
        return first or second
    return {name: first[name] + second[name] for name in first}
