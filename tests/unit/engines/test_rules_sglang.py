"""SGLang's rules: each at a pair that breaks it and at one that keeps it, and what it says."""

from __future__ import annotations

import re
from itertools import product

import pytest
from rule_pairs import CATALOG, clashes, pair

from diptych.engines.deployment import Router
from diptych.engines.engine import Engine, Version
from diptych.engines.rule import Severity
from diptych.engines.rules import all_rules

SGLANG = Engine.SGLANG
RULES = tuple(rule for rule in all_rules() if rule.id.startswith("SG"))
NIXL = {"options": {"disaggregation-transfer-backend": "nixl"}}
STAGED = {"tp": 4, "env": {"SGLANG_DISAGG_STAGING_BUFFER": "1"}}
DEFERRED = {"disaggregation-decode-allocation-policy": "prefill_complete"}
SWITCH = {"enable-pd-role-switch": True}


def routed(**settings):
    return Router("sglang-router", settings)


def both(**settings):
    return {"prefill": settings, "decode": settings}


EXAMPLES = {
    "SG1": (
        pair(SGLANG, {"block_size": 64}, {"block_size": 32}),
        pair(SGLANG, {"block_size": 64}, {"block_size": 64}),
    ),
    "SG2": (
        pair(SGLANG, {"kv_cache_dtype": "bf16"}, {"kv_cache_dtype": "fp8_e4m3"}),
        pair(SGLANG, **both(kv_cache_dtype="fp8_e4m3"), gpus=("H100", "H20")),
    ),
    "SG3": (
        pair(SGLANG, {"model": "Qwen/Qwen3-32B"}, {"model": "Qwen/Qwen3-14B"}),
        pair(SGLANG, {"model": "Qwen/Qwen3-32B"}, {"model": "Qwen/Qwen3-32B-FP8"}),
    ),
    "SG4": (
        pair(SGLANG, {"pp": 4}, {"pp": 2}),
        pair(SGLANG, {"pp": 4}, {"pp": 1}),
    ),
    "SG5": (
        pair(SGLANG, {"tp": 2}, {"tp": 4}),
        pair(SGLANG, {"tp": 2}, {"tp": 4}, model="DeepSeek-V3"),
    ),
    "SG6": (
        pair(SGLANG, {"options": DEFERRED}, {}),
        pair(SGLANG, **both(options=DEFERRED)),
    ),
    "SG7": (
        pair(SGLANG, {}, NIXL),
        pair(SGLANG, NIXL, NIXL),
    ),
    "SG8": (
        pair(SGLANG, output_p50=200),
        pair(SGLANG, output_p50=800),
    ),
    "SG9": (
        pair(SGLANG, router=routed()),
        pair(SGLANG, router=routed(**{"disable-retries": True})),
    ),
    "SG10": (
        pair(SGLANG, {"options": SWITCH, "pp": 2}, {"options": SWITCH}),
        pair(SGLANG, **both(options=SWITCH)),
    ),
}


@pytest.mark.parametrize("id", EXAMPLES)
def test_each_rule_is_broken_by_one_pair_and_kept_by_another(id):
    broken, kept = EXAMPLES[id]
    found = clashes(RULES, id, broken)
    assert found
    assert all(clash.change and clash.places and (clash.prefill or clash.decode) for clash in found)
    assert clashes(RULES, id, kept) == []


def test_every_rule_has_its_examples():
    assert list(EXAMPLES) == [rule.id for rule in RULES]


def test_a_pair_that_says_nothing_breaks_nothing():
    assert [rule.id for rule in RULES for _ in rule.check(pair(SGLANG))] == []


def test_equal_roles_on_equal_accelerators_break_nothing():
    for model in CATALOG.models:
        for gpu in CATALOG.accelerators:
            for kv in ("auto", "fp8_e4m3", "fp8_e5m2", "bf16"):
                joint = pair(SGLANG, **both(kv_cache_dtype=kv, tp=4), model=model, gpus=(gpu, gpu))
                assert [rule.id for rule in RULES for _ in rule.check(joint)] == [], (model, gpu, kv)


def test_the_page_that_is_advised_heals():
    advised = 0
    for model in ("Qwen3-32B", "DeepSeek-V3.2", "DeepSeek-R1", "MiMo-V2-Flash"):
        for gpus in product(("H200", "B200", "MI300X", "Ascend-910B3"), repeat=2):
            for clash in clashes(RULES, "SG1", pair(SGLANG, model=model, gpus=gpus)):
                told = re.search(r"--page-size (\d+)", clash.change)
                advised += told is not None
                size = {"block_size": int(told[1])} if told else {}
                assert not told or clashes(RULES, "SG1", pair(SGLANG, size, size, model=model, gpus=gpus)) == []
    assert advised > 20


