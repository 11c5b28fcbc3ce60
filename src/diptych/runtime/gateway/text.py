"""Text and tokens: whole prompts one way, single tokens the other, as they come."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as Fast
from tokenizers.decoders import DecodeStream

from diptych.errors import Finding, InvalidInput
from diptych.runtime.gateway.chat_template import ChatTemplate

_MAX_CONFIG = 64 << 20


class TextStream(Protocol):
    """One answer's tokens becoming text. Characters come whole; `flush` gives what is left of an unfinished one."""

    def push(self, token: int) -> str: ...
    def flush(self) -> str: ...


class Tokenizer(Protocol):
    """One vocabulary."""

    vocabulary: int
    bos: int | None

    def encode(self, text: str, special: bool = True) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...
    def piece(self, token: int) -> bytes: ...
    def stream(self, skip_special: bool = True) -> TextStream: ...
    def chat(self, messages: Sequence[Mapping[str, Any]], prompt: bool, extra: Mapping[str, Any]) -> list[int]: ...


class ToyTokenizer:
    """A byte is a token: every byte of UTF-8 is below 255, which ends an answer."""

    vocabulary: int = 256
    bos: int | None = None

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < 255).decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        return bytes((token,)) if token < 255 else b""

    def stream(self, skip_special: bool = True) -> TextStream:
        return _ByteStream()

    def chat(self, messages: Sequence[Mapping[str, Any]], prompt: bool, extra: Mapping[str, Any]) -> list[int]:
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(lines) + ("assistant: " if prompt else ""))


class _ByteStream:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(bytes((token,))) if token < 255 else ""

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class FileTokenizer:
    """The tokenizer.json of a checkpoint's folder, with its chat template."""

    def __init__(self, fast: Fast, template: ChatTemplate | None, bos: int | None) -> None:
        self._fast, self._template, self.bos = fast, template, bos
        self.vocabulary = fast.get_vocab_size(with_added_tokens=True)
        self._added = fast.get_added_tokens_decoder()
        self._bytes = _alphabet() if '"ByteLevel"' in fast.to_str()[-200_000:] or _is_byte_level(fast) else None

    @classmethod
    def load(cls, folder: Path) -> FileTokenizer:
        """Read a folder. Raises InvalidInput: no tokenizer.json, or one that cannot be read."""
        path = folder / "tokenizer.json"
        try:
            fast = Fast.from_file(str(path))
        except Exception as error:
            raise InvalidInput(
                Finding(str(path), f"cannot be read: {str(error)[:200]}", "a Hugging Face tokenizer.json")
            ) from None
        config = _config(folder / "tokenizer_config.json")
        bos = _content(config.get("bos_token"))
        return cls(fast, ChatTemplate.of(folder, config), fast.token_to_id(bos) if bos else None)

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(self._fast.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._fast.decode(list(tokens), skip_special_tokens=True))

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        text = self._fast.id_to_token(token)
        if text is None:
            return b""
        if token in self._added:
            return text.encode()
        if self._bytes is not None:
            return bytes(self._bytes.get(letter, 63) for letter in text)
        if re.fullmatch(r"<0x[0-9A-F]{2}>", text):
            return bytes((int(text[3:5], 16),))
        return text.replace("▁", " ").encode()

    def stream(self, skip_special: bool = True) -> TextStream:
        return _FastStream(self._fast, skip_special)

    def chat(self, messages: Sequence[Mapping[str, Any]], prompt: bool, extra: Mapping[str, Any]) -> list[int]:
        """Tokens of a conversation. Raises TemplateRefused: no template, or one that refuses these messages."""
        template = self._template or ChatTemplate.none()
        return self.encode(template.render(messages, prompt, extra), special=False)


class _FastStream:
    """`DecodeStream` emits a character once it is whole; what it still holds at the end is decoded from its tokens."""

    def __init__(self, fast: Fast, skip_special: bool) -> None:
        self._fast, self._skip = fast, skip_special
        self._stream = DecodeStream(skip_special_tokens=skip_special)
        self._held: list[int] = []

    def push(self, token: int) -> str:
        self._held.append(token)
        try:
            said = self._stream.step(self._fast, token)
        except (
            Exception
        ):  # a decoder whose text of old tokens changed with new ones cannot go on; begin anew behind them
            self._stream = DecodeStream(skip_special_tokens=self._skip)
            return self.flush()
        if said is None:
            return ""
        self._held.clear()
        return str(said)

    def flush(self) -> str:
        held, self._held = self._held, []
        return str(self._fast.decode(held, skip_special_tokens=self._skip)) if held else ""


def _alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes, turned over."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(rest)}


def _is_byte_level(fast: Fast) -> bool:
    return '"ByteLevel"' in json.dumps(json.loads(fast.to_str()).get("decoder"))


def _content(token: Any) -> str | None:
    """A token of a configuration: its text, or an object with it."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        if path.stat().st_size > _MAX_CONFIG:
            raise ValueError("too large")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(
            Finding(str(path), f"cannot be read: {str(error)[:200]}", "a tokenizer's configuration")
        ) from None
    return found if isinstance(found, dict) else {}
