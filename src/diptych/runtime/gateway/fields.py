"""What a request may say: OpenAI's fields, those that vLLM's users add, and those that are refused by name.

Types and bounds of single fields are here; what needs the model or two fields at once is `asked`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from diptych.runtime.gateway.refusal import Refusal, invalid, unsupported

MAX_CHOICES = 128
_I64 = (1 << 63) - 1

_Count = Annotated[int, Meta(ge=0, le=_I64)]
_Token = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Stop = Annotated[str, Meta(min_length=1, max_length=1024)]
_Prompt = str | Annotated[list[_Token | str | list[_Token]], Meta(min_length=1)]


class StreamOptions(msgspec.Struct):
    """How a stream is told."""

    include_usage: bool | None = None


class Common(msgspec.Struct, kw_only=True):
    """Fields of both ways to ask; None is what a client that says nothing means."""

    model: _Name
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _Count | None = None
    min_tokens: _Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None
    min_p: _Share | None = None
    seed: Annotated[int, Meta(ge=-_I64 - 1, le=_I64)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=32)] | None = None
    stop_token_ids: Annotated[list[_Token], Meta(max_length=64)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: _Name | None = None


class CompletionFields(Common, kw_only=True):
    """/v1/completions."""

    prompt: _Prompt
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=20)] | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class Part(msgspec.Struct):
    """One part of a message; only text is understood."""

    type: Annotated[str, Meta(max_length=64)]
    text: str | None = None


class ChatMessage(msgspec.Struct):
    """One turn."""

    role: Annotated[str, Meta(pattern="^(system|developer|user|assistant|tool|function)$")]
    content: str | list[Part] | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None
    audio: Any = None


class ChatFields(Common, kw_only=True):
    """/v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: _Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, str | bool | int | float | None] | None = None


_OURS = re.compile(
    r"^(kv_.*|bootstrap_.*|remote_.*|disagg.*|do_remote_.*|ec_transfer_params|routed_dp_rank|data_parallel_rank|dp_rank"
    r"|request_id|rid|transfer_id|priority_override|prefill_.*|decode_.*)$"
)
"""What only this server says to its workers: where KV comes from and goes, and how requests are named."""

OUR_HEADERS = re.compile(
    rb"^(x-prefiller.*|x-prefill-.*|x-decode-.*|x-data-parallel-.*|x-kv-.*|x-dp-rank|x-trtllm-.*|x-disagg.*|x-bootstrap-.*"
    rb"|x-remote-.*|x-worker-.*|x-gateway-destination-.*)$"
)

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"], []),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "suffix": ("",),
    "use_beam_search": (False,),
    "repetition_penalty": (1, 1.0),
    "length_penalty": (1, 1.0),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": ([],),
    "guided_grammar": (),
    "structured_outputs": (),
    "regex": (),
    "ebnf": (),
    "json_schema": (),
    "logits_processors": ([],),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "priority": (0,),
    "chat_template": (),
    "documents": ([],),
    "lora_path": (),
    "lora_request": (),
}
"""Meaningful fields that nothing here obeys, with the values by which a client asks for nothing."""

F = TypeVar("F", bound=Common)


def read(body: bytes, kind: type[F]) -> F:
    """A request body as fields. Raises Refusal: not JSON, not an object, fields that are wrong, refused or ours alone."""
    document = _json(body)
    if not isinstance(document, dict):
        raise invalid("the body must be a JSON object")
    refuse_ours(document)
    for name in _NEUTRAL.keys() & document.keys():
        if document[name] is not None and document[name] not in _NEUTRAL[name]:
            raise unsupported(name)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None


def refuse_ours(document: Mapping[str, Any]) -> None:
    """Nothing a client says chooses where KV comes from. Raises Refusal."""
    for name in document:
        if _OURS.match(name):
            raise invalid(f"{name[:64]} is not a client's to set", name[:64], "forbidden_parameter")


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise invalid("the body is nested too deeply", code="invalid_json") from None
    except msgspec.MsgspecError as error:
        raise invalid(f"the body is not JSON that can be read: {str(error)[:200]}", code="invalid_json") from None


_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<where>(?:key in )?\$[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>\w+)`$")


def _wrong_field(said: str) -> Refusal:
    """The validator's sentence as OpenAI's clients expect it: the field apart from what is wrong with it."""
    match = _AT.match(said)
    what = match["what"] if match else said
    where = ((match["where"] or "") if match else "").replace("key in ", "").removeprefix("$").lstrip(".")
    if missing := _MISSING.match(what):
        name = f"{where}.{missing['name']}" if where else missing["name"]
        return invalid(f"{name} is required", name, "missing_required_parameter")
    return invalid(f"{where or 'body'}: {what[0].lower()}{what[1:]}", where or None, "invalid_value")