def test_two_defaults_on_unlike_generations_have_unlike_pages():
    [clash] = clashes(RULES, "SG1", pair(SGLANG, gpus=("H200", "B200")))
    assert (clash.prefill, clash.decode) == ("pages of 1 token", "pages of 64 tokens")
    assert clash.change == "set --page-size 64 on both roles"
    assert clashes(RULES, "SG1", pair(SGLANG, gpus=("H200", None))) == []


def test_a_page_on_one_side_alone_is_a_mismatch():
    assert clashes(RULES, "SG1", pair(SGLANG, {"block_size": 64}))


@pytest.mark.parametrize(
    ("prefill", "decode", "gpus", "severity", "shown"),
    [
        (
            {"dtype": "float16"},
            {"dtype": "bfloat16"},
            (None, None),
            Severity.SILENT,
            ("fp16 ('auto')", "bf16 ('auto')"),
        ),
        (
            {"kv_cache_dtype": "fp8_e4m3"},
            {"kv_cache_dtype": "fp8_e4m3"},
            ("MI300X", "H100"),
            Severity.SILENT,
            ("e4m3fnuz ('fp8_e4m3')", "e4m3fn ('fp8_e4m3')"),
        ),
        (
            {"kv_cache_dtype": "fp8_e5m2"},
            {"kv_cache_dtype": "fp8_e5m2"},
            ("MI300X", "H100"),
            Severity.SILENT,
            ("e4m3fnuz ('fp8_e5m2')", "e5m2 ('fp8_e5m2')"),
        ),
        ({}, {"kv_cache_dtype": "bfloat16"}, (None, None), Severity.REQUEST, ("bf16 ('auto')", "bf16 ('bfloat16')")),
        (
            {"kv_cache_dtype": "bf16"},
            {"kv_cache_dtype": "bfloat16"},
            (None, None),
            Severity.REQUEST,
            ("bf16 ('bf16')", "bf16 ('bfloat16')"),
        ),
        (
            {"kv_cache_dtype": "fp8_e4m3"},
            {},
            (None, None),
            Severity.REQUEST,
            ("e4m3fn ('fp8_e4m3')", "bf16 ('auto')"),
        ),
    ],
)
def test_the_word_is_compared_and_the_element_counts(prefill, decode, gpus, severity, shown):
    [clash] = clashes(RULES, "SG2", pair(SGLANG, prefill, decode, gpus=gpus))
    assert (clash.prefill, clash.decode) == shown
    assert clash.severity is severity
    assert clash.is_spurious is (severity is Severity.REQUEST and shown[0].split()[0] == shown[1].split()[0])


def test_same_bytes_in_two_spellings_say_so():
    [clash] = clashes(RULES, "SG2", pair(SGLANG, {}, {"kv_cache_dtype": "bfloat16"}))
    assert clash.is_spurious
    assert clash.detail == "the bytes are the same, only the spelling differs"
    assert clash.change == "write --kv-cache-dtype bfloat16 on both roles"


def test_sparse_attention_chooses_unlike_kv_by_generation():
    [clash] = clashes(RULES, "SG2", pair(SGLANG, model="DeepSeek-V3.2", gpus=("H200", "B200")))
    assert (clash.prefill, clash.decode) == ("bf16 ('bfloat16')", "e4m3fn ('fp8_e4m3')")


def test_revisions_are_compared_where_both_are_pinned():
    assert clashes(RULES, "SG3", pair(SGLANG, {"revision": "a"}, {"revision": "b"}))
    assert clashes(RULES, "SG3", pair(SGLANG, {"revision": "a"}, {})) == []


def test_decode_context_parallelism_takes_prefills_or_none():
    assert clashes(RULES, "SG4", pair(SGLANG, {"dcp": 2}, {"dcp": 4}))
    assert clashes(RULES, "SG4", pair(SGLANG, {}, {"dcp": 4})) == []
    assert clashes(RULES, "SG4", pair(SGLANG, {}, {"pcp": 2}))


