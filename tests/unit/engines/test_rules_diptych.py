"""The rules of diptych's own connector: each is broken by a pair and kept by another; those of NIXL are silent over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from rule_pairs import CATALOG, clashes
from vllm_pairs import connector, vllm

from diptych.engines.check import check
from diptych.engines.deployment import Deployment
from diptych.engines.engine import version
from diptych.engines.resolve import Joint
from diptych.engines.rule import Severity
from diptych.engines.rules import all_rules

MODULE = {"kv_connector_module_path": "diptych.integrations.vllm"}
TLS = {"certificate": "/c.pem", "key": "/k.pem", "authority": "/a.pem"}


def ours(
    prefill=None, decode=None, first=None, second=None, words=("kv_producer", "kv_consumer"), path=MODULE, **more
) -> Joint:
    """Both roles over the connector; `first` and `second` are their settings of it."""
    links = [
        connector("DiptychConnector", word, extra, **path) for word, extra in zip(words, (first, second), strict=True)
    ]
    more = {"gpus": ("H100", "H100"), **more}
    return vllm({"connector": links[0], **(prefill or {})}, {"connector": links[1], **(decode or {})}, **more)


Case = tuple[str, Callable[[], Joint], Callable[[], Joint]]
CASES: list[Case] = [
    ("VD1", lambda: ours(path={}), ours),
    ("VD1", lambda: ours(path={"kv_connector_module_path": "dyptich.integrations.vllm"}), ours),
    ("VD2", lambda: ours(first={"wires": "int8"}), lambda: ours(first={"wire": "int8"})),
    ("VD2", lambda: ours(first={"wire": "int3"}), lambda: ours(first={"wire": "bfloat16"})),
    ("VD2", lambda: ours(first={"lease_s": "30"}), lambda: ours(first={"lease_s": 30})),
    ("VD2", lambda: ours(first={"lease_s": True}), lambda: ours(first={"lease_s": 30.5})),
    ("VD2", lambda: ours(first={"port": 9.5}), lambda: ours(first={"port": 8400})),
    ("VD2", lambda: ours(first={"ownership": "push"}), lambda: ours(first={"ownership": "push", "port": 8400})),
    ("VD2", lambda: ours(first={"ownership": "shove"}), lambda: ours(first={"ownership": "pull"})),
    ("VD2", lambda: ours(second={"certificate": "/c.pem"}), lambda: ours(second=TLS)),
    ("VD3", lambda: ours({"version": version("0.31")}), lambda: ours({"version": version("0.32")})),
    ("VD3", lambda: ours(decode={"version": version("0.34")}), lambda: ours(decode={"version": version("0.33.1")})),
    ("VD4", lambda: ours(words=("kv_consumer", "kv_producer")), ours),
    ("VD4", lambda: ours(words=("kv_producer", "kv_both")), ours),
    ("VD5", lambda: ours(second={"wire": "int8"}), lambda: ours(first={"wire": "int8"})),
    ("VD6", lambda: ours(first={"lease_s": 0.5}), lambda: ours(first={"lease_s": 10})),
    ("VD7", lambda: ours(first={"host": "10.0.0.1"}), lambda: ours(first={"host": "10.0.0.1", **TLS})),
    ("VD7", lambda: ours(first={"host": "0.0.0.0", **TLS}), lambda: ours(first={"host": "127.0.0.1"})),
    ("VD7", lambda: ours({"node": "a"}, {"node": "b"}), lambda: ours({"node": "a"}, {"node": "a"})),
    ("VD8", lambda: ours(decode={"kv_cache_dtype": "int8_per_token_head"}), lambda: ours(decode={"kv_cache_dtype": "fp8"})),
    ("VD8", lambda: ours({"pp": 2}), ours),
    ("VD8", lambda: ours(model="DeepSeek-V3"), ours),
    ("VD8", lambda: ours(model="gpt-oss-120b"), ours),
    ("VD8", lambda: ours({"model": "amd/Llama-3.1-70B-Instruct-FP8-KV"}), ours),
    ("VD9", lambda: ours({"tp": 3}), lambda: ours({"tp": 4})),
]  # fmt: skip


@pytest.mark.parametrize(("id", "broken", "kept"), CASES, ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)])
def test_a_rule_tells_the_pair_that_breaks_it_from_one_that_does_not(id, broken, kept) -> None:
    assert clashes(all_rules(), id, broken())
    assert clashes(all_rules(), id, kept()) == []


DIFFERENT = {
    "dtype": ({"dtype": "bfloat16"}, {"dtype": "float16"}),
    "KV dtype": ({"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "fp8"}),
    "blocks": ({"block_size": 128}, {"block_size": 64}),
    "attention backend": ({"attention_backend": "FLASH_ATTN"}, {"attention_backend": "TRITON_ATTN"}),
    "ranks": ({"tp": 4}, {"tp": 2}),
    "a CPU's packed blocks": ({"block_size": 64, "gpu": "cpu"}, {"block_size": 128, "gpu": "cpu"}),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_stock_connectors_refuse_or_garble_is_fine_over_ours(name: str) -> None:
    prefill, decode = DIFFERENT[name]
    gpus = (None, None) if "CPU" in name else ("H100", "H100")
    report = check(ours(prefill, decode, gpus=gpus).deployment, CATALOG)
    assert report.broken == ()
    stock = check(vllm(prefill, decode, gpus=gpus).deployment, CATALOG)
    assert [each for each in stock.broken if each.severity is not Severity.SLOW] or name == "ranks"


def test_another_model_is_refused_per_request_and_never_silent() -> None:
    joint = ours(decode={"model": "Qwen/Qwen3-8B"})
    report = check(Deployment((joint.prefill, replace(joint.decode, served_name="other"))), CATALOG)
    assert [(each.rule.id, each.severity) for each in report.broken] == [("PD2", Severity.REQUEST)]


def test_one_role_with_ours_and_one_with_nixl_is_told() -> None:
    joint = ours(decode={"connector": connector("NixlConnector", "kv_consumer")})
    assert clashes(all_rules(), "VN2", joint)
