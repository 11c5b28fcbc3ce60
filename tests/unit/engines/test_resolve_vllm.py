"""What vLLM stores for one role, in what blocks and layout, with which backend: by settings, model and accelerator."""

from __future__ import annotations

import pytest
from rule_pairs import CATALOG, role
from vllm_pairs import MOONCAKE, PULL, PUSH, connector, producer

from diptych.boundary.descriptor import Layout
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource
from diptych.design.axes import Role
from diptych.engines.engine import Engine, version
from diptych.engines.resolve import kv_state, stored
from diptych.engines.resolve_stored import Stored
from diptych.engines.resolve_vllm import brings_kv_scales, handoff, transfer_mode
from diptych.engines.role import Connector

AITER = {"VLLM_ROCM_USE_AITER": "1"}


def resolved(gpu: str | None = "H100", model: str | None = "Qwen3-32B", **settings) -> Stored:
    config = role(Role.PREFILL, Engine.VLLM, gpu=gpu or "", **{"connector": producer(), **settings})
    accelerator = CATALOG.accelerator(gpu) if gpu else None
    return stored(config, CATALOG.model(model) if model else None, accelerator)


@pytest.mark.parametrize(
    ("word", "gpu", "element"),
    [
        ("auto", "H100", Element.BF16),
        ("bfloat16", "H100", Element.BF16),
        ("float16", "H100", Element.FP16),
        ("auto", "T4", Element.FP16),
        ("auto", "V100", Element.FP16),
        ("fp8", "H100", Element.E4M3FN),
        ("fp8_e4m3", "H20", Element.E4M3FN),
        ("fp8", "MI300X", Element.E4M3FNUZ),
        ("fp8_e4m3", "MI325X", Element.E4M3FNUZ),
        ("fp8_e4m3", "MI355X", Element.E4M3FN),
        ("fp8_e5m2", "H100", Element.E5M2),
        ("fp8_e5m2", "MI300X", Element.E4M3FNUZ),
        ("fp8_e5m2", "MI355X", Element.E4M3FN),
        ("int8_per_token_head", "H100", Element.INT8),
        ("int4_per_token_head", "H100", Element.INT4),
        ("nvfp4", "B200", Element.NVFP4),
        ("turboquant_4bit_nc", "H100", None),
        ("fp8_ds_mla", "H100", None),
    ],
)
def test_the_stored_element_follows_word_and_silicon(word, gpu, element):
    assert resolved(gpu, kv_cache_dtype=word).element is element


def test_e5m2_is_stored_as_e5m2_by_flashinfer_alone():
    assert resolved(kv_cache_dtype="fp8_e5m2", attention_backend="FLASHINFER").element is Element.E5M2
    assert resolved(kv_cache_dtype="fp8_e5m2", attention_backend="TRITON_ATTN").element is Element.E4M3FN


@pytest.mark.parametrize(
    ("settings", "model", "gpu", "element"),
    [
        ({}, "Qwen3-32B", "H100", Element.BF16),
        ({"dtype": "half"}, "Qwen3-32B", "H100", Element.FP16),
        ({}, "Llama-2-7B", "H100", Element.FP16),
        ({}, "Llama-2-7B", "T4", Element.FP16),
        ({}, "DeepSeek-V3", "H100", Element.BF16),
        ({}, None, "H100", None),
        ({"dtype": "bfloat16"}, None, None, Element.BF16),
        ({}, "Qwen3-32B", None, Element.BF16),
    ],
)
def test_the_models_own_dtype(settings, model, gpu, element):
    assert resolved(gpu, model, **settings).model_element is element


@pytest.mark.parametrize(
    ("word", "source", "granularity"),
    [
        ("auto", ScaleSource.NONE, ScaleGranularity.NONE),
        ("fp8", ScaleSource.UNIT, ScaleGranularity.NONE),
        ("fp8_per_token_head", ScaleSource.INLINE, ScaleGranularity.TOKEN),
        ("nvfp4", ScaleSource.INLINE, ScaleGranularity.GROUP),
    ],
)
def test_where_scales_come_from(word, source, granularity):
    scaling = resolved("B200", kv_cache_dtype=word).scaling
    assert scaling is not None
    assert (scaling.source, scaling.granularity) == (source, granularity)


