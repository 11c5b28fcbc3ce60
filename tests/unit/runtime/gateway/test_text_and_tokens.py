"""Text becomes tokens and comes back the same, however it is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from diptych.errors import InvalidInput
from diptych.runtime.gateway.asked import Asked
from diptych.runtime.gateway.chat_template import ChatTemplate, TemplateRefused
from diptych.runtime.gateway.stops import StopStrings
from diptych.runtime.gateway.telling import Telling, finite
from diptych.runtime.gateway.text import FileTokenizer, ToyTokenizer
from diptych.runtime.messages import Chosen, Params

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "the quick brown fox",
    "héllo wörld 😀 你好",
    "a\n\n  b\tc",
    "日本語テキスト",
    "e\u0301 combining",
    "👩‍👩‍👧‍👦 family",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's tokenizer: byte-level BPE of 400 tokens with a chat template."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS * 20, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    path = tmp_path_factory.mktemp("tokenizer")
    made.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> FileTokenizer:
    return FileTokenizer.load(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_is_the_text_and_never_half_a_character(tokenizer: FileTokenizer, text: str) -> None:
    for one in (tokenizer, ToyTokenizer()):
        tokens = one.encode(text)
        stream = one.stream()
        pieces = [stream.push(token) for token in tokens]
        assert "�" not in "".join(pieces)
        assert "".join(pieces) + stream.flush() == text == one.decode(tokens)


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_bytes(tokenizer: FileTokenizer, text: str) -> None:
    for one in (tokenizer, ToyTokenizer()):
        assert b"".join(one.piece(token) for token in one.encode(text)) == text.encode()


def test_an_answer_cut_within_a_character_says_so_at_its_end(tokenizer: FileTokenizer) -> None:
    for one in (tokenizer, ToyTokenizer()):
        tokens = [token for byte in "é".encode()[:1] for token in one.encode("x") + _token_of(one, bytes([byte]))]
        stream = one.stream()
        assert "".join(stream.push(token) for token in tokens) == "x"
        assert stream.flush() == "�"


def _token_of(tokenizer: FileTokenizer | ToyTokenizer, piece: bytes) -> list[int]:
    return [next(token for token in range(tokenizer.vocabulary) if tokenizer.piece(token) == piece)]


def test_special_tokens_are_not_text_unless_asked_for(tokenizer: FileTokenizer) -> None:
    tokens = [*tokenizer.encode("hi"), 2]
    for skip, said in ((True, "hi"), (False, "hi<|im_end|>")):
        stream = tokenizer.stream(skip)
        assert "".join(stream.push(token) for token in tokens) + stream.flush() == said
    assert tokenizer.piece(2) == b"<|im_end|>"


def test_a_chat_is_written_as_the_model_expects_it(tokenizer: FileTokenizer) -> None:
    tokens = tokenizer.chat([{"role": "user", "content": " hi "}], True, {})
    assert tokens == [1, *tokenizer.encode("user\nhi"), 2, *tokenizer.encode("\n"), 1, *tokenizer.encode("assistant\n")]
    assert tokenizer.bos == 0


HOSTILE = {
    "reaching out": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "reaching through a global": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "changing what it is given": "{{ messages.append(1) }}",
    "without end": "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
    "a range too long": "{% for a in range(10**9) %}{% endfor %}",
    "refusing": "{{ raise_exception('only the user may begin') }}",
    "wrong": "{{ messages[7].content }}",
    "dividing": "{{ 1 // 0 }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_is_data(name: str) -> None:
    with pytest.raises(TemplateRefused):
        ChatTemplate(HOSTILE[name], {}).render([{"role": "user", "content": "hi"}], True, {})


def test_variables_of_a_client_do_not_replace_the_conversation() -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ enable_thinking }}", {})
    assert (
        template.render([{"content": "real"}], True, {"messages": [{"content": "fake"}], "enable_thinking": False})
        == "realFalse"
    )


def test_a_folder_without_a_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"tokenizer\.json"):
        FileTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InvalidInput, match="cannot be read"):
        FileTokenizer.load(tmp_path)


# --- stop strings ---------------------------------------------------------------------------------------------------------


def one_at_a_time(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The dull twin: looks for every stop string after every character."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3, unique=True).map(tuple),
)
def test_stop_strings_are_found_however_the_text_is_cut(pieces: list[str], stops: tuple[str, ...]) -> None:
    matcher, said = StopStrings(stops), ""
    for piece in pieces:
        said += matcher.push(piece)
        if matcher.hit:
            break
    said += "" if matcher.hit else matcher.flush()
    assert (said, bool(matcher.hit)) == one_at_a_time("".join(pieces), stops)


def test_what_is_held_back_may_still_become_a_stop() -> None:
    matcher = StopStrings(("<end>",))
    assert [matcher.push(piece) for piece in ("a<", "e", "x<en")] == ["a", "", "<ex"]
    assert matcher.push("d>b") == ""
    assert matcher.hit == "<end>"


def test_no_stop_before_the_least_length() -> None:
    asked = Asked(False, "m", ((1,),), Params(9, min_tokens=3), stop=("b",))
    telling = Telling(asked, ToyTokenizer())
    assert telling.push(tuple(Chosen(byte) for byte in b"abba")).text == "ab"
    assert telling.count == 3


def test_json_carries_every_probability() -> None:
    assert [finite(value) for value in (None, float("-inf"), float("nan"), -1.5)] == [-9999.0, -9999.0, -9999.0, -1.5]
