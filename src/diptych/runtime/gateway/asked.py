"""A request as this server understands it: prompts in tokens, parameters for workers, and how the answer is to be told."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

from diptych.runtime.gateway.chat_template import TemplateRefused
from diptych.runtime.gateway.fields import MAX_CHOICES, ChatFields, ChatMessage, Common, CompletionFields
from diptych.runtime.gateway.refusal import Refusal, invalid, unsupported
from diptych.runtime.gateway.text import Tokenizer
from diptych.runtime.messages import Params

INLINE_TEXT = 16 << 10
"""Characters that are turned into tokens at once; longer texts go to a thread, so that other streams are not held up."""
DEFAULT_TOKENS = 16
LEAST_TOP_P = 1e-6


@dataclass(frozen=True, slots=True)
class Model:
    """What is served: its name, its text, and what its workers said of themselves."""

    name: str
    tokenizer: Tokenizer
    vocabulary: int
    max_context: int


@dataclass(frozen=True, slots=True)
class Asked:
    """`prompts` × `n` answers. `logprobs` is how many alternatives to tell; `silent` asks for the prompt alone."""

    chat: bool
    model: str
    prompts: tuple[tuple[int, ...], ...]
    params: Params
    n: int = 1
    stream: bool = False
    usage: bool = False
    echo: bool = False
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    keeps_stop: bool = False
    skips_special: bool = True
    token_ids: bool = False
    silent: bool = False
    salt: bytes = b""
    seeded: bool = False
    texts: tuple[str, ...] = field(default=())

    def params_of(self, choice: int) -> Params:
        """Answers of one prompt draw apart: each has its own seed."""
        if self.params.temperature == 0 or choice == 0:
            return self.params
        return replace_params(self.params, seed=_wrapped(self.params.seed + choice))


def replace_params(params: Params, **changes: Any) -> Params:
    """A copy with changes."""
    return Params(**({name: getattr(params, name) for name in params.__struct_fields__} | changes))


async def chat(fields: ChatFields, model: Model, tenant: bytes) -> Asked:
    """A conversation. Raises Refusal."""
    _check_model(fields, model)
    messages = [_message(each, place) for place, each in enumerate(fields.messages)]
    begins = fields.add_generation_prompt is not False and not fields.continue_final_message
    size = sum(len(each["content"]) for each in messages)
    extra = fields.chat_template_kwargs or {}
    try:
        prompt = await _perhaps_in_a_thread(size, partial(model.tokenizer.chat, messages, begins, extra))
    except TemplateRefused as error:
        raise invalid(str(error), "messages", "invalid_messages") from None
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    told = (fields.top_logprobs or 0) if fields.logprobs else None
    limit = fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens
    asked = Asked(True, fields.model, (tuple(prompt),), Params(0), logprobs=told)
    return _common(fields, asked, model, tenant, limit, default=model.max_context)


async def completion(fields: CompletionFields, model: Model, tenant: bytes) -> Asked:
    """A text to go on with. Raises Refusal."""
    _check_model(fields, model)
    if fields.best_of not in (None, 1, fields.n or 1):
        raise unsupported("best_of", "it must be 1 or n")
    special = fields.add_special_tokens is not False
    prompts, texts = [], []
    for each in _prompts(fields.prompt):
        if isinstance(each, str):
            tokens = await _perhaps_in_a_thread(len(each), partial(model.tokenizer.encode, each, special))
            texts.append(each)
        else:
            tokens = list(each)
            texts.append(model.tokenizer.decode(tokens) if fields.echo else "")
        prompts.append(tuple(tokens))
    asked = Asked(
        False,
        fields.model,
        tuple(prompts),
        Params(0),
        echo=bool(fields.echo),
        logprobs=fields.logprobs,
        texts=tuple(texts),
    )
    return _common(fields, asked, model, tenant, fields.max_tokens, default=DEFAULT_TOKENS)


def _check_model(fields: Common, model: Model) -> None:
    if fields.model != model.name:
        raise Refusal(
            404, f"the model {fields.model!r} is not served here; {model.name!r} is", "model_not_found", "model"
        )


def _message(said: ChatMessage, place: int) -> dict[str, Any]:
    where = f"messages[{place}]"
    for name in ("tool_calls", "function_call", "audio"):
        if getattr(said, name):
            raise unsupported(f"{where}.{name}")
    message = {"role": said.role, "content": _content(said, where)}
    for name in ("name", "tool_call_id"):
        if (value := getattr(said, name)) is not None:
            message[name] = value
    return message


def _content(said: ChatMessage, where: str) -> str:
    if said.content is None:
        if said.role == "assistant":
            return ""
        raise invalid(f"{where}.content is required", f"{where}.content", "missing_required_parameter")
    if isinstance(said.content, str):
        return said.content
    for part in said.content:
        if part.type not in ("text", "refusal"):
            raise unsupported(f"{where}.content of type {part.type!r}")
        if part.text is None:
            raise invalid(f"{where}.content: a text part without text", f"{where}.content")
    return "".join(part.text or "" for part in said.content)


def _prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """One text, one list of tokens, or a list of either."""
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(each, int) for each in prompt):
        return [prompt]
    if any(isinstance(each, int) for each in prompt):
        raise invalid("a prompt is text, tokens, or a list of one of these", "prompt")
    return prompt


def _common(fields: Common, asked: Asked, model: Model, tenant: bytes, limit: int | None, default: int) -> Asked:
    """What both ways share: bounds by the model, parameters, stop strings."""
    asked = replace(asked, prompts=tuple(_with_a_token(prompt, model) for prompt in asked.prompts), n=fields.n or 1)
    if asked.n * len(asked.prompts) > MAX_CHOICES:
        raise invalid(f"{asked.n * len(asked.prompts)} answers in one request; at most {MAX_CHOICES}", "n")
    longest = max(len(prompt) for prompt in asked.prompts)
    silent = limit == 0
    if silent and (asked.chat or not asked.echo):
        raise invalid("max_tokens must be at least 1", "max_tokens")
    room = model.max_context - longest
    if room < (1 if limit is None else max(limit, 1)):
        raise invalid(
            f"this model's context is {model.max_context} tokens; {longest} in the prompt and "
            f"{limit if limit is not None else 1} for the answer are more",
            "max_tokens" if longest < model.max_context else "messages" if asked.chat else "prompt",
            "context_length_exceeded",
        )
    wanted = max(1, min(room, default if limit is None else limit))
    if (fields.min_tokens or 0) > wanted:
        raise invalid(f"min_tokens is {fields.min_tokens} and max_tokens {wanted}", "min_tokens")
    prompt_logprobs = asked.logprobs if asked.echo and asked.logprobs is not None else None
    return replace(
        asked,
        params=_params(fields, model, wanted, asked.logprobs, prompt_logprobs),
        stream=bool(fields.stream),
        usage=bool(fields.stream_options and fields.stream_options.include_usage),
        stop=_stops(fields.stop),
        keeps_stop=bool(fields.include_stop_str_in_output),
        skips_special=fields.skip_special_tokens is not False,
        token_ids=bool(fields.return_token_ids),
        silent=silent,
        salt=_salt(tenant, fields.cache_salt),
        seeded=fields.seed is not None,
    )


def _with_a_token(prompt: tuple[int, ...], model: Model) -> tuple[int, ...]:
    if not prompt and model.tokenizer.bos is not None:
        return (model.tokenizer.bos,)
    if not prompt:
        raise invalid("the prompt has no tokens", "prompt")
    if max(prompt) >= model.vocabulary:
        raise invalid(f"token {max(prompt)} in a vocabulary of {model.vocabulary}", "prompt")
    return prompt


def _params(fields: Common, model: Model, wanted: int, logprobs: int | None, prompt_logprobs: int | None) -> Params:
    seed = fields.seed if fields.seed is not None else secrets.randbits(63)
    return Params(
        max_tokens=wanted,
        temperature=1.0 if fields.temperature is None else float(fields.temperature),
        top_p=1.0 if fields.top_p is None else max(float(fields.top_p), LEAST_TOP_P),
        top_k=max(fields.top_k or 0, 0),
        min_p=float(fields.min_p or 0),
        seed=seed,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        min_tokens=fields.min_tokens or 0,
        presence_penalty=float(fields.presence_penalty or 0),
        frequency_penalty=float(fields.frequency_penalty or 0),
        bias=_bias(fields.logit_bias or {}, model),
        stop_tokens=tuple(_known(fields.stop_token_ids or (), model)),
        ignore_eos=bool(fields.ignore_eos),
    )


def _known(tokens: Any, model: Model) -> Any:
    for token in tokens:
        if token >= model.vocabulary:
            raise invalid(f"token {token} in a vocabulary of {model.vocabulary}", "stop_token_ids")
    return tokens


def _bias(said: dict[str, float], model: Model) -> tuple[tuple[int, float], ...]:
    if len(said) > 1024:
        raise invalid(f"{len(said)} biases; at most 1024", "logit_bias")
    found = []
    for name, value in said.items():
        if not (name.isascii() and name.isdecimal() and len(name) < 11 and int(name) < model.vocabulary):
            raise invalid(f"{name[:40]!r} is no token of a vocabulary of {model.vocabulary}", "logit_bias")
        found.append((int(name), float(value)))
    return tuple(found)


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(dict.fromkeys(stop))


def _salt(tenant: bytes, said: str | None) -> bytes:
    """What keeps tenants' prefixes apart: a digest, never what a client sent."""
    if not tenant and said is None:
        return b""
    return blake2b((said or "").encode(), key=tenant[:64], digest_size=16).digest()


def _wrapped(seed: int) -> int:
    """Within 64 signed bits."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


T = TypeVar("T")


async def _perhaps_in_a_thread(size: int, work: Callable[[], T]) -> T:
    return work() if size <= INLINE_TEXT else await asyncio.to_thread(work)