def test_a_checkpoint_that_names_its_scales_brings_them_and_its_format():
    config = role(Role.PREFILL, Engine.VLLM, model="amd/Qwen3-32B-FP8-KV", gpu="H100")
    named = stored(config, CATALOG.model("Qwen3-32B"), CATALOG.accelerator("H100"))
    assert named.word == "fp8"
    assert named.scaling is not None
    assert named.scaling.source is ScaleSource.CHECKPOINT
    assert not brings_kv_scales("Qwen/Qwen3-32B-FP8")


@pytest.mark.parametrize(
    ("gpu", "model", "settings", "backends"),
    [
        ("H100", "Qwen3-32B", {}, ("FLASH_ATTN",)),
        ("H100", "Qwen3-32B", {"kv_cache_dtype": "fp8"}, ("FLASH_ATTN",)),
        ("H100", "Qwen3-32B", {"kv_cache_dtype": "fp8_e5m2"}, ("FLASHINFER",)),
        ("A100", "Qwen3-32B", {}, ("FLASH_ATTN",)),
        ("A100", "Qwen3-32B", {"kv_cache_dtype": "fp8"}, ("FLASHINFER",)),
        ("L40S", "Qwen3-32B", {"kv_cache_dtype": "fp8"}, ("FLASHINFER",)),
        ("B200", "Qwen3-32B", {}, ("FLASHINFER",)),
        ("GB300", "Qwen3-32B", {"kv_cache_dtype": "nvfp4"}, ("FLASHINFER",)),
        ("RTX-5090", "Qwen3-32B", {}, ("FLASH_ATTN",)),
        ("T4", "Qwen3-32B", {}, ("TRITON_ATTN",)),
        ("H100", "Qwen3-32B", {"kv_cache_dtype": "int8_per_token_head"}, ("TRITON_ATTN",)),
        ("H100", "DeepSeek-V3", {}, ("FLASH_ATTN_MLA",)),
        ("H100", "DeepSeek-V3", {"kv_cache_dtype": "fp8"}, ("FLASHMLA",)),
        ("B200", "DeepSeek-V3", {}, ("FLASHINFER_MLA",)),
        ("L40S", "DeepSeek-V3", {}, ("TRITON_MLA",)),
        ("MI300X", "Qwen3-32B", {}, ("ROCM_AITER_UNIFIED_ATTN", "TRITON_ATTN")),
        ("MI300X", "Qwen3-32B", {"env": AITER}, ("FLASH_ATTN",)),
        ("MI300X", "DeepSeek-V3", {}, ("TRITON_MLA",)),
        ("MI300X", "DeepSeek-V3", {"env": AITER}, ("ROCM_AITER_MLA",)),
        ("MI210", "Qwen3-32B", {}, ("TRITON_ATTN",)),
        ("Arc-Pro-B60", "Qwen3-32B", {}, ("FLASH_ATTN",)),
        ("Gaudi3", "Qwen3-32B", {}, ()),
        (None, "Qwen3-32B", {}, ()),
        (None, None, {"attention_backend": "flashinfer"}, ("FLASHINFER",)),
        ("MI300X", "Qwen3-32B", {"attention_backend": "ROCM_AITER_FA"}, ("FLASH_ATTN",)),
        ("H100", "Qwen3-32B", {"env": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}}, ("FLASH_ATTN",)),
        (
            "H100",
            "Qwen3-32B",
            {"env": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}, "version": version("0.14")},
            ("FLASHINFER",),
        ),
    ],
)
def test_the_attention_backend_follows_generation_format_and_what_is_pinned(gpu, model, settings, backends):
    assert resolved(gpu, model, **settings).backends == backends


@pytest.mark.parametrize(
    ("gpu", "model", "settings", "allocated", "moved"),
    [
        ("H100", "Qwen3-32B", {}, 16, 16),
        ("H100", "Qwen3-32B", {"block_size": 64}, 64, 64),
        ("H100", "Qwen3-32B", {"block_size": 128}, 128, 128),
        ("H100", "Qwen3-32B", {"block_size": 128, "attention_backend": "FLASHINFER"}, 128, 64),
        ("B200", "Qwen3-32B", {"block_size": 128}, 128, 128),
        ("H100", "DeepSeek-V3", {"kv_cache_dtype": "fp8"}, 64, 64),
        ("H100", "DeepSeek-V3", {"kv_cache_dtype": "fp8", "block_size": 128}, 128, 64),
        ("B200", "DeepSeek-V3", {}, 32, 32),
        ("Arc-Pro-B60", "Qwen3-32B", {}, 64, 64),
        ("MI300X", "Qwen3-32B", {}, None, None),
        ("H100", "Qwen3-Next-80B-A3B", {"block_size": 64}, None, None),
        (None, None, {}, None, None),
        (None, None, {"block_size": 32}, 32, 32),
    ],
)
def test_blocks_are_as_set_or_as_the_backend_prefers_and_split_for_its_kernels(gpu, model, settings, allocated, moved):
    found = resolved(gpu, model, **settings)
    assert (found.block_tokens, found.moved_tokens) == (allocated, moved)


