"""What SGLang stores, in pages of how many tokens, and the word that it compares, by settings, model and accelerator."""

from __future__ import annotations

import pytest
from rule_pairs import CATALOG, role

from diptych.boundary.element import Element
from diptych.design.axes import Role
from diptych.engines.engine import Engine
from diptych.engines.resolve_sglang import (
    KV_QUANT,
    attention_backends,
    attention_tp,
    compared_dtype,
    kv_flag,
    model_element,
    page_size,
    stored_element,
)


def config(**settings):
    return role(Role.PREFILL, Engine.SGLANG, **settings)


def resolved(resolve, gpu=None, model="Qwen3-32B", **settings):
    accelerator = CATALOG.accelerator(gpu) if gpu else None
    return resolve(config(**settings), CATALOG.model(model) if model else None, accelerator)


@pytest.mark.parametrize(
    ("flag", "gpu", "element"),
    [
        ("auto", "H100", Element.BF16),
        ("bf16", "H100", Element.BF16),
        ("bfloat16", "H100", Element.BF16),
        ("fp8_e4m3", "H100", Element.E4M3FN),
        ("fp8_e5m2", "H100", Element.E5M2),
        ("fp8_e4m3", "MI300X", Element.E4M3FNUZ),
        ("fp8_e5m2", "MI300X", Element.E4M3FNUZ),
        ("fp8_e4m3", "MI325X", Element.E4M3FNUZ),
        ("fp8_e4m3", "MI355X", Element.E4M3FN),
        ("fp8_e5m2", "MI355X", Element.E4M3FN),
        ("mxfp8", "MI300X", Element.E4M3FN),
        ("nvfp4", "B200", Element.NVFP4),
        ("fp4_mx_block16", "B200", None),
        ("fp16", "H100", None),
    ],
)
def test_the_stored_element_follows_flag_and_silicon(flag, gpu, element):
    assert resolved(stored_element, gpu, kv_cache_dtype=flag) is element


@pytest.mark.parametrize(
    ("model", "dtype", "gpu", "element"),
    [
        ("Qwen3-32B", "auto", "H100", Element.BF16),
        ("Llama-2-7B", "auto", "H100", Element.FP16),
        ("Llama-2-7B", "bfloat16", "H100", Element.BF16),
        ("Qwen3-32B", "half", "H100", Element.FP16),
        ("DeepSeek-V3", "auto", "H100", Element.BF16),
        ("Qwen3-32B", "auto", "T4", Element.FP16),
        (None, "auto", None, Element.BF16),
        (None, "float32", None, Element.FP32),
    ],
)
def test_auto_is_the_type_that_the_model_computes_in(model, dtype, gpu, element):
    assert resolved(model_element, gpu, model, dtype=dtype) is element
    assert resolved(stored_element, gpu, model, dtype=dtype) is element


def test_the_word_hides_the_models_type_and_the_silicon():
    assert resolved(compared_dtype, "H100", dtype="float16") == resolved(compared_dtype, "H100") == "auto"
    assert resolved(compared_dtype, "MI300X", kv_cache_dtype="fp8_e4m3") == "fp8_e4m3"


def test_a_checkpoint_with_fp8_kv_turns_auto_into_fp8():
    facts = {"options": {KV_QUANT: "fp8"}}
    assert resolved(compared_dtype, "H100", **facts) == "fp8_e4m3"
    assert resolved(stored_element, "H100", **facts) is Element.E4M3FN
    assert resolved(stored_element, "MI300X", **facts) is Element.E4M3FNUZ
    assert resolved(stored_element, "H100", kv_cache_dtype="bf16", **facts) is Element.BF16


@pytest.mark.parametrize(
    ("model", "gpu", "flag", "word"),
    [
        ("DeepSeek-V3.2", "H200", "auto", "bfloat16"),
        ("DeepSeek-V3.2", "B200", "auto", "fp8_e4m3"),
        ("DeepSeek-V3.2", "MI300X", "auto", "bfloat16"),
        ("DeepSeek-V3.2", "B200", "bf16", "bfloat16"),
        ("DeepSeek-V3.2", None, "auto", "auto"),
        ("DeepSeek-V3.2", "Ascend-910B3", "auto", "auto"),
        ("DeepSeek-V4-Pro", "H200", "auto", "fp8_e4m3"),
        ("DeepSeek-V3", "B200", "auto", "auto"),
        ("Qwen3-32B", "B200", "bf16", "bf16"),
    ],
)
def test_some_models_choose_the_flag_by_generation(model, gpu, flag, word):
    assert resolved(kv_flag, gpu, model, kv_cache_dtype=flag) == word


@pytest.mark.parametrize(
    ("model", "gpu", "settings", "page"),
    [
        ("Qwen3-32B", "H200", {}, 1),
        ("Qwen3-32B", "B200", {}, 64),
        ("Qwen3-32B", "B200", {"block_size": 16}, 16),
        ("Qwen3-32B", "B200", {"block_size": 8}, 64),
        ("Qwen3-32B", "B200", {"attention_backend": "flashinfer"}, 1),
        ("Qwen3-32B", "B200", {"attention_backend": "fa4", "block_size": 64}, 128),
        ("Qwen3-32B", "H200", {"attention_backend": "fa4", "block_size": 64}, 64),
        ("Qwen3-32B", "H200", {"options": {"decode-attention-backend": "flashmla"}}, 64),
        ("Qwen3-32B", "MI300X", {}, 1),
        ("Qwen3-32B", "L40S", {}, 1),
        ("Qwen3-32B", "Ascend-910B3", {}, 128),
        ("Qwen3-32B", "TPU-v6e", {}, None),
        ("Qwen3-32B", None, {}, 1),
        ("DeepSeek-R1", "H200", {}, 1),
        ("DeepSeek-R1", "B200", {}, 64),
        ("DeepSeek-V2", "B200", {}, 1),
        ("DeepSeek-V3.2", "H200", {"block_size": 16}, 64),
        ("DeepSeek-V3.2", "MI300X", {}, None),
        ("DeepSeek-V4-Pro", "H200", {"block_size": 64}, 256),
        ("MiMo-V2-Flash", "B200", {}, 128),
        ("Qwen3.5-27B", "B200", {}, None),
        ("Qwen3-32B", "B200", {"speculative": {"algorithm": "EAGLE3"}}, None),
        (None, "B200", {}, None),
    ],
)
def test_an_unset_page_follows_the_default_backend(model, gpu, settings, page):
    assert resolved(page_size, gpu, model, **settings) == page


def test_named_backends_win_over_the_accelerators_default():
    split = {"options": {"prefill-attention-backend": "fa3", "decode-attention-backend": "flashmla"}}
    assert resolved(attention_backends, "B200", **split) == ("fa3", "flashmla")
    assert resolved(attention_backends, "H200") == ("fa3",)
    assert resolved(attention_backends, "MI300X") == ("aiter",)
    assert resolved(attention_backends, None) == ()


def test_attention_tp_is_shared_out_under_dp_attention_only():
    assert attention_tp(config(tp=8, dp=4, options={"enable-dp-attention": True})) == 2
    assert attention_tp(config(tp=8, dp=4)) == 8
