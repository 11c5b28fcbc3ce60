"""OpenAI's own client as a stranger, its strict types as the judge of every answer."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from fake_workers import MODEL
from openai import OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from running import Running


@pytest.fixture(scope="module")
def client(gateway: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=10) as made:
        yield made


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == ("toy", "model")


@pytest.mark.parametrize("logprobs", [None, 0, 5])
def test_a_chat(client: OpenAI, logprobs: int | None) -> None:
    how = {} if logprobs is None else {"logprobs": True, "top_logprobs": logprobs}
    raw = client.chat.completions.with_raw_response.create(
        model="toy", messages=MESSAGES, max_completion_tokens=6, n=2, **how
    )
    found = ChatCompletion.model_validate_json(raw.text, strict=True)
    assert [choice.index for choice in found.choices] == [0, 1]
    assert found.usage is not None
    assert found.usage.completion_tokens == 12
    if logprobs is not None:
        assert found.choices[0].logprobs is not None
        assert len(found.choices[0].logprobs.content or ()) == 6


def test_a_streamed_chat(client: OpenAI) -> None:
    how = {"model": "toy", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(**how)
    chunks = list(client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        ChatCompletionChunk.model_validate_json(chunk.model_dump_json(), strict=True)
    assert chunks[0].choices[0].delta.role == "assistant"
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage


@pytest.mark.parametrize("echo", [True, False])
def test_a_completion(client: OpenAI, echo: bool) -> None:
    raw = client.completions.with_raw_response.create(
        model="toy", prompt=["abc", "de"], max_tokens=5, logprobs=2, echo=echo, temperature=0, seed=1, stop=["\0\0"]
    )
    found = (
        raw.parse() if echo else Completion.model_validate_json(raw.text, strict=True)
    )  # the type forgets echo's null
    first = found.choices[0]
    assert first.logprobs is not None
    assert len(first.logprobs.tokens or ()) == 5 + 3 * echo
    text = bytes(MODEL.expected(list(b"abc"), 5)).decode("utf-8", "replace")
    assert first.text == ("abc" if echo else "") + text


def test_a_streamed_completion(client: OpenAI) -> None:
    parts = list(client.completions.create(model="toy", prompt=[1, 2, 3], max_tokens=9, stream=True, temperature=0))
    assert [part.choices[0].finish_reason for part in parts[-2:]] in ([None, "length"], ["length"])
    said = "".join(part.choices[0].text for part in parts)
    assert said == bytes(MODEL.expected([1, 2, 3], 9)).decode("utf-8", "replace")


def test_errors_are_the_clients_own_classes(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="toy", messages=MESSAGES, temperature=9)
    assert (bad.value.param, bad.value.code, bad.value.type) == (
        "temperature",
        "invalid_value",
        "invalid_request_error",
    )
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="tools is not supported"):
        client.chat.completions.create(
            model="toy", messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]
        )
