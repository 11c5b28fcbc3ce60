"""Rules of TensorRT-LLM and of LMCache: each at a pair that breaks it and at one that keeps it."""

from __future__ import annotations

import pytest
from rule_pairs import clashes, pair

from diptych.engines.deployment import Router
from diptych.engines.engine import Engine, Version
from diptych.engines.resolve_trtllm import stored_element
from diptych.engines.role import Connector
from diptych.engines.rule import Severity
from diptych.engines.rules.lmcache import RULES as LMCACHE
from diptych.engines.rules.names import base_name, different_models
from diptych.engines.rules.trtllm import RULES as TRTLLM

TRT, VLLM = Engine.TRTLLM, Engine.VLLM
PD = {"LMCACHE_ENABLE_PD": "True", "LMCACHE_PD_BUFFER_SIZE": str(2**30), "LMCACHE_PD_ALLOCATION_TIMEOUT_SEC": "10"}


def aware(block):
    """Workers behind a router that hashes prompts, in blocks of 32 tokens where it is not told."""
    return {"block_size": block, "options": {"router": {"type": "kv_cache_aware"}}}


def cached(env=PD, extra=None, **settings):
    return {"connector": Connector("LMCacheConnectorV1", extra=extra or {}), "env": env, **settings}


EXAMPLES = {
    "TR1": (
        pair(TRT, {"options": {"kv_cache_config": {"dtype": "fp8"}}}, {}),
        pair(TRT, {"options": {"kv_cache_config": {"dtype": "fp8"}}}, {"kv_cache_dtype": "fp8"}),
    ),
    "TR2": (
        pair(TRT, aware(16), aware(16)),
        pair(TRT, aware(64), aware(64)),
    ),
    "LM1": (
        pair(VLLM, cached(), cached(), prompt_max=32768),
        pair(VLLM, cached(), cached(), prompt_max=4000),
    ),
    "LM2": (
        pair(VLLM, cached(block_size=256), cached(block_size=256), prompt_p50=100),
        pair(VLLM, cached(), cached(), prompt_p50=100),
    ),
    "LM3": (
        pair(VLLM, cached(kv_cache_dtype="fp8"), cached()),
        pair(VLLM, cached(kv_cache_dtype="fp8"), cached(kv_cache_dtype="fp8_e4m3")),
    ),
    "LM4": (
        pair(VLLM, cached({"LMCACHE_ENABLE_PD": "1"}), cached()),
        pair(VLLM, cached(), cached()),
    ),
}


@pytest.mark.parametrize("id", EXAMPLES)
def test_each_rule_is_broken_by_one_pair_and_kept_by_another(id):
    broken, kept = EXAMPLES[id]
    found = clashes((*TRTLLM, *LMCACHE), id, broken)
    assert found
    assert all(clash.change and clash.places and (clash.prefill or clash.decode) for clash in found)
    assert clashes((*TRTLLM, *LMCACHE), id, kept) == []


def test_every_rule_has_its_examples():
    assert list(EXAMPLES) == [rule.id for rule in (*TRTLLM, *LMCACHE)]


def test_a_pair_without_lmcache_is_none_of_its_business():
    joint = pair(VLLM, {"kv_cache_dtype": "fp8"}, prompt_max=10**6, prompt_p50=1)
    assert [rule.id for rule in LMCACHE for _ in rule.check(joint)] == []


@pytest.mark.parametrize(
    ("settings", "element"),
    [
        ({}, "bf16"),
        ({"dtype": "float16"}, "fp16"),
        ({"options": {"kv-cache-quant-algo": "FP8"}}, "e4m3fn"),
        ({"kv_cache_dtype": "nvfp4"}, "nvfp4"),
    ],
)
def test_auto_is_the_checkpoints_kv_or_the_models_type(settings, element):
    assert stored_element(pair(TRT, settings).prefill) == element


def test_blocks_and_models_are_part_of_the_cache_state():
    assert clashes(TRTLLM, "TR1", pair(TRT, {"block_size": 64}))
    assert clashes(TRTLLM, "TR1", pair(TRT, {"block_size": 32})) == []
    assert clashes(TRTLLM, "TR1", pair(TRT, {"model": "org/one"}, {"model": "org/two"}))


