"""A model's chat template, rendered in a sandbox that cannot change what it is given, and bounded."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from diptych.errors import Finding, InvalidInput

MAX_TEMPLATE = 1 << 20
MAX_TEXT = 16 << 20
RESERVED = frozenset(("messages", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now"))


class TemplateRefused(Exception):
    """These messages cannot be written as the model expects them."""


class ChatTemplate:
    """A template of `tokenizer_config.json`, `chat_template.jinja` or `chat_template.json`."""

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        if len(source) > MAX_TEMPLATE:
            raise InvalidInput(Finding("chat_template", f"{len(source):,} characters", f"at most {MAX_TEMPLATE:,}"))
        room = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        room.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        room.globals |= {"raise_exception": _refuse, "strftime_now": _today, **names}
        try:
            self._template = room.from_string(source)
        except TemplateError as error:
            raise InvalidInput(
                Finding("chat_template", f"cannot be read: {str(error)[:200]}", "a jinja2 template")
            ) from None

    @classmethod
    def of(cls, folder: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
        """The template of a checkpoint's folder, or none."""
        source = _source(folder, config)
        names = {name: _content(config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        return None if source is None else cls(source, names)

    @classmethod
    def none(cls) -> ChatTemplate:
        """What stands for a missing one: it refuses."""
        return cls("{{ raise_exception('this model has no chat template; use /v1/completions') }}", {})

    def render(self, messages: Sequence[Mapping[str, Any]], prompt: bool, extra: Mapping[str, Any]) -> str:
        """The text of a conversation; `prompt` asks for the beginning of the answer. Raises TemplateRefused."""
        values = {name: value for name, value in extra.items() if name not in RESERVED}
        pieces, size = [], 0
        try:
            for piece in self._template.generate(messages=messages, add_generation_prompt=prompt, tools=None, **values):
                size += len(piece)
                if size > MAX_TEXT:
                    raise TemplateRefused(f"the conversation is longer than {MAX_TEXT:,} characters")
                pieces.append(piece)
        except TemplateRefused:
            raise
        except Exception as error:  # a template is data: whatever it trips over is its answer
            raise TemplateRefused(
                f"the model's chat template refuses these messages: {type(error).__name__}: {str(error)[:200]}"
            ) from None
        return "".join(pieces)


def _source(folder: Path, config: Mapping[str, Any]) -> str | None:
    apart = folder / "chat_template.jinja"
    if apart.exists():
        return apart.read_text(encoding="utf-8")[: MAX_TEMPLATE + 1]
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = next((each.get("template") for each in found if each.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _content(token: Any) -> str:
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


def _refuse(message: str) -> None:
    raise TemplateRefused(str(message)[:500])


def _today(form: str) -> str:
    return datetime.datetime.now(datetime.UTC).strftime(form)
