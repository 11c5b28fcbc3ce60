"""vLLM's rules: each is broken by a pair and kept by another that differs in what the rule is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as replaced

import pytest
from rule_pairs import CATALOG, clashes
from vllm_pairs import MOONCAKE, PULL, PUSH, connector, consumer, producer, vllm

from diptych.engines.check import applies
from diptych.engines.deployment import Router
from diptych.engines.engine import Launcher, version
from diptych.engines.resolve import Joint
from diptych.engines.role import Connector
from diptych.engines.rule import Severity
from diptych.engines.rules import all_rules, rule

V = version
OFF = {"enforce_handshake_compat": False}
MTP = {"method": "mtp", "num_speculative_tokens": 1}
HYBRID = "Qwen3-Next-80B-A3B"
DS = {"env": {"VLLM_SSM_CONV_STATE_LAYOUT": "DS"}}
NHD, HND = {"env": {"VLLM_KV_CACHE_LAYOUT": "NHD"}}, {"env": {"VLLM_KV_CACHE_LAYOUT": "HND"}}


def off(**settings):
    """Both sides with the comparison switched off."""
    return ({"connector": producer(extra=OFF), **settings}, {"connector": consumer(extra=OFF), **settings})


def leases(prefill: int, decode: int, **more) -> Joint:
    link = (producer(extra={"kv_lease_duration": prefill}), consumer(extra={"kv_lease_duration": decode}))
    return vllm({"connector": link[0]}, {"connector": link[1]}, **more)


def both(settings, **more) -> Joint:
    return vllm(settings, settings, **more)


def on_cpu(first: int, second: int) -> Joint:
    return vllm({"block_size": first, "gpu": "cpu"}, {"block_size": second, "gpu": "cpu"}, gpus=(None, None))


def swapped(name: str) -> Joint:
    return vllm({"connector": consumer(name)}, {"connector": producer(name)})


Case = tuple[str, Callable[[], Joint], Callable[[], Joint]]
CASES: list[Case] = [
    (
        "VN1",
        lambda: vllm({"connector": producer(kv_rank=0)}),
        lambda: vllm({"connector": producer(kv_port=14579, kv_load_failure_policy="recompute")}),
    ),
    (
        "VN1",
        lambda: vllm({"connector": producer(kv_rank=0), "version": V("0.32")}),
        lambda: vllm({"connector": producer(kv_rank=0), "version": V("0.31")}),
    ),
    (
        "VN1",
        lambda: both({"version": V("0.23")}, over=PUSH),
        lambda: both({"version": V("0.24")}, over=PUSH),
    ),
    ("VN1", lambda: vllm({"connector": connector(PULL, "")}), lambda: vllm()),
    ("VN1", lambda: vllm({"connector": producer(kv_load_failure_policy="retry")}), lambda: vllm()),
    ("VN1", lambda: vllm({"connector": producer("NixlConector")}), lambda: vllm()),
    (
        "VN2",
        lambda: vllm({"connector": producer(PUSH)}),
        lambda: vllm(over=PUSH),
    ),
    ("VN2", lambda: vllm({"version": V("0.32")}, {"version": V("0.33")}), lambda: both({"version": V("0.33")})),
    (
        "VN2",
        lambda: vllm({"connector": producer(MOONCAKE)}),
        lambda: vllm({"connector": producer("NixlPullConnector")}),
    ),
    (
        "VN3",
        lambda: vllm({"model": "Qwen/Qwen3-32B-FP8"}),
        lambda: both({"model": "/models/qwen", "served_name": "Qwen/Qwen3-32B"}),
    ),
    ("VN3", lambda: vllm({"dtype": "float16"}), lambda: vllm({"dtype": "bfloat16"})),
    ("VN3", lambda: vllm(gpus=("T4", "L4")), lambda: vllm(gpus=("A10", "L4"))),
    ("VN4", lambda: vllm(None, {"kv_cache_dtype": "fp8_e4m3"}), lambda: both({"kv_cache_dtype": "fp8_e4m3"})),
    ("VN4", lambda: vllm(None, {"kv_cache_dtype": "bfloat16"}), lambda: vllm()),
    (
        "VN5",
        lambda: vllm(gpus=("H100", "B200")),
        lambda: both({"attention_backend": "FLASHINFER"}, gpus=("H100", "B200")),
    ),
    (
        "VN5",
        lambda: both({"kv_cache_dtype": "fp8"}, gpus=("H100", "L40S")),
        lambda: both({"kv_cache_dtype": "fp8"}, gpus=("H100", "H20")),
    ),
    ("VN6", lambda: vllm({"hybrid_kv_manager": False}), lambda: both({"hybrid_kv_manager": False})),
    ("VN6", lambda: vllm({"speculative": MTP}), lambda: both({"speculative": MTP})),
    ("VN6", lambda: vllm({"speculative": MTP}), lambda: vllm({"speculative": {"method": "ngram"}})),
    (
        "VN6",
        lambda: vllm({"hybrid_kv_manager": False, "version": V("0.30")}, {"version": V("0.30")}),
        lambda: vllm({"hybrid_kv_manager": False, "version": V("0.17")}, {"version": V("0.17")}),
    ),
    ("VN7", lambda: vllm({"tp": 4}, {"tp": 6}), lambda: vllm({"tp": 2}, {"tp": 6})),
    ("VN32", lambda: on_cpu(64, 128), lambda: on_cpu(128, 128)),
    ("VN32", lambda: on_cpu(128, 256), lambda: vllm({"block_size": 128}, {"block_size": 256})),
    ("VM5", lambda: swapped(MOONCAKE), lambda: vllm(over=MOONCAKE)),
    ("VN8", lambda: vllm({"block_size": 32}, {"block_size": 16}), lambda: vllm({"block_size": 16}, {"block_size": 32})),
    (
        "VN8",
        lambda: vllm({"block_size": 128}, {"block_size": 64}),
        lambda: vllm(
            {"block_size": 128, "attention_backend": "FLASHINFER"},
            {"block_size": 64, "attention_backend": "FLASHINFER"},
        ),
    ),
    (
        "VN9",
        lambda: vllm({"tp": 4, "block_size": 16}, {"tp": 2, "block_size": 32}),
        lambda: vllm({"tp": 2, "block_size": 16}, {"tp": 4, "block_size": 32}),
    ),
    ("VN10", lambda: vllm({"tp": 16}, {"tp": 2}), lambda: vllm({"tp": 8}, {"tp": 2})),
    ("VN10", lambda: vllm({"tp": 16}, {"tp": 2}), lambda: vllm({"tp": 16}, {"tp": 2}, model="DeepSeek-V3")),
    (
        "VN11",
        lambda: vllm({"block_size": 16}, {"block_size": 32, "connector": consumer(kv_buffer_device="cpu")}),
        lambda: vllm({"block_size": 16}, {"block_size": 32}),
    ),
    (
        "VN12",
        lambda: vllm(HND, NHD),
        lambda: vllm(HND, {**NHD, "connector": consumer(enable_permute_local_kv=True)}),
    ),
    (
        "VN12",
        lambda: vllm(NHD, {**HND, "connector": consumer(enable_permute_local_kv=True)}),
        lambda: vllm({"env": {"VLLM_KV_CACHE_LAYOUT": "LBHNC"}}, HND),
    ),
    (
        "VN12",
        lambda: vllm(HND, {**NHD, "connector": consumer(enable_permute_local_kv=True)}, model="gpt-oss-120b"),
        lambda: vllm(HND, NHD, model="DeepSeek-V3"),
    ),
    (
        "VN13",
        lambda: vllm({**NHD, "tp": 2}, {**NHD, "tp": 4}),
        lambda: vllm({**HND, "tp": 2}, {**HND, "tp": 4}),
    ),
    (
        "VN13",
        lambda: vllm({**NHD, "tp": 16}, {**NHD, "tp": 2}, over=PUSH),
        lambda: vllm({**NHD, "tp": 2}, {**NHD, "tp": 16}, over=PUSH),
    ),
    (
        "VN14",
        lambda: vllm({"kv_cache_dtype": "nvfp4", "tp": 2}, {"kv_cache_dtype": "nvfp4", "tp": 4}, gpus=("B200", "B200")),
        lambda: vllm(
            {"kv_cache_dtype": "nvfp4", "tp": 8}, {"kv_cache_dtype": "nvfp4", "tp": 16}, gpus=("B200", "B200")
        ),
    ),
    ("VN15", lambda: vllm(model=HYBRID), lambda: both(DS, model=HYBRID)),
    ("VN15", lambda: vllm(DS, {**DS, "dcp": 2}, model=HYBRID), lambda: vllm(None, {"dcp": 2}, model="DeepSeek-V3")),
    (
        "VN15",
        lambda: vllm({**DS, "block_size": 32}, {**DS, "block_size": 16}, model=HYBRID),
        lambda: vllm({**DS, "block_size": 32}, {**DS, "block_size": 16, "prefix_caching": False}, model=HYBRID),
    ),
    (
        "VN16",
        lambda: vllm({"env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "localhost"}}, gpus=("H100", "H20")),
        lambda: vllm(gpus=("H100", "H20")),
    ),
    (
        "VN16",
        lambda: vllm(None, {"env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"}}, gpus=("H100", "H20"), over=PUSH),
        lambda: vllm(None, {"env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"}}, gpus=("H100", "H20")),
    ),
    (
        "VN16",
        lambda: vllm({"env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "localhost"}}, launcher=Launcher.KSERVE),
        lambda: vllm({"env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "localhost"}, "node": "a"}, {"node": "a"}),
    ),
    (
        "VN17",
        lambda: vllm({"node": "a", "dp": 8}, {"node": "a", "env": {"VLLM_NIXL_SIDE_CHANNEL_PORT": "5607"}}),
        lambda: vllm({"node": "a", "dp": 8}, {"node": "a", "env": {"VLLM_NIXL_SIDE_CHANNEL_PORT": "5608"}}),
    ),
    ("VN17", lambda: both({"node": "a"}), lambda: vllm({"node": "a"}, {"node": "b"})),
    (
        "VN18",
        lambda: vllm({"connector": producer(kv_buffer_device="xpu")}),
        lambda: vllm({"connector": producer(kv_buffer_device="cpu")}),
    ),
    (
        "VN18",
        lambda: vllm({"connector": producer(kv_buffer_device="cuda")}, gpus=("Arc-Pro-B60", "H100")),
        lambda: vllm({"connector": producer(kv_buffer_device="cuda")}, gpus=("MI300X", "H100")),
    ),
    ("VN19", lambda: vllm({"kv_cache_dtype": "float16"}), lambda: vllm({"kv_cache_dtype": "bfloat16"})),
    ("VN19", lambda: vllm({"kv_cache_dtype": "bfloat16"}, gpus=("T4", "L4")), lambda: vllm(gpus=("T4", "L4"))),
    ("VN20", lambda: leases(4, 30), lambda: leases(6, 6)),
    ("VN20", lambda: leases(6, 60), lambda: leases(30, 60)),
    (
        "VN21",
        lambda: leases(30, 30, admission_wait=45),
        lambda: leases(60, 60, admission_wait=45),
    ),
    (
        "VN21",
        lambda: vllm({"env": {"VLLM_NIXL_ABORT_REQUEST_TIMEOUT": "30"}, "version": V("0.20")}, admission_wait=45),
        lambda: vllm({"version": V("0.20")}, admission_wait=45),
    ),
    (
        "VN22",
        lambda: both({"node": "a"}, gpus=("L40S", "L40S")),
        lambda: both({"node": "a"}, gpus=("L40S", "L40S"), over=PUSH),
    ),
    (
        "VN22",
        lambda: both({"node": "a"}, gpus=("L40S", "L40S")),
        lambda: both({"node": "a"}, gpus=("H100", "H100")),
    ),
    (
        "VN23",
        lambda: vllm(
            *off(dtype="bfloat16", attention_backend="TRITON_ATTN", kv_cache_dtype="fp8"), gpus=("MI300X", "H100")
        ),
        lambda: vllm(*off(kv_cache_dtype="fp8"), gpus=("H100", "L40S")),
    ),
    ("VN23", lambda: vllm(*off(model="acme/unknown"), model=None), lambda: vllm(*off())),
    ("VN24", lambda: vllm(None, {"pp": 2}), lambda: vllm({"pp": 2}, over=PUSH)),
    ("VN24", lambda: vllm({"pp": 2}, model="gpt-oss-120b"), lambda: vllm({"pp": 2}, model="gpt-oss-120b", over=PUSH)),
    (
        "VN24",
        lambda: vllm({"dcp": 2, "tp": 2}, over=PUSH, model="DeepSeek-V3"),
        lambda: vllm({"dcp": 2, "tp": 2}, model="DeepSeek-V3"),
    ),
    (
        "VN24",
        lambda: vllm({"dcp": 2, "tp": 4}, model="DeepSeek-V3"),
        lambda: vllm({"dcp": 4, "tp": 4}, model="DeepSeek-V3"),
    ),
    ("VN24", lambda: vllm(None, {"pcp": 2}), lambda: vllm({"pcp": 2})),
    (
        "VN24",
        lambda: vllm({"pcp": 2, "dcp": 2, "tp": 2}, model="DeepSeek-V3"),
        lambda: vllm({"pcp": 2, "dcp": 2}, {"dcp": 2, "tp": 2}, model="DeepSeek-V3"),
    ),
    (
        "VN24",
        lambda: vllm({"pcp": 2}, {"dcp": 2, "tp": 2}, model="DeepSeek-V3"),
        lambda: vllm({"pcp": 2}, {"tp": 2}, model="DeepSeek-V3"),
    ),
    (
        "VN24",
        lambda: vllm({"dcp": 2, "tp": 2}, {"dcp": 3, "tp": 3}, model="DeepSeek-V3"),
        lambda: vllm({"dcp": 2, "tp": 2}, {"dcp": 4, "tp": 4}, model="DeepSeek-V3"),
    ),
    (
        "VN24",
        lambda: vllm({"pp": 2, "tp": 2}, {"tp": 4}, model="gpt-oss-120b", over=PUSH),
        lambda: vllm({"pp": 2, "tp": 4}, {"tp": 2}, model="gpt-oss-120b", over=PUSH),
    ),
    (
        "VN25",
        lambda: vllm({"model": "amd/Qwen3-32B-FP8-KV"}, {"kv_cache_dtype": "fp8"}),
        lambda: both({"model": "amd/Qwen3-32B-FP8-KV"}),
    ),
    (
        "VN25",
        lambda: vllm({"revision": "a", "kv_cache_dtype": "fp8"}, {"revision": "b", "kv_cache_dtype": "fp8"}),
        lambda: vllm({"revision": "a"}, {"revision": "b"}),
    ),
    (
        "VN26",
        lambda: both({"kv_cache_dtype": "fp8", "attention_backend": "TRITON_ATTN"}, gpus=("MI300X", "H100")),
        lambda: both({"kv_cache_dtype": "fp8", "attention_backend": "TRITON_ATTN"}, gpus=("MI355X", "H100")),
    ),
    (
        "VN26",
        lambda: both({"kv_cache_dtype": "fp8"}, gpus=("H100", "MI325X"), over=MOONCAKE),
        lambda: vllm(gpus=("H100", "MI325X"), over=MOONCAKE),
    ),
    (
        "VN27",
        lambda: vllm({"block_size": 32}, {"block_size": 16}, over=PUSH),
        lambda: both({"block_size": 32}, over=PUSH),
    ),
    ("VN27", lambda: vllm(HND, NHD, over=PUSH), lambda: both(NHD, over=PUSH)),
    ("VN27", lambda: vllm({"tp": 2}, {"tp": 16}, over=PUSH), lambda: vllm({"tp": 2}, {"tp": 8}, over=PUSH)),
    (
        "VN27",
        lambda: vllm({"connector": producer(PUSH, {"bidirectional_kv_xfer": True})}, over=PUSH),
        lambda: vllm({"connector": producer(PULL, {"bidirectional_kv_xfer": True})}),
    ),
    (
        "VN28",
        lambda: vllm({"connector": producer(extra={"kv_lease_durations": 300})}),
        lambda: vllm({"connector": producer(extra={"kv_lease_duration": 300})}),
    ),
    (
        "VN29",
        lambda: vllm({"env": {"VLLM_NIXL_ABORT_REQUEST_TIMEOUT": "600"}}),
        lambda: vllm({"env": {"VLLM_NIXL_ABORT_REQUEST_TIMEOUT": "600"}, "version": V("0.21")}),
    ),
    (
        "VN29",
        lambda: vllm({"connector": producer(extra={"kv_lease_duration": 60}), "version": V("0.21")}),
        lambda: vllm({"connector": producer(extra={"kv_lease_duration": 60}), "version": V("0.22")}),
    ),
    (
        "VN29",
        lambda: vllm({"env": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}}),
        lambda: vllm({"env": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}, "version": V("0.14")}),
    ),
    ("VN30", lambda: vllm({"tp": 4}, {"tp": 1}), lambda: vllm({"tp": 1}, {"tp": 4})),
    (
        "VN31",
        lambda: both({"attention_backend": "FLASH_ATTN", "kv_cache_dtype": "fp8"}, gpus=("H100", "L40S")),
        lambda: both({"attention_backend": "FLASHINFER", "kv_cache_dtype": "fp8"}, gpus=("H100", "L40S")),
    ),
    (
        "VN31",
        lambda: both({"attention_backend": "FLASH_ATTN_MLA"}, gpus=("H100", "B200"), model="DeepSeek-V3"),
        lambda: both({"attention_backend": "FLASHMLA"}, gpus=("H100", "B200"), model="DeepSeek-V3"),
    ),
    (
        "VN31",
        lambda: both({"attention_backend": "FLASHINFER"}, gpus=("H100", "MI300X")),
        lambda: both({"attention_backend": "TRITON_ATTN"}, gpus=("H100", "MI300X")),
    ),
    (
        "VN31",
        lambda: both({"attention_backend": "FLASH_ATTN"}, model="DeepSeek-V3"),
        lambda: both({"attention_backend": "FLASH_ATTN"}),
    ),
    (
        "VM1",
        lambda: vllm({"block_size": 16}, {"block_size": 32, "kv_cache_dtype": "fp8"}, over=MOONCAKE),
        lambda: both({"block_size": 16}, over=MOONCAKE),
    ),
    ("VM1", lambda: vllm({"dtype": "float16"}, over=MOONCAKE), lambda: vllm({"dtype": "bfloat16"}, over=MOONCAKE)),
    (
        "VM1",
        lambda: vllm({"model": "Qwen/Qwen3-32B"}, {"model": "meta-llama/Llama-3.1-70B"}, over=MOONCAKE),
        lambda: vllm({"model": "Qwen/Qwen3-32B"}, {"model": "Qwen/Qwen3-32B-FP8"}, over=MOONCAKE),
    ),
    ("VM1", lambda: vllm(HND, NHD, over=MOONCAKE), lambda: both(NHD, over=MOONCAKE)),
    (
        "VM2",
        lambda: vllm(None, {"kv_cache_dtype": "fp8"}, over=MOONCAKE),
        lambda: vllm({"tp": 2}, {"tp": 4}, over=MOONCAKE),
    ),
    (
        "VM2",
        lambda: vllm({"tp": 2, "block_size": 16}, {"tp": 4, "block_size": 32}, over=MOONCAKE),
        lambda: vllm({"tp": 8, "block_size": 16}, {"tp": 1, "block_size": 16}, over=MOONCAKE),
    ),
    (
        "VM3",
        lambda: vllm({"block_size": 32, "kv_cache_dtype": "fp8"}, {"block_size": 16}, over=MOONCAKE),
        lambda: both({"block_size": 32, "kv_cache_dtype": "fp8"}, over=MOONCAKE),
    ),
    (
        "VM3",
        lambda: vllm({"hybrid_kv_manager": False}, over=MOONCAKE, model="gpt-oss-120b"),
        lambda: vllm({"hybrid_kv_manager": False}, over=MOONCAKE),
    ),
    (
        "VM4",
        lambda: vllm(
            {"connector": producer(MOONCAKE, {"bootstrap_server_address": "localhost:8998"}), "node": "a"},
            {"node": "b"},
            over=MOONCAKE,
        ),
        lambda: vllm(
            {"connector": producer(MOONCAKE, {"bootstrap_server_address": "10.0.0.1:8998"}), "node": "a"},
            {"node": "b"},
            over=MOONCAKE,
        ),
    ),
    (
        "VM4",
        lambda: vllm(over=MOONCAKE, router=Router("vllm-router", {"prefill": ["http://p:8100 9000"]})),
        lambda: vllm(over=MOONCAKE, router=Router("vllm-router", {"prefill": ["http://p:8100 8998"]})),
    ),
]


def named(cases: list[Case]) -> list[str]:
    return [f"{case[0]}-{[other[0] for other in cases[:index]].count(case[0]) + 1}" for index, case in enumerate(cases)]


@pytest.mark.parametrize(("id", "breaks", "keeps"), CASES, ids=named(CASES))
def test_a_rule_is_broken_by_one_pair_and_kept_by_another(id, breaks, keeps):
    assert clashes(all_rules(), id, breaks())
    assert clashes(all_rules(), id, keeps()) == []


def test_every_rule_of_vllm_has_a_case():
    of_vllm = {each.id for each in all_rules() if each.id.startswith(("VN", "VM"))}
    assert {f"VN{number}" for number in range(1, 28)} | {f"VM{number}" for number in range(1, 5)} <= of_vllm
    assert of_vllm == {case[0] for case in CASES}


def test_rules_have_ids_of_their_own_and_say_what_they_know_and_from_where():
    ids = [each.id for each in all_rules()]
    assert len(ids) == len(set(ids))
    for each in all_rules():
        assert each.sentence.endswith("."), each.id
        assert each.source, each.id


@pytest.mark.parametrize(
    ("id", "joint", "severity"),
    [
        ("VN4", lambda: vllm(None, {"kv_cache_dtype": "fp8"}), None),
        ("VN4", lambda: vllm(off()[0], {**off()[1], "kv_cache_dtype": "fp8"}), Severity.REQUEST),
        ("VN3", lambda: vllm({**off()[0], "dtype": "float16"}, off()[1]), Severity.SILENT),
        ("VN15", lambda: vllm(model=HYBRID), Severity.STARTUP),
        (
            "VN28",
            lambda: vllm({"connector": producer(extra={"enforce_handshake_compatible": False})}),
            Severity.REQUEST,
        ),
        ("VN28", lambda: vllm({"connector": producer(extra={"colour": "blue"})}), Severity.SLOW),
    ],
)
def test_what_happens_depends_on_what_stops_the_pair(id, joint, severity):
    assert clashes(all_rules(), id, joint())[0].severity is severity


def test_words_that_mean_the_same_are_refused_without_need_and_the_finding_says_so():
    for words in (("auto", "bfloat16"), ("fp8", "fp8_e4m3")):
        (clash,) = clashes(all_rules(), "VN4", vllm({"kv_cache_dtype": words[0]}, {"kv_cache_dtype": words[1]}))
        assert clash.is_spurious
        assert clash.change == f"write --kv-cache-dtype {words[1]} on both roles"
    (clash,) = clashes(all_rules(), "VN4", vllm(None, {"kv_cache_dtype": "fp8_e5m2"}))
    assert not clash.is_spurious


def test_two_names_of_one_model_are_told_from_two_models():
    alike = vllm({"model": "Qwen/Qwen3-32B-FP8"})
    (name,) = clashes(all_rules(), "VN3", replaced(alike, decode_model=CATALOG.model("Qwen3-32B")))
    assert name.is_spurious
    (shape,) = clashes(all_rules(), "VN3", replaced(alike, decode_model=CATALOG.model("Qwen3-8B")))
    assert not shape.is_spurious
    assert "64 layers" in shape.prefill


def test_children_of_several_connectors_are_checked_and_found():
    child = connector("NixlConnector", "kv_producer", kv_rank=1)
    offload = connector("OffloadingConnector", "kv_both", {"cpu_bytes_to_uses": 1})
    several = Connector("MultiConnector", "kv_producer", {"kv_connector": "MultiConnector"}, {}, (offload, child))
    joint = vllm({"connector": several}, {"tp": 3})
    assert ["kv_rank" in clash.prefill for clash in clashes(all_rules(), "VN1", joint)] == [True]
    assert ["cpu_bytes_to_use?" in clash.change for clash in clashes(all_rules(), "VN28", joint)] == [True]
    assert clashes(all_rules(), "VN7", vllm({"connector": several, "tp": 2}, {"tp": 3}))


def test_two_vendors_meet_through_host_memory():
    """As Dynamo's example of an XPU prefill and a CUDA decode is set up: blocks of 64, buffers on the host, decode permutes."""
    shared = {"block_size": 64, "attention_backend": "FLASH_ATTN"}
    first = producer(extra=OFF, kv_buffer_device="cpu")
    second = consumer(extra=OFF, kv_buffer_device="cpu", enable_permute_local_kv=True)
    joint = vllm(
        {**shared, "connector": first, "tp": 2},
        {**shared, **NHD, "connector": second, "tp": 4},
        gpus=("Arc-Pro-B60", "H100"),
    )
    found = {each.id for each in all_rules() if each.id[:2] in ("VN", "PD") and clashes(all_rules(), each.id, joint)}
    assert found - {"VN30"} == set()


