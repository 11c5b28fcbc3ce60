"""Laws of checking: whatever the settings, it answers; alike roles do not clash; names and addresses do not matter."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.catalog.catalog import Catalog
from diptych.design.axes import Role
from diptych.engines.check import Report, check
from diptych.engines.deployment import Deployment, Expected
from diptych.engines.engine import Engine, Launcher, Version
from diptych.engines.resolve_vllm import KV_WORDS
from diptych.engines.role import Connector, EnvValue, RoleConfig

CATALOG = Catalog.load()
COMPARE = {
    *(f"VN{number}" for number in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 26, 30)),
    *("VM1", "VM2", "VM3", "SG1", "SG2", "SG3", "SG6", "SG7", "TR1", "PD1"),
}
"""Rules that lay one side beside the other, and hence have nothing to say of two that are alike."""

JUNK = st.sampled_from([None, "", 0, -1, 30, "30", "x", True, False, float("nan"), 1e300, [], {}, [1], {"a": 1}])
MODELS = [
    "Qwen/Qwen3-32B",
    "deepseek-ai/DeepSeek-V3",
    "gpt-oss-120b",
    "Qwen3-Next-80B-A3B",
    "acme/own",
    "/models/own",
    "",
]
GPUS = [
    "",
    "H100",
    "NVIDIA-H20",
    "L40S",
    "B200",
    "T4",
    "MI300X",
    "MI355X",
    "Arc-Pro-B60",
    "Gaudi3",
    "Groq-LPU-v1",
    "own",
]
ENVIRONMENT = [
    *("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_KV_CACHE_LAYOUT", "UCX_TLS"),
    *("VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_ROCM_USE_AITER", "VLLM_ATTENTION_BACKEND", "VLLM_MOONCAKE_BOOTSTRAP_PORT"),
]
NAMES = ["NixlConnector", "NixlPushConnector", "MooncakeConnector", "MultiConnector", "LMCacheConnectorV1", "Own", ""]


def sometimes(keys: list[str]) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(st.sampled_from(keys), JUNK, max_size=3)


def connectors(children: st.SearchStrategy[tuple[Connector, ...]]) -> st.SearchStrategy[Connector]:
    return st.builds(
        Connector,
        name=st.sampled_from(NAMES),
        role=st.sampled_from(["kv_producer", "kv_consumer", "kv_both", "", "own"]),
        fields=sometimes(["kv_role", "kv_rank", "kv_buffer_device", "enable_permute_local_kv", "own"]),
        extra=sometimes(["kv_lease_duration", "enforce_handshake_compat", "bootstrap_server_address", "own"]),
        children=children,
    )


CONNECTORS = connectors(st.lists(connectors(st.just(())), max_size=2).map(tuple))
ROLES = st.builds(
    RoleConfig,
    role=st.just(Role.PREFILL),
    engine=st.sampled_from([Engine.VLLM, Engine.VLLM, Engine.SGLANG, Engine.TRTLLM]),
    version=st.sampled_from([None, Version((0, 12, 0)), Version((0, 21, 0)), Version((0, 33, 0))]),
    launcher=st.sampled_from(list(Launcher)),
    model=st.sampled_from(MODELS),
    dtype=st.sampled_from(["auto", "float16", "bfloat16", "own"]),
    kv_cache_dtype=st.sampled_from([*KV_WORDS, "own"]),
    block_size=st.sampled_from([None, 1, 16, 48, 64, 128]),
    tp=st.sampled_from([1, 2, 3, 8, 16]),
    pp=st.sampled_from([1, 2]),
    dp=st.sampled_from([1, 8]),
    dcp=st.sampled_from([1, 2]),
    pcp=st.sampled_from([1, 2]),
    attention_backend=st.sampled_from(["", "FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "own"]),
    speculative=st.sampled_from([{}, {"method": "mtp"}, {"method": 3}]),
    hybrid_kv_manager=st.sampled_from([None, True, False]),
    connector=st.none() | CONNECTORS,
    gpu=st.sampled_from(GPUS),
    node=st.sampled_from(["", "a", "b"]),
    env=st.dictionaries(
        st.sampled_from(ENVIRONMENT),
        st.sampled_from(["", "localhost", "5600", "NHD", "DS", "-1"]).map(EnvValue),
        max_size=3,
    ),
    options=sometimes(["calculate-kv-scales", "disaggregation-bootstrap-port", "kv-cache-quant-algo", "own"]),
)


def checked(*roles: RoleConfig) -> Report:
    expected = Expected(prompt_p50=3, prompt_max=100_000, output_p50=10, admission_wait=40)
    return check(Deployment(roles, expected=expected), CATALOG)


@settings(max_examples=150)
@given(ROLES, ROLES)
def test_a_check_answers_whatever_the_settings_and_every_clash_says_what_to_change(
    prefill: RoleConfig, other: RoleConfig
) -> None:
    report = checked(prefill, replace(other, role=Role.DECODE))
    for each in report.broken:
        assert each.clash.prefill or each.clash.decode, each
        assert each.clash.change, each


@settings(max_examples=100)
@given(ROLES)
def test_alike_roles_break_no_rule_that_compares_them(config: RoleConfig) -> None:
    report = checked(config, replace(config, role=Role.DECODE))
    assert {each.rule.id for each in report.broken} & COMPARE == set()


@settings(max_examples=50)
@given(ROLES, ROLES, st.integers(1, 9))
def test_names_numbers_and_ports_change_no_finding(prefill: RoleConfig, other: RoleConfig, number: int) -> None:
    decode = replace(other, role=Role.DECODE)
    renamed = [replace(role, name=f"{role.role}-{number}", replicas=number) for role in (prefill, decode)]
    ids = [[each.rule.id for each in checked(*roles).broken] for roles in ((prefill, decode), renamed)]
    assert ids[0] == ids[1]
