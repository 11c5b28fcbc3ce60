"""PD3: one tokenizer and one rope on both roles, whatever else they agree on; and what is the same though spelled otherwise."""

from __future__ import annotations

import json

import pytest

from diptych.catalog.catalog import Catalog
from diptych.deploy.commands.read import read_pair
from diptych.engines.check import check
from diptych.engines.rule import Severity

CATALOG = Catalog.load()
NIXL = """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'"""
VLLM = f"VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.1 vllm serve Qwen/Qwen3-32B {NIXL} "
SGLANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --disaggregation-mode {} "


def yarn(factor: float, **more: object) -> str:
    return "'" + json.dumps({"rope_scaling": {"rope_type": "yarn", "factor": factor}, **more}) + "'"


def found(prefill: str, decode: str) -> list[tuple[str, Severity]]:
    return [(each.rule.id, each.severity) for each in check(read_pair([prefill], [decode]), CATALOG).broken]


WRONG = [("PD3", Severity.SILENT)]


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        ("", "--tokenizer Qwen/Qwen2-7B", WRONG),
        ("--tokenizer a/x", "--tokenizer a/y", WRONG),
        ("--tokenizer Qwen/Qwen3-32B", "", []),
        ("--tokenizer /models/qwen", "", []),  # a folder may hold the same
        ("--tokenizer RedHatAI/Qwen3-32B-FP8-dynamic", "", []),
        (f"--hf-overrides {yarn(4)}", "", WRONG),
        (f"--hf-overrides {yarn(4)}", f"--hf-overrides {yarn(2)}", WRONG),
        (f"--hf-overrides {yarn(4)}", f"--hf-overrides {yarn(4, architectures=['A'])}", []),
        ("""--hf-overrides '{"architectures": ["A"]}'""", "", []),
        ("""--hf-overrides '{"text_config": {"rope_theta": 5000}}'""", "", WRONG),
        ("--hf-overrides.rope_theta 5000", "", WRONG),
    ],
)
def test_vllm(prefill: str, decode: str, expected: list[tuple[str, Severity]]) -> None:
    assert found(VLLM + prefill, VLLM + decode) == expected


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        ("", "", []),
        ("", "--tokenizer-path Qwen/Qwen2-7B", WRONG),
        (f"--json-model-override-args {yarn(4)}", "", WRONG),
        (f"--json-model-override-args {yarn(4)}", f"--json-model-override-args {yarn(4)}", []),
        ("--json-model-override-args '{bad'", "", []),
    ],
)
def test_sglang(prefill: str, decode: str, expected: list[tuple[str, Severity]]) -> None:
    assert found(SGLANG.format("prefill") + prefill, SGLANG.format("decode") + decode) == expected


@pytest.mark.parametrize(("mode", "complains"), [("decode", 0), ("prefill", 1), ("null", 1), ('"$MODE"', 0)])
def test_a_sglang_started_for_another_role_is_a_mistake(mode: str, complains: int) -> None:
    told = read_pair([SGLANG.format("prefill")], [SGLANG.format(mode)])
    assert len(told.findings) == complains
    assert all("the command for decode runs in mode" in finding.problem for finding in told.findings)


def test_a_sglang_without_a_mode_is_colocated_and_no_half() -> None:
    bare = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B"
    assert len(read_pair([bare], [bare]).findings) == 2