@pytest.mark.parametrize(
    ("prefill", "decode", "model", "severity"),
    [
        ({"tp": 1}, {"tp": 4}, "Qwen3-32B", Severity.SLOW),
        ({"tp": 1}, {"tp": 4}, "gpt-oss-120b", Severity.SLOW),
        ({"tp": 1, "version": Version((0, 5, 16)), **NIXL}, {"tp": 4}, "gpt-oss-120b", Severity.REQUEST),
        (
            {"tp": 1, "options": {"disaggregation-transfer-backend": "mori"}},
            {"tp": 4},
            "gpt-oss-120b",
            Severity.REQUEST,
        ),
        ({"tp": 1, "pp": 2}, {"tp": 4}, "gpt-oss-120b", Severity.REQUEST),
        ({"tp": 1, "kv_cache_dtype": "mxfp8"}, {"tp": 4, "kv_cache_dtype": "mxfp8"}, "Qwen3-32B", Severity.REQUEST),
    ],
)
def test_unlike_sharding_is_slow_or_refused(prefill, decode, model, severity):
    [clash] = clashes(RULES, "SG5", pair(SGLANG, prefill, decode, model=model))
    assert clash.severity is severity


def test_the_staging_buffer_gathers_heads_where_both_have_it():
    assert clashes(RULES, "SG5", pair(SGLANG, {**STAGED, "tp": 2}, STAGED)) == []
    assert clashes(RULES, "SG5", pair(SGLANG, {"tp": 2}, STAGED))


def test_without_its_model_unlike_sharding_is_not_judged():
    assert clashes(RULES, "SG5", pair(SGLANG, {"tp": 2}, {"tp": 4}, model=None)) == []


@pytest.mark.parametrize("decode", [{"tp": 2}, {"pp": 2}, NIXL])
def test_deferred_allocation_is_refused_at_start_up(decode):
    decode = {**decode, "options": {**decode.get("options", {}), **DEFERRED}}
    [clash] = clashes(RULES, "SG6", pair(SGLANG, {"options": DEFERRED}, decode))
    assert clash.severity is Severity.STARTUP


def test_mooncake_over_tcp_is_mooncake_and_fake_is_decodes_alone():
    assert clashes(RULES, "SG7", pair(SGLANG, {"options": {"disaggregation-transfer-backend": "mooncake_tcp"}})) == []
    fake = {"options": {"disaggregation-transfer-backend": "fake"}}
    assert clashes(RULES, "SG7", pair(SGLANG, {}, fake)) == []
    [clash] = clashes(RULES, "SG7", pair(SGLANG, fake, fake))
    assert clash.severity is Severity.STARTUP


@pytest.mark.parametrize(
    ("entries", "port", "is_broken"),
    [
        ([["http://p:30000", "8998"]], 8998, False),
        (["http://p:30000 8998"], 8998, False),
        ([["http://p:30000", "8998"]], 9001, True),
        ([["http://p:30000"]], 8998, False),
        ([["http://p:30000"]], 9001, True),
        ([["http://p:30000", "none"]], 9001, True),
        ([["http://q:31000", "9002"], ["http://p:30000", "9001"]], 9001, False),
        (None, 9001, False),
        ([[], ""], 9001, False),
    ],
)
def test_requests_carry_the_port_that_prefill_listens_on(entries, port, is_broken):
    prefill = {"port": 30000, "options": {"disaggregation-bootstrap-port": port}}
    joint = pair(SGLANG, prefill, router=routed(prefill=entries))
    assert bool(clashes(RULES, "SG7", joint)) is is_broken


def test_an_unknown_workload_and_another_router_say_nothing():
    assert clashes(RULES, "SG8", pair(SGLANG)) == []
    assert clashes(RULES, "SG9", pair(SGLANG, router=Router("dynamo.frontend"))) == []
    assert clashes(RULES, "SG9", pair(SGLANG, router=routed(**{"retry-max-retries": 1}))) == []


def test_retries_that_were_asked_for_leak_and_the_default_of_sglangs_own_examples_is_only_slow() -> None:
    found = [
        clashes(RULES, "SG9", pair(SGLANG, router=routed(**said)))[0].severity
        for said in ({}, {"retry-max-retries": 3})
    ]
    assert found == [Severity.SLOW, None]


@pytest.mark.parametrize(
    ("settings", "severity"),
    [
        ({"options": {**SWITCH, "ep-size": 8}}, Severity.STARTUP),
        ({"options": SWITCH, "ep": True}, Severity.STARTUP),
        ({"options": SWITCH, "dcp": 2}, Severity.STARTUP),
        ({"options": SWITCH, "speculative": {"algorithm": "EAGLE"}}, Severity.STARTUP),
        ({"options": {**SWITCH, **NIXL["options"]}}, Severity.REQUEST),
        ({"options": SWITCH, "env": STAGED["env"]}, Severity.REQUEST),
    ],
)
def test_a_role_switch_is_refused_at_start_up_or_when_asked_for(settings, severity):
    [clash] = clashes(RULES, "SG10", pair(SGLANG, settings))
    assert clash.severity is severity
