"""Models: counted from their config.json, beside what is published."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Attention, Experts, StateSpace

CATALOG = Catalog.load()
PUBLISHED = list(csv.DictReader((Path(__file__).parents[2] / "data/models/published.csv").read_text().splitlines()))

OWN_COUNT = {
    # The published simple count takes num_key_value_heads x head_dim for every layer. Their configs say otherwise:
    "Gemma-4-26B-A4B": 25 * 8 * 256 * 2 * 2 + 5 * 2 * 512 * 2 * 2,  # global layers: 2 heads of 512
    "MiMo-V2-Flash": 9 * 4 * (192 + 128) * 2
    + 39 * 8 * (192 + 128) * 2,  # values are 128 wide; windowed layers: 8 heads
}
PARAMETER_EXCEPTIONS = {"Gemma-4-26B-A4B": 0.03}  # 26 is the rounded name and holds the vision encoder


def test_every_published_model_is_in_the_catalog() -> None:
    assert len(PUBLISHED) == 44
    assert {row["model"] for row in PUBLISHED} <= set(CATALOG.models)


@pytest.mark.parametrize(
    "row", [row for row in PUBLISHED if row["kv_bytes_per_token_16bit"]], ids=lambda row: row["model"]
)
def test_kv_bytes_per_token_are_exact(row: dict[str, str]) -> None:
    expected = OWN_COUNT.get(row["model"], int(row["kv_bytes_per_token_16bit"]))
    assert CATALOG.model(row["model"]).kv_bytes_per_token(Dtype.BF16) == expected


def test_the_two_own_counts_are_not_the_simple_ones() -> None:
    simple = {row["model"]: row["kv_bytes_per_token_16bit"] for row in PUBLISHED}
    assert {name: (int(simple[name]), count) for name, count in OWN_COUNT.items()} == {
        "Gemma-4-26B-A4B": (245760, 225280),
        "MiMo-V2-Flash": (147456, 222720),
    }


@pytest.mark.parametrize("row", [row for row in PUBLISHED if row["parameters_b"]], ids=lambda row: row["model"])
def test_parameters_are_within_2_2_percent_of_the_published(row: dict[str, str]) -> None:
    model = CATALOG.model(row["model"])
    limit = PARAMETER_EXCEPTIONS.get(model.name, 0.022)
    assert model.parameters / 1e9 == pytest.approx(float(row["parameters_b"]), rel=limit)
    assert model.published_parameters == pytest.approx(float(row["parameters_b"]) * 1e9)


@pytest.mark.parametrize("row", [row for row in PUBLISHED if row["active_parameters_b"]], ids=lambda row: row["model"])
def test_active_parameters_are_within_2_2_percent_of_the_published(row: dict[str, str]) -> None:
    """Cards round ('37B') and differ in counting the input embedding; the nearest reading counts."""
    model = CATALOG.model(row["model"])
    text = row["active_parameters_b"]
    half_unit = 0.5 * 10 ** -len(text.partition(".")[2])
    ours = (model.active_parameters / 1e9, (model.active_parameters + model.vocab * model.hidden) / 1e9)
    low, high = float(text) - half_unit, float(text) + half_unit
    assert any(low * (1 - 0.022) <= count <= high * (1 + 0.022) for count in ours), (ours, text)


def test_total_is_never_below_active() -> None:
    for model in CATALOG.models.values():
        assert model.parameters >= model.active_parameters * 0.999, model.name
        assert sum(group.count for group in model.layers) == model.num_layers > 0
        assert model.provenance is not None
        assert model.provenance.source


def test_checkpoint_sizes_of_gpt_oss() -> None:
    """The card gives 60.8 and 12.8 GiB: MXFP4 experts, the rest in 16 bit. We scale every layer as NVFP4."""
    assert CATALOG.model("gpt-oss-120b").weight_bytes(Dtype.FP4) == pytest.approx(60.8 * 2**30, rel=0.04)
    assert CATALOG.model("gpt-oss-20b").weight_bytes(Dtype.FP4) == pytest.approx(12.8 * 2**30, rel=0.06)


def test_mla_caches_latent_and_rope_once() -> None:
    (count, attention), *rest = CATALOG.model("DeepSeek-V3").attention_groups()
    assert attention.is_mla
    assert attention.kv_elements == 512 + 64
    assert count + sum(n for n, _ in rest) == 61


def test_sparse_attention_reads_less_than_it_keeps() -> None:
    _, attention = next(CATALOG.model("GLM-5").attention_groups())
    assert attention.index_topk == 2048
    assert attention.kept_tokens(100_000) == 100_000
    assert attention.read_tokens(100_000) == 2048


def test_windows_cap_what_is_kept() -> None:
    model = CATALOG.model("gpt-oss-120b")  # 18 full layers, 18 with a window of 128; 8 heads of 64
    per_layer = 8 * 64 * 2 * 2
    assert float(model.kv_bytes(10_000, Dtype.BF16)) == per_layer * 18 * (10_000 + 128)
    scout = CATALOG.model("Llama-4-Scout-17B-16E")  # every fourth layer is global, the others see chunks of 8,192
    assert sorted((count, a.window) for count, a in scout.attention_groups() if a.window) == [(36, 8192)]


def test_gemma_has_one_global_layer_in_six() -> None:
    counts = {attention.window: count for count, attention in CATALOG.model("Gemma-3-27B").attention_groups()}
    assert counts == {1024: 52, None: 10}


def test_hybrids_keep_a_state() -> None:
    model = CATALOG.model(
        "Qwen3-Next-80B-A3B"
    )  # 36 layers, 32 heads of 128 x 128 and a convolution of 3 x 8,192, 16 bit
    assert model.state_bytes == 36 * (32 * 128 * 128 + 3 * 8192) * 2
    assert CATALOG.model("Llama-3.1-8B").state_bytes == 0
    nano = CATALOG.model("Nemotron-3-Nano-30B-A3B")  # 23 Mamba layers: fp32 state, 16-bit convolution
    assert nano.state_bytes == 23 * (64 * 64 * 128 * 4 + 3 * (4096 + 2 * 8 * 128) * 2)


def test_nemotron_h_layers_follow_the_pattern() -> None:
    groups = CATALOG.model("Nemotron-H-56B").layers
    kinds = {type(group.mixer).__name__ + type(group.mlp).__name__: group.count for group in groups}
    assert kinds == {"StateSpaceNoneType": 54, "NoneTypeMlp": 54, "AttentionNoneType": 10}


def test_searched_blocks_keep_their_own_shape() -> None:
    model = CATALOG.model("Llama-3.3-Nemotron-Super-49B")
    assert sum(group.count for group in model.layers if group.mixer is None) == 31
    assert {a.kv_heads for _, a in model.attention_groups()} == {8}


def test_deepseek_v4_compresses() -> None:
    """43 layers: 2 windows, 21 at 4:1, 20 at 128:1, one vector of 512 for keys and values."""
    model = CATALOG.model("DeepSeek-V4-Flash")
    shares = {(a.compress, a.window): count for count, a in model.attention_groups()}
    assert shares == {(1, 128): 2, (4, None): 21, (128, None): 20}
    assert model.kv_bytes_per_token(Dtype.BF16) == 2 * 512 * (2 + 21 / 4 + 20 / 128)
    assert model.parameters == pytest.approx(284e9, rel=0.01)


def test_moe_layers_are_where_the_config_says() -> None:
    def sparse(name: str) -> int:
        return sum(group.count for group in CATALOG.model(name).layers if isinstance(group.mlp, Experts))

    assert sparse("DeepSeek-V3") == 58
    assert sparse("Llama-4-Maverick-17B-128E") == 24
    assert sparse("Llama-4-Scout-17B-16E") == 48
    assert sparse("MiMo-V2-Flash") == 47
    assert sparse("GLM-4.5") == 89
    assert sparse("Qwen3-32B") == 0


def test_shared_experts_are_always_on() -> None:
    experts = next(g.mlp for g in CATALOG.model("DeepSeek-V3").layers if isinstance(g.mlp, Experts))
    assert (experts.count, experts.per_token, experts.shared_intermediate) == (256, 8, 2048)
    assert float(experts.touched(1)) == pytest.approx(8)


def test_latent_experts_are_narrower() -> None:
    model = CATALOG.model("Nemotron-3-Super-120B-A12B")
    assert model.parameters == pytest.approx(120e9, rel=0.01)
    assert model.active_parameters == pytest.approx(12e9, rel=0.03)


@pytest.mark.parametrize(
    ("name", "native"),
    [
        ("DeepSeek-R1", Dtype.FP8),
        ("gpt-oss-20b", Dtype.FP4),
        ("DeepSeek-V4-Pro", Dtype.FP4),
        ("Kimi-K2.5", Dtype.INT4),
        ("Llama-3.1-8B", Dtype.BF16),
        ("Llama-2-7B", Dtype.FP16),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", Dtype.FP8),
        ("Qwen/Qwen3-32B-FP8", Dtype.FP8),
        ("nvidia/DeepSeek-R1-NVFP4", Dtype.FP4),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", Dtype.INT4),
    ],
)
def test_native_format(name: str, native: Dtype) -> None:
    assert CATALOG.model(name).native is native


def test_attention_and_state_are_the_only_mixers() -> None:
    mixers = {type(group.mixer) for model in CATALOG.models.values() for group in model.layers}
    assert mixers == {Attention, StateSpace, type(None)}
