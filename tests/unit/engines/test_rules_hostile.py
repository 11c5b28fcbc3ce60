"""No rule trips over what a file may hold: settings of another kind than the engine takes are its reader's to complain of."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rule_pairs import CATALOG, pair

from diptych.engines.check import check
from diptych.engines.deployment import Router
from diptych.engines.engine import Engine, Launcher
from diptych.engines.role import Connector

OPTIONS = (
    *("disaggregation-transfer-backend", "disaggregation-bootstrap-port", "disaggregation-decode-allocation-policy"),
    *("num-reserved-decode-tokens", "enable-pd-role-switch", "enable-dp-attention", "ep-size", "kv-cache-quant-algo"),
    *("prefill-attention-backend", "decode-attention-backend", "speculative-algorithm"),
    *("kv_cache_config", "router", "cache_transceiver_config", "publish-kv-events", "kv-events-config"),
)
ENVIRONMENT = (
    *("SGLANG_DISAGG_STAGING_BUFFER", "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT", "UCX_TLS"),
    *("VLLM_KV_CACHE_LAYOUT", "VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_MOONCAKE_BOOTSTRAP_PORT"),
    *("LMCACHE_ENABLE_PD", "LMCACHE_PD_BUFFER_SIZE", "LMCACHE_PD_ALLOCATION_TIMEOUT_SEC", "LMCACHE_CHUNK_SIZE"),
)
ROUTING = (
    *("prefill", "plugins", "retry-max-retries", "disable-retries", "kv-cache-block-size"),
    *("router-conditional-disagg", "router-mode"),
)
EXTRA = ("kv_lease_duration", "enforce_handshake_compat", "bidirectional_kv_xfer", "connectors", "mooncake_protocol")

words = st.sampled_from(("", "auto", "mooncake", "nixl", "fp8", "true", "8", "-1", "inf", "nan", "kv_cache_aware"))
leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | words
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=6
)


def named(names):
    return st.dictionaries(st.sampled_from(names), values, max_size=4)


connectors = st.none() | st.builds(
    Connector,
    st.sampled_from(
        ("NixlConnector", "NixlPushConnector", "MooncakeConnector", "LMCacheConnectorV1", "MultiConnector")
    ),
    st.sampled_from(("", "kv_producer", "kv_consumer", "kv_both", "both")),
    named(("kv_buffer_device", "kv_load_failure_policy", "enable_permute_local_kv", "kv_rank")),
    named(EXTRA),
)
roles = st.fixed_dictionaries(
    {
        "options": named(OPTIONS),
        "env": st.dictionaries(st.sampled_from(ENVIRONMENT), words, max_size=3),
        "connector": connectors,
        "kv_cache_dtype": st.sampled_from(("auto", "fp8", "fp8_e4m3", "nvfp4", "bfloat16", "no such")),
        "block_size": st.none() | st.sampled_from((0, 1, 16, 64, 100)),
        "tp": st.sampled_from((1, 2, 3, 8)),
        "dp": st.sampled_from((1, 2)),
        "speculative": st.just({}) | named(("method", "model", "num_speculative_tokens")),
    }
)


@settings(max_examples=150)
@given(
    st.sampled_from(Engine),
    st.sampled_from(Launcher),
    roles,
    roles,
    st.sampled_from(("sglang_router", "dynamo.frontend", "epp")),
    named(ROUTING),
    st.sampled_from((None, "H100", "B200", "MI300X")),
)
def test_rules_bear_any_settings(engine, launcher, prefill, decode, kind, routing, gpu) -> None:
    router = Router(kind, routing)
    sides = ({**prefill, "gpu": gpu or ""}, {**decode, "gpu": "H20"})
    joint = pair(engine, *sides, launcher=launcher, router=router, prompt_max=8000, output_p50=100, admission_wait=40)
    report = check(joint.deployment, CATALOG)
    assert all(broken.clash.change for broken in report.broken)