@pytest.mark.parametrize(
    ("settings", "layout"),
    [
        ({}, Layout.LBHNC),
        ({"connector": producer(MOONCAKE)}, Layout.LBHNC),
        ({"connector": None}, Layout.UNKNOWN),
        ({"env": {"VLLM_KV_CACHE_LAYOUT": "NHD"}}, Layout.LBNHC),
        ({"env": {"VLLM_KV_CACHE_LAYOUT": "BLHNC"}}, Layout.BLHNC),
        ({"env": {"VLLM_KV_CACHE_LAYOUT": "HDN"}}, Layout.UNKNOWN),
        ({"attention_backend": "FLEX_ATTENTION"}, Layout.LBNHC),
    ],
)
def test_the_layout_is_the_connectors_unless_it_is_named(settings, layout):
    assert resolved(**settings).layout is layout


@pytest.mark.parametrize(
    ("settings", "model", "hybrid"),
    [
        ({}, "Qwen3-32B", True),
        ({"hybrid_kv_manager": False}, "Qwen3-32B", False),
        ({"connector": connector("LMCacheConnectorV1", "kv_both")}, "Qwen3-32B", False),
        ({"connector": connector("AcmeConnector", "kv_both")}, "Qwen3-32B", None),
        ({"version": version("0.21")}, "Qwen3-32B", False),
        ({"version": version("0.22")}, "Qwen3-32B", True),
        ({}, "Llama-4-Scout-17B-16E", False),
    ],
)
def test_the_hybrid_manager_is_on_unless_something_turns_it_off(settings, model, hybrid):
    assert resolved(model=model, **settings).hybrid is hybrid


def test_the_connector_that_hands_over_is_found_inside_others():
    inner = Connector("NixlPushConnector", "kv_producer")
    several = Connector("MultiConnector", "kv_producer", children=(Connector("OffloadingConnector", "kv_both"), inner))
    config = role(Role.PREFILL, Engine.VLLM, connector=several)
    assert handoff(config) is inner
    assert transfer_mode(config) == "push"
    assert [
        transfer_mode(role(Role.PREFILL, Engine.VLLM, connector=producer(name))) for name in (PULL, PUSH, MOONCAKE)
    ] == [
        "pull",
        "push",
        "",
    ]


def test_what_is_not_known_is_said():
    said = " ".join(resolved(None, None).unknown)
    assert "is not in the catalog" in said
    assert "no accelerator was named" in said
    assert "backend is not pinned" in said
    assert resolved().unknown == ()


def test_a_state_needs_everything_and_never_fails():
    gpu, model = CATALOG.accelerator("H100"), CATALOG.model("Qwen3-32B")

    def state(**settings):
        return kv_state(role(Role.DECODE, Engine.VLLM, connector=producer(), gpu="H100", **settings), model, gpu)

    made = state(tp=2, kv_cache_dtype="fp8")
    assert made is not None
    assert (made.format.element, made.storage.block_tokens, made.shard.tp) == (Element.E4M3FN, 16, 2)
    assert state(tp=3) is None
    assert state(kv_cache_dtype="turboquant_4bit_nc") is None
    assert kv_state(role(Role.DECODE, Engine.VLLM), None, gpu) is None


@pytest.mark.parametrize("settings", [{"gpu": "cpu"}, {"env": {"VLLM_CPU_KVCACHE_SPACE": "4"}}])
def test_a_cpu_has_blocks_backend_and_packing_of_its_own(settings):
    found = stored(role(Role.PREFILL, Engine.VLLM, connector=producer(), **settings), CATALOG.model("Qwen3-0.6B"), None)
    assert (found.backends, found.block_tokens, found.packing) == (("CPU_ATTN",), 128, "vllm-cpu")
    assert found.layout is Layout.LBHNC
    assert found.unknown == ()
    latent = stored(role(Role.PREFILL, Engine.VLLM, **settings), CATALOG.model("DeepSeek-V3"), None)
    assert (latent.backends, latent.block_tokens, latent.packing) == (("CPU_MLA", "AMX_MLA"), None, "")
