"""What `check` prints, at the width of a terminal and in whole sentences."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from diptych.catalog.catalog import Catalog
from diptych.deploy.commands.read import read_pair
from diptych.engines.check import Report, check
from diptych.engines.engine import Version
from diptych.report.checked import check_text, meaning, summary

CATALOG = Catalog.load()
NIXL = """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'"""


def report(prefill: str, decode: str, *, gpus: tuple[str, str] = ("H100", "MI300X")) -> Report:
    told = read_pair([prefill], [decode])
    roles = tuple(replace(role, gpu=CATALOG.accelerator(gpu).name) for role, gpu in zip(told.roles, gpus, strict=True))
    return check(replace(told, roles=roles), CATALOG)


BROKEN = report(
    f"vllm serve Qwen/Qwen3-32B --kv-cache-dtype fp8_e4m3 --foo {NIXL}", f"vllm serve Qwen/Qwen3-32B {NIXL}"
)
SPELLED = report(
    f"vllm serve Qwen/Qwen3-32B {NIXL}", f"vllm serve Qwen/Qwen3-32B --dtype bfloat16 --kv-cache-dtype bfloat16 {NIXL}",
    gpus=("H100", "H20"),
)  # fmt: skip


def shown(found: Report, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(check_text(found, width), soft_wrap=True)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 132])
@pytest.mark.parametrize("found", [BROKEN, SPELLED])
def test_lines_fit_and_none_ends_in_blanks(found: Report, width: int) -> None:
    lines = shown(found, width)
    assert len(lines) > 10
    for line in lines:
        assert line == line.rstrip()
        assert len(line) <= width or len(line.split()) <= 2, line  # an address stays whole


def test_findings_are_counted_in_whole_sentences() -> None:
    assert summary(BROKEN).startswith("1 pair checked: 1 setting not accepted at start-up; ")
    assert "3 fail each request while pods look healthy" in summary(BROKEN)
    assert "2 fail each request while pods look healthy" in summary(SPELLED)
    one = replace(SPELLED, broken=SPELLED.broken[:1])
    assert summary(one) == "1 pair checked: 1 fails each request while pods look healthy"
    assert summary(replace(SPELLED, broken=())) == "1 pair checked: nothing found"


def test_a_spurious_refusal_is_told_once_with_its_remedy() -> None:
    text = "\n".join(shown(SPELLED, 100))
    assert text.count("the bytes are the same, only the spelling differs") == 1
    assert text.count("write --kv-cache-dtype bfloat16 on both roles") == 1
    assert any("VN4 refuses what is compatible" in remark.sentence for remark in SPELLED.remarks)  # and in JSON


def test_a_conversion_names_both_elements_though_its_steps_are_not_known() -> None:
    (pair,) = BROKEN.pairs
    assert pair.contract is None
    assert meaning(pair).startswith("needs conversion: e4m3fn → bf16")


def test_a_release_later_than_was_read_is_said_not_to_be_known() -> None:
    roles = tuple(replace(role, version=Version((0, 40, 0))) for role in SPELLED.deployment.roles)
    found = check(replace(SPELLED.deployment, roles=roles), CATALOG)
    assert any("vllm 0.40.0" in said for said in found.unknown)
    assert not any("does otherwise" in said for said in SPELLED.unknown)


@pytest.mark.parametrize("config", ["{bad", "'[1]'", '"$KV_CONFIG"'])
def test_a_connector_that_cannot_be_read_is_one_finding_or_doubt_and_no_rule_guesses_at_it(config: str) -> None:
    command = f"vllm serve Qwen/Qwen3-32B --kv-transfer-config {config}"
    found = report(command, command)
    assert "VN1" not in {each.rule.id for each in found.broken}
    assert len(found.deployment.findings) + len(found.deployment.unknown) == 2