def test_a_router_may_hash_parts_of_a_block_from_one_release_on():
    early = {**aware(64), "version": Version((1, 2, 0))}
    assert len(clashes(TRTLLM, "TR2", pair(TRT, early, early))) == 2
    assert clashes(TRTLLM, "TR2", pair(TRT, aware(64), early)) != []


def test_the_routers_block_is_its_own_the_variables_or_dynamos_flag():
    told = {**aware(16), "options": {"router": {"type": "kv_cache_aware", "tokens_per_block": 16}}}
    by_variable = {**aware(16), "env": {"TRTLLM_KVCACHE_AWARE_ROUTER_HASH_TOKENS_PER_BLOCK": "16"}}
    assert clashes(TRTLLM, "TR2", pair(TRT, told, by_variable)) == []
    flag = Router("dynamo.frontend", {"kv-cache-block-size": 64})
    assert len(clashes(TRTLLM, "TR2", pair(TRT, router=flag))) == 2
    other = {"block_size": 16, "options": {"router": {"type": "round_robin"}}}
    assert clashes(TRTLLM, "TR2", pair(TRT, other, other)) == []


def test_settings_are_read_from_the_connector_too():
    extra = {"lmcache.enable_pd": True, "lmcache.pd_allocation_timeout_sec": 5}
    assert clashes(LMCACHE, "LM4", pair(VLLM, cached({}, extra), cached({}, extra))) == []
    assert clashes(LMCACHE, "LM4", pair(VLLM, cached({}, {"lmcache.enable_pd": True}), cached({}, extra)))


def test_a_file_that_is_not_seen_is_not_complained_of():
    joint = pair(VLLM, cached({"LMCACHE_CONFIG_FILE": "p.yaml"}), cached({"LMCACHE_ENABLE_PD": "true", **PD}))
    assert clashes(LMCACHE, "LM4", joint) == []


def test_the_key_has_model_type_and_ranks():
    found = clashes(LMCACHE, "LM3", pair(VLLM, cached(tp=2), cached(tp=4, model="other/name")))
    assert [(clash.prefill, clash.decode) for clash in found] == [
        ("model name Qwen/Qwen3-32B", "model name other/name"),
        ("world size 2", "world size 4"),
    ]
    assert clashes(LMCACHE, "LM3", pair(VLLM, cached(), cached(kv_cache_dtype="bfloat16"))) == []


def test_the_older_backend_waits_where_the_other_refuses():
    waits = cached({**PD, "LMCACHE_PD_BACKEND_MODE": "sync"})
    [refused] = clashes(LMCACHE, "LM1", pair(VLLM, cached(), cached(tp=8), prompt_max=32768))
    [hangs] = clashes(LMCACHE, "LM1", pair(VLLM, waits, cached(tp=8), prompt_max=32768))
    assert (refused.severity, hangs.severity) == (None, Severity.LEAK)


def test_sharding_shares_the_buffer_out():
    roomy = pair(VLLM, cached(tp=8), cached(tp=8), prompt_max=32768)
    tight = pair(VLLM, cached(), cached(tp=8), prompt_max=32768)
    assert clashes(LMCACHE, "LM1", roomy) == []
    assert len(clashes(LMCACHE, "LM1", tight)) == 1


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("Qwen/Qwen3-8B-FP8", "qwen3-8b"),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "qwen3-8b"),
        ("RedHatAI/Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b-instruct"),
        ("nvidia/DeepSeek-R1-NVFP4", "deepseek-r1"),
        ("/models/Qwen3-8B/", "qwen3-8b"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b-instruct"),
    ],
)
def test_a_quantised_copy_is_the_same_model(name, base):
    assert base_name(name) == base


def test_a_folder_and_a_repository_are_not_told_apart():
    assert not different_models("/models/qwen", "Qwen/Qwen3-32B")
    assert different_models("/models/qwen", "/models/llama")
    assert not different_models("", "Qwen/Qwen3-32B")