def test_model_dtypes_that_do_not_reach_the_cache_are_refused_without_need():
    fp8 = {"kv_cache_dtype": "fp8"}
    (clash,) = clashes(all_rules(), "VN3", vllm({**fp8, "dtype": "float16"}, {**fp8, "dtype": "bfloat16"}))
    assert clash.is_spurious


def test_a_name_that_is_not_known_is_not_called_the_same_model():
    (clash,) = clashes(all_rules(), "VN3", vllm(None, {"model": "acme/own"}))
    assert not clash.is_spurious


def test_the_backend_that_both_accelerators_run_is_named():
    (clash,) = clashes(all_rules(), "VN5", vllm(gpus=("H100", "B200")))
    assert clash.change == "set --attention-backend FLASH_ATTN on both roles"
    (clash,) = clashes(all_rules(), "VN5", both({"kv_cache_dtype": "fp8"}, gpus=("H100", "L40S")))
    assert clash.change == "set --attention-backend FLASHINFER on both roles"
    (clash,) = clashes(all_rules(), "VN5", vllm(gpus=("H100", "MI300X")))
    assert clash.change == "set --attention-backend TRITON_ATTN on both roles"
    for name in ("FLASH_ATTN", "TRITON_ATTN"):
        assert clashes(all_rules(), "VN31", both({"attention_backend": name}, gpus=("H100", "B200"))) == []


