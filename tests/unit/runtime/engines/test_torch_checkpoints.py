"""Checkpoints that cannot be used are refused with the file, the field and what was expected."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import saved

from diptych.errors import InvalidInput
from diptych.runtime.engines.torch.engine import Setup, TorchEngine
from diptych.runtime.engines.torch.shape import shape_of

ONE = Setup(blocks=1)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("llama3-rope", tmp_path_factory.mktemp("sound"))[0]


@pytest.fixture
def place(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "model"))


def edited(place: Path, **fields: Any) -> None:
    config = json.loads((place / "config.json").read_text())
    config.update(fields)
    kept = {name: value for name, value in config.items() if value is not None}
    (place / "config.json").write_text(json.dumps(kept))


def said(place: Path, setup: Setup = ONE) -> str:
    with pytest.raises(InvalidInput) as caught:
        TorchEngine.load(place, setup)
    return str(caught.value)


CONFIGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "family": ({"model_type": "gpt2"}, ("config.json: model_type", "gpt2", "llama, qwen2, qwen3")),
    "no family": ({"model_type": None}, ("model_type: is missing",)),
    "missing": ({"hidden_size": None}, ("config.json: hidden_size: is missing",)),
    "no number": ({"vocab_size": "many"}, ("vocab_size: is 'many'", "whole number")),
    "negative": ({"num_hidden_layers": -1}, ("num_hidden_layers: is '-1'",)),
    "truth": ({"num_attention_heads": True}, ("num_attention_heads: is 'True'",)),
    "heads": ({"num_key_value_heads": 3}, ("num_key_value_heads: is 3", "divisor of the 4")),
    "odd": ({"head_dim": 15}, ("head_dim: is 15", "even")),
    "act": ({"hidden_act": "gelu"}, ("hidden_act: is 'gelu'", "silu")),
    "rope": ({"rope_parameters": {"rope_type": "yarn"}}, ("rope_type: is 'yarn'", "llama3")),
    "rope numbers": (
        {"rope_parameters": {"rope_type": "llama3", "factor": 8}},
        ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    ),
    "window": ({"use_sliding_window": True}, ("use_sliding_window",)),
    "quantised": ({"quantization_config": {"bits": 4}}, ("quantization_config", "plain weights")),
    "other shape": ({"intermediate_size": 96}, ("mlp.gate_proj.weight", "[160, 64]", "[96, 64]")),
    "more layers": ({"num_hidden_layers": 4}, ("lacks the tensor model.layers.3.",)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs(place: Path, name: str) -> None:
    fields, wanted = CONFIGS[name]
    edited(place, **fields)
    found = said(place)
    assert all(part in found for part in wanted), found


def test_all_mistakes_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        shape_of({"model_type": "lama", "hidden_size": 0, "vocab_size": 1.5, "hidden_act": "relu"}, "here")
    assert len(caught.value.findings) >= 6
    assert "did you mean llama?" in str(caught.value)


def torn(place: Path) -> None:
    file = place / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


def of_integers(place: Path) -> None:
    tensors = load_file(place / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int32)
    save_file(tensors, place / "model.safetensors")


def index_of_another(place: Path) -> None:
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))


def index_of_what_is_not_there(place: Path) -> None:
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))


def index_without_map(place: Path) -> None:
    (place / "model.safetensors.index.json").write_text("{}")


FILES: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "no config": (lambda place: (place / "config.json").unlink(), ("config.json: cannot be read",)),
    "no json": (lambda place: (place / "config.json").write_text("{"), ("config.json: is not JSON",)),
    "a list": (lambda place: (place / "config.json").write_text("[]"), ("is a JSON list",)),
    "no weights": (lambda place: (place / "model.safetensors").unlink(), ("holds no *.safetensors",)),
    "torn": (torn, ("model.safetensors: cannot be read", "a whole safetensors file")),
    "integers": (of_integers, ("model.norm.weight: is torch.int32", "float32")),
    "index away": (index_of_another, ("weight_map: names '../model.safetensors'", "a file beside it")),
    "index wrong": (index_of_what_is_not_there, ("model.safetensors: lacks a",)),
    "index empty": (index_without_map, ("weight_map: is no object",)),
}


@pytest.mark.parametrize("name", FILES)
def test_files(place: Path, name: str) -> None:
    spoil, wanted = FILES[name]
    spoil(place)
    found = said(place)
    assert all(part in found for part in wanted), found


def test_a_checkpoint_in_shards_is_the_same_one(place: Path) -> None:
    tensors = load_file(place / "model.safetensors")
    (place / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"a.safetensors": names[: len(names) // 2], "b.safetensors": names[len(names) // 2 :]}
    for file, some in halves.items():
        save_file({name: tensors[name] for name in some}, place / file)
    where = {name: file for file, some in halves.items() for name in some}
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert torch.equal(TorchEngine.load(place, ONE).decoder.embedding, tensors["model.embed_tokens.weight"])


def test_setups(sound: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"(?s)blocks: is 0.*block_tokens: is -1"):
        Setup(blocks=0, block_tokens=-1)
    assert "is no directory" in said(tmp_path / "nowhere")
    assert "did you mean int8?" in said(sound, Setup(weights="int9"))
    assert "kv: is 'int3'" in said(sound, Setup(kv="int3"))
    assert "device: is 'tpu'" in said(sound, Setup(device="tpu"))
    if not torch.cuda.is_available():
        assert "cuda:0 is not there" in said(sound, Setup(device="cuda:0"))


def test_roles_of_one_checkpoint_know_each_other_and_others_not(sound: Path, place: Path) -> None:
    one, other = (TorchEngine.load(sound, Setup(blocks=1, weights=each, name="m")) for each in ("fp32", "int8"))
    assert one.state.identity == other.state.identity
    tensors = load_file(place / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, place / "model.safetensors")
    assert TorchEngine.load(place, Setup(blocks=1, name="m")).state.identity != one.state.identity
