"""16-bit KV bytes per token, to the byte."""

from __future__ import annotations

import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.model import Attention, LayerGroup, Mlp, Model

CATALOG = Catalog.load()
OPT_66B = Model(
    "OPT-66B", 9216, 50272, (LayerGroup(64, Attention(72, 72, 128, 128), Mlp(36864, gated=False)),), native=Dtype.FP16
)
PUBLISHED = {
    "Llama-2-7B": 524_288,
    "Llama-3.1-8B": 131_072,
    "Llama-3.1-70B": 327_680,
    "Qwen3-8B": 147_456,
    "Qwen3-32B": 262_144,
    "Qwen3-235B-A22B": 192_512,
    "DeepSeek-V3": 70_272,
    "Kimi-K2": 70_272,
    "gpt-oss-120b": 73_728,
    "Qwen3-Next-80B-A3B": 24_576,
    "Nemotron-H-56B": 40_960,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_per_token(compare, name: str) -> None:
    compare(f"{name} KV, bytes per token", PUBLISHED[name], CATALOG.model(name).kv_bytes_per_token(Dtype.BF16), 0)


def test_mha_of_opt_66b(compare) -> None:
    compare("OPT-66B KV, bytes per token", 2_359_296, OPT_66B.kv_bytes_per_token(Dtype.FP16), 0)
    compare("OPT-66B KV of 512 tokens, GiB (DistServe)", 1.13, float(OPT_66B.kv_bytes(512, Dtype.FP16)) / 2**30, 0.005)


def test_fp8_latent_of_glm_5(compare) -> None:
    compare("GLM-5 FP8 latent, bytes per token", 576 * 78, CATALOG.model("GLM-5").kv_bytes_per_token(Dtype.FP8), 0)


def test_half_of_gpt_oss_stops_growing_after_its_window() -> None:
    model = CATALOG.model("gpt-oss-120b")
    assert model.kv_bytes(10_000, Dtype.BF16) == 73_728 / 2 * (10_000 + 128)


def test_hybrids_add_a_state_that_does_not_grow() -> None:
    model = CATALOG.model("Nemotron-H-56B")
    state = model.state_bytes
    assert state > 0
    assert model.kv_bytes(1000, Dtype.BF16) == 40_960 * 1000 + state
