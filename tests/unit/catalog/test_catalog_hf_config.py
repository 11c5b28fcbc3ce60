"""Configs as people have them: every family, missing fields, files that are not configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.hf_config import MAX_CONFIG_BYTES, model_from_config, native_dtype, read_hf_config
from diptych.catalog.load import DATA
from diptych.catalog.model import Mlp, StateSpace
from diptych.errors import InvalidCatalog

PLAIN = {
    "model_type": "nobody-knows",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
}


def build(**changes: Any) -> Any:
    return model_from_config({**PLAIN, **changes}, "m", "config.json")


def write(path: Path, config: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_an_unknown_architecture_with_ordinary_fields_is_a_model() -> None:
    model = build()
    attention = 64 * 64 * 2 + 2 * 64 * 2 * 8  # q and o, k and v: 2 heads of 8
    assert model.parameters == 4 * (attention + 3 * 64 * 128) + 2 * 1000 * 64
    assert model.kv_bytes_per_token(Dtype.BF16) == 4 * 2 * 2 * 8 * 2
    assert model.max_context == 131072


def test_mha_when_no_kv_heads_are_named_and_mqa_when_it_says_so() -> None:
    config = {key: value for key, value in PLAIN.items() if key != "num_key_value_heads"}
    assert model_from_config(config, "m", "c").kv_heads == 8
    assert model_from_config({**config, "multi_query": True}, "m", "c").kv_heads == 1


def test_gpt_spellings() -> None:
    config = {
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 4,
        "vocab_size": 100,
        "activation_function": "gelu_new",
        "n_positions": 2048,
    }
    model = model_from_config(config, "gptj", "c")
    assert model.max_context == 2048
    (group,) = model.layers
    assert group.mlp == Mlp(4 * 32, gated=False)


def test_a_directory_names_its_model(tmp_path: Path) -> None:
    model = read_hf_config(write(tmp_path / "my-model", PLAIN))
    assert model.name == "my-model"
    assert Catalog.load().model(tmp_path / "my-model") == model
    assert Catalog.load().model(str(tmp_path / "my-model" / "config.json")) == model


def test_a_local_directory_comes_before_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Catalog.load().model("mine/Llama-3.1-8B").num_layers == 32
    write(tmp_path / "mine" / "Llama-3.1-8B", PLAIN)
    assert Catalog.load().model("mine/Llama-3.1-8B").num_layers == 4


def test_text_config_is_found_and_the_outer_quantisation_kept() -> None:
    outer = {"text_config": PLAIN, "quantization_config": {"quant_method": "fp8"}, "tie_word_embeddings": True}
    model = model_from_config(outer, "m", "c")
    assert model.native is Dtype.FP8
    assert model.tied_embeddings


def test_families_that_tie_by_default() -> None:
    assert build(model_type="gemma2", hidden_activation="gelu").tied_embeddings
    assert not build(model_type="llama").tied_embeddings


def test_windows_of_the_families() -> None:
    def windows(**changes: Any) -> list[tuple[int, int | None]]:
        return [(count, attention.window) for count, attention in build(**changes).attention_groups()]

    assert windows(model_type="mistral", sliding_window=16) == [(4, 16)]
    assert windows(model_type="qwen2", sliding_window=16) == [(4, None)]
    assert windows(model_type="qwen2", sliding_window=16, use_sliding_window=True, max_window_layers=1) == [
        (1, None),
        (3, 16),
    ]
    assert windows(model_type="gemma2", sliding_window=16) == [(2, 16), (2, None)]
    assert windows(layer_types=["full_attention", "sliding_attention"] * 2, sliding_window=9) == [(2, None), (2, 9)]
    assert windows(model_type="llama4_text", attention_chunk_size=32) == [(3, 32), (1, None)]


def test_kimi_linear_is_a_hybrid() -> None:
    linear = {"full_attn_layers": [4], "head_dim": 8, "num_heads": 4, "short_conv_kernel_size": 4}
    latent = {"kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    model = build(linear_attn_config=linear, **latent)
    assert sum(group.count for group in model.layers if isinstance(group.mixer, StateSpace)) == 3
    assert model.kv_bytes_per_token(Dtype.BF16) == (16 + 4) * 2


def test_layers_named_one_by_one() -> None:
    mamba = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 1, "conv_kernel": 4}
    config = {key: value for key, value in PLAIN.items() if key != "num_hidden_layers"}
    alone = {**config, **mamba, "model_type": "nemotron_h", "layers_block_type": ["mamba", "mlp", "attention", "mlp"]}
    model = model_from_config(alone, "m", "c")
    assert model.num_layers == 4
    assert all((group.mixer is None) != (group.mlp is None) for group in model.layers)
    paired = model_from_config(
        {**alone, "model_type": "granitemoehybrid", "layers_block_type": ["mamba", "attention"]}, "m", "c"
    )
    assert all(group.mixer and group.mlp for group in paired.layers)
    assert paired.state_bytes == (4 * 8 * 16 + 3 * (32 + 2 * 16)) * 2


def test_experts_every_other_layer_counted_as_qwen_and_deepseek_count() -> None:
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    qwen = build(**moe, decoder_sparse_step=2, mlp_only_layers=[3])
    assert [(group.count, isinstance(group.mlp, Mlp)) for group in qwen.layers] == [(3, True), (1, False)]
    assert build(num_experts=0).is_moe is False
    listed = build(**moe, moe_layer_freq=[0, 1, 1, 1])
    assert sorted(group.count for group in listed.layers) == [1, 3]


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "fp8"}, Dtype.FP8),
        ({"quant_method": "fbgemm_fp8"}, Dtype.FP8),
        ({"quant_method": "mxfp4"}, Dtype.FP4),
        ({"quant_method": "awq", "bits": 4}, Dtype.INT4),
        ({"quant_method": "gptq", "bits": 4}, Dtype.INT4),
        ({"quant_method": "gptq", "bits": 8}, Dtype.INT8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Dtype.FP4),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Dtype.FP8),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, Dtype.INT8),
        ({"config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}}, Dtype.FP8),
        ({"config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}}, Dtype.INT4),
        ({"config_groups": {"g": {"weights": {"num_bits": 4, "type": "float"}}}}, Dtype.FP4),
        ({"quant_method": "never-heard-of"}, Dtype.BF16),
    ],
)
def test_stored_format(quantization: dict[str, Any], expected: Dtype) -> None:
    assert native_dtype({"quantization_config": quantization, "torch_dtype": "bfloat16"}) is expected


def test_a_quantisation_file_beside_the_config_counts(tmp_path: Path) -> None:
    directory = write(tmp_path / "m", PLAIN)
    (directory / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert read_hf_config(directory).native is Dtype.FP4


def test_all_missing_fields_are_said_at_once() -> None:
    with pytest.raises(InvalidCatalog) as caught:
        model_from_config({"num_hidden_layers": 2}, "m", "there/config.json")
    text = str(caught.value)
    assert len(caught.value.findings) == 4
    for name in ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"):
        assert f"there/config.json: {name}" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_attention_heads": 7}, "7 attention heads over 2 KV heads"),
        ({"num_hidden_layers": 10**7}, "10000000 layers"),
        ({"hidden_size": float("nan")}, "hidden_size is nan"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries; expected a list of 4"),
        ({"layer_types": "all"}, "layer_types is str"),
        ({"layer_types": ["full_attention"] * 3 + ["telepathy"]}, "layer_types names telepathy"),
        ({"hybrid_override_pattern": "M*?"}, "3 letters for 4 layers and unknown ones: ?"),
        ({"block_configs": [{}]}, "block_configs has 1 entries"),
        ({"num_experts": 8, "moe_intermediate_size": 8}, "num_experts_per_tok"),
        ({"compress_ratios": [4, 4, 4, 4]}, "head_dim"),
    ],
)
def test_nonsense_is_refused_with_its_field(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidCatalog) as caught:
        build(**changes)
    assert said in str(caught.value)


def test_no_config_in_the_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidCatalog, match=r"config\.json: No such file"):
        Catalog.load().model(tmp_path)


def test_a_folder_named_without_a_dot_is_told_from_an_unknown_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").mkdir()
    with pytest.raises(InvalidCatalog, match=r"'my-model' is a folder without a config\.json"):
        Catalog.load().model("my-model")
    with pytest.raises(InvalidCatalog, match=r"unknown model 'your-model'.*`diptych catalog models` lists them"):
        Catalog.load().model("your-model")


def test_a_missing_file() -> None:
    with pytest.raises(InvalidCatalog, match="No such file"):
        Catalog.load().model("./nowhere/config.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "config.json:1: not JSON"),
        (b"[1, 2]", "a JSON list"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"a": 1}', "no num_hidden_layers"),
        (b"[" * 100_000, "not JSON"),
        (b'{"num_hidden_layers": 1e999}', "num_hidden_layers is inf"),
    ],
)
def test_files_that_are_not_configs(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InvalidCatalog) as caught:
        read_hf_config(tmp_path)
    assert said in str(caught.value)


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b" " * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(InvalidCatalog, match="bytes; expected at most"):
        read_hf_config(tmp_path)


@pytest.mark.parametrize("damage", [True, "all", [-1], [0.5], [10**6]])
def test_layers_named_by_number_must_be_layers(damage: object) -> None:
    config = json.loads((DATA / "models" / "Qwen3-30B-A3B.json").read_text(encoding="utf-8"))["config"]
    config["mlp_only_layers"] = damage
    with pytest.raises(InvalidCatalog, match="mlp_only_layers"):
        model_from_config(config, "damaged", "config.json")