def test_a_draft_inherits_the_targets_format_which_is_told_once():
    joint = vllm({"speculative": MTP}, {"speculative": MTP, "kv_cache_dtype": "fp8"})
    assert clashes(all_rules(), "VN6", joint) == []
    named = {**MTP, "kv_cache_dtype": "bfloat16"}
    assert clashes(all_rules(), "VN6", vllm({"speculative": MTP}, {"speculative": named}))


def test_a_typo_names_what_was_meant():
    (clash,) = clashes(all_rules(), "VN28", vllm({"connector": producer(extra={"kv_lease_durations": 300})}))
    assert "did you mean kv_lease_duration?" in clash.change
    (clash,) = clashes(all_rules(), "VN1", vllm({"connector": producer(kv_load_failure_polcy="fail")}))
    assert "did you mean kv_load_failure_policy?" in clash.change


def test_a_release_is_judged_by_its_own_rules():
    old, new = V("0.12"), V("0.33")
    wide = vllm({"tp": 4, "version": old}, {"tp": 1, "version": old})
    assert applies(rule("VN30"), wide)
    assert not applies(rule("VN30"), vllm({"tp": 4, "version": new}, {"tp": 1, "version": new}))
    assert clashes(all_rules(), "VN4", vllm({"version": old}, {"kv_cache_dtype": "bfloat16", "version": old})) == []
    assert not applies(rule("VN20"), wide)
    assert not applies(rule("VN30"), vllm({"tp": 4, "version": V("0.14")}, {"tp": 1, "version": V("0.14")}))
    assert applies(rule("VN30"), vllm({"tp": 4, "version": V("0.13")}, {"tp": 1, "version": V("0.13")}))


def test_without_a_connector_vllm_has_nothing_to_say_of_a_pair():
    joint = vllm({"connector": None}, {"connector": None, "kv_cache_dtype": "fp8", "tp": 3, "block_size": 48})
    assert [
        each.id for each in all_rules() if each.id[:2] in ("VN", "VM") and clashes(all_rules(), each.id, joint)
    ] == []
