"""Checking a deployment: every pair once, what is stored by its meaning, and findings that are told once and worst first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rule_pairs import CATALOG, role
from vllm_pairs import HOSTS, PUSH, consumer, producer

from diptych.design.axes import Role
from diptych.engines.check import Report, check
from diptych.engines.deployment import Deployment
from diptych.engines.engine import Engine
from diptych.engines.rule import Severity


def prefill(**settings):
    return role(Role.PREFILL, Engine.VLLM, **{"connector": producer(), "gpu": "H100", "env": HOSTS, **settings})


def decode(**settings):
    return role(Role.DECODE, Engine.VLLM, **{"connector": consumer(), "gpu": "H100", "env": HOSTS, **settings})


def checked(*roles) -> Report:
    return check(Deployment(roles), CATALOG)


def ids(report: Report) -> list[str]:
    return [each.rule.id for each in report.broken]


def test_alike_roles_are_clean():
    report = checked(prefill(), decode())
    assert report.is_clean
    assert (report.remarks, report.unknown) == ((), ())
    assert report.pairs[0].meaning == "compatible"


def test_every_prefill_meets_every_decode_and_equal_pairs_are_checked_once():
    report = checked(
        prefill(name="a", port=1), prefill(name="b", port=2), decode(name="c", host="x"), decode(name="d", tp=3)
    )
    assert [pair.names for pair in report.pairs] == [(("a", "c"), ("b", "c")), (("a", "d"), ("b", "d"))]
    assert [[each.rule.id for each in pair.broken] for pair in report.pairs] == [[], []]


def test_one_bad_pair_among_good_ones_is_found():
    report = checked(prefill(), decode(name="good"), decode(name="bad", kv_cache_dtype="fp8"))
    assert ids(report) == ["VN4"]
    assert [pair.is_refused for pair in report.pairs] == [False, True]


def test_a_fault_of_one_role_is_told_once_however_many_it_meets():
    faulty = prefill(connector=producer(kv_rank=0), name="p")
    report = checked(faulty, decode(name="c"), decode(name="d", max_seqs=7), decode(name="e", max_seqs=8))
    assert len(report.pairs) == 3
    assert ids(report) == ["VN1"]


def test_findings_come_worst_first():
    settings = {"kv_cache_dtype": "fp8", "attention_backend": "TRITON_ATTN"}
    report = checked(
        prefill(gpu="MI300X", connector=producer(kv_rank=0, extra={"num_thread": 1}), **settings),
        decode(**settings, tp=3),
    )
    order = [list(Severity).index(each.severity) for each in report.broken]
    assert order == sorted(order)
    assert ids(report)[0] == "VN26"


@pytest.mark.parametrize(
    ("settings", "meaning", "refused"),
    [
        ({}, "compatible", False),
        ({"tp": 4}, "compatible", False),
        ({"kv_cache_dtype": "bfloat16"}, "compatible", True),
        ({"kv_cache_dtype": "fp8"}, "needs conversion", True),
        ({"kv_cache_dtype": "fp8", "model": "Qwen/Qwen3-8B"}, "incompatible", True),
        ({"model": "acme/own", "kv_cache_dtype": "turboquant_4bit_nc"}, "unknown", True),
    ],
)
def test_what_is_true_beside_what_the_engine_does(settings, meaning, refused):
    (pair,) = checked(prefill(), decode(**settings)).pairs
    assert (pair.meaning, pair.is_refused) == (meaning, refused)


def test_a_spurious_refusal_is_both_a_finding_and_a_remark_that_says_how_to_satisfy_it():
    report = checked(prefill(), decode(kv_cache_dtype="bfloat16"))
    assert [(each.rule.id, each.severity) for each in report.broken] == [("VN4", Severity.REQUEST)]
    (remark,) = report.remarks
    assert "refuses what is compatible" in remark.sentence
    assert remark.change == "write --kv-cache-dtype bfloat16 on both roles"


def test_what_differs_and_is_brought_together_is_remarked_on():
    report = checked(prefill(block_size=16), decode(block_size=32, tp=4, gpu="H20"))
    assert report.is_clean
    said = " ".join(remark.sentence for remark in report.remarks)
    assert "unlike tensor-parallel sizes" in said
    assert "unlike blocks" in said
    assert "one attention backend" in said


def test_of_a_pair_that_fails_nothing_is_said_to_be_brought_together():
    report = checked(prefill(block_size=32, connector=producer(PUSH)), decode(block_size=16))
    assert ids(report) == ["VN2"]
    assert report.remarks == ()


def test_what_means_another_thing_is_told_though_no_rule_of_the_engine_sees_it():
    link = {"connector": replace(producer(), name="MoRIIOConnector")}
    report = checked(prefill(**link), decode(**link, kv_cache_dtype="fp8"))
    assert ids(report) == ["PD2"]
    assert report.broken[0].severity is Severity.SILENT


def test_two_engines_do_not_meet():
    other = role(Role.DECODE, Engine.SGLANG, gpu="H100")
    assert ids(checked(prefill(), other)) == ["PD1"]


def test_what_could_not_be_decided_is_said_and_not_complained_of():
    report = checked(prefill(model="acme/own", gpu="", env={}), decode(model="acme/own", gpu="", env={}, max_seqs=4))
    assert report.is_clean
    said = " ".join(report.unknown)
    assert "'acme/own' is not in the catalog" in said
    assert "share a host" in said


def test_a_model_is_known_by_what_it_is_served_as_when_its_path_is_not():
    mounted = {"model": "/mnt/weights", "served_name": "Qwen/Qwen3-32B"}
    (pair,) = checked(prefill(**mounted), decode(**mounted)).pairs
    assert pair.joint.model is CATALOG.model("Qwen3-32B")


def test_without_a_pair_there_is_nothing_to_say():
    assert checked(prefill()).pairs == ()
    assert checked().is_clean


def test_push_and_pull_do_not_meet():
    assert ids(checked(prefill(connector=producer(PUSH)), decode())) == ["VN2"]


def test_a_cpu_packs_what_an_accelerator_sends_and_no_accelerator_unpacks_what_a_cpu_sends():
    unchecked = {"block_size": 64, "attention_backend": ""}
    link = {"extra": {"enforce_handshake_compat": False}, "kv_buffer_device": "cpu"}
    on_cpu = {"gpu": "cpu", **unchecked}
    received = checked(prefill(connector=producer(**link), **unchecked), decode(connector=consumer(**link), **on_cpu))
    assert received.pairs[0].meaning == "compatible"
    sent = checked(prefill(connector=producer(**link), **on_cpu), decode(connector=consumer(**link), **unchecked))
    assert sent.pairs[0].meaning == "incompatible"
    assert ids(sent) == ["PD2"]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"gpu": "H100"}, {"gpu": "Gaudi3", "env": HOSTS}, "choose one attention backend"),
        (
            {"model": "deepseek-ai/DeepSeek-V3", "dtype": "bfloat16"},
            {"model": "deepseek-ai/DeepSeek-V3"},
            "is bfloat16",
        ),
        ({"gpu": "MI300X", "kv_cache_dtype": "fp8"}, {"gpu": "", "kv_cache_dtype": "fp8"}, "which FP8"),
        ({"env": {}}, {}, "share a host"),
    ],
)
def test_what_to_say_so_that_more_can_be_decided(first, second, said):
    assert said in " ".join(checked(prefill(**first), decode(**second)).unknown)
