"""Designs as text and as files: what is read, what is refused, and the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Role
from diptych.design.boundary import Codec, Overlap, Ownership, Placement, Side
from diptych.design.design import Design
from diptych.design.file import read_design
from diptych.design.text import format_design, parse_design
from diptych.errors import InvalidDesign

CATALOG = Catalog.load()
MODEL = CATALOG.model("Qwen3-32B")
PAIR = "3xH100:tp2 -> 5xH20:tp4, kv=fp8, link=rdma-400g, push"


def parse(text: str) -> Design:
    return parse_design(text, CATALOG, MODEL)


def findings(text: str) -> list[str]:
    with pytest.raises(InvalidDesign) as refused:
        parse(text)
    return [str(finding) for finding in refused.value.findings]


def test_the_pair_of_the_manual() -> None:
    design = parse(PAIR)
    prefill, decode = design.pools
    assert (prefill.role, prefill.count, prefill.members[0].worker.accelerator.name) == (
        Role.PREFILL,
        3,
        "H100-SXM-80GB",
    )
    assert (decode.role, decode.count, decode.members[0].worker.parallelism.tp) == (Role.DECODE, 5, 4)
    assert {pool.members[0].worker.precision.kv for pool in design.pools} == {Dtype.FP8}
    assert design.boundary is not None
    assert design.boundary.link == CATALOG.link("rdma-400g")
    assert (design.boundary.ownership, design.boundary.overlap) == (Ownership.PUSH, Overlap.SERIAL)
    assert design.boundary.placement is Placement.DISAGGREGATED


def test_one_pool_is_colocated_and_a_count_may_be_left_out() -> None:
    design = parse("H100:tp2, colocated")
    assert design.boundary is None
    assert [(pool.role, pool.count) for pool in design.pools] == [(Role.COLOCATED, 1)]


def test_a_workers_own_word_goes_before_the_shared_one() -> None:
    mixed = parse("2xH100:kv=fp8 + A100:tp2, kv=bf16, w=int8").pools[0].members
    assert [member.worker.precision.kv for member in mixed] == [Dtype.FP8, Dtype.BF16]
    assert {member.worker.precision.weights for member in mixed} == {Dtype.INT8}


@pytest.mark.parametrize(
    ("formats", "codec", "wire", "side"),
    [
        (("bf16", "bf16"), Codec.RAW, "bf16", None),
        (("bf16", "fp8"), Codec.QUANTISED, "fp8", Side.PREFILL),
        (("fp8", "bf16"), Codec.CAST, "fp8", Side.DECODE),
    ],
)
def test_unequal_formats_meet_on_the_narrower_wire(
    formats: tuple[str, str], codec: Codec, wire: str, side: Side | None
) -> None:
    boundary = parse(f"H100:kv={formats[0]} -> H20:kv={formats[1]}, link=rdma-400g").boundary
    assert boundary is not None
    form = boundary.representation
    assert (form.codec, str(form.wire), form.converts_at) == (codec, wire, side)


def test_formats_follow_the_model_and_the_silicon() -> None:
    deepseek = CATALOG.model("DeepSeek-V3")
    hopper = parse_design("H200:tp8", CATALOG, deepseek).pools[0].members[0].worker.precision
    ampere = parse_design("A100:tp8, fp8", CATALOG, deepseek).pools[0].members[0].worker.precision
    volta = parse("V100").pools[0].members[0].worker.precision
    assert str(hopper) == "w=fp8 a=fp8 kv=bf16"
    assert str(ampere) == "w=fp8 a=bf16 kv=bf16"  # no fp8 arithmetic there
    assert str(volta) == "w=fp16 a=fp16 kv=fp16"


@pytest.mark.parametrize(
    "text",
    [
        PAIR,
        "4xH100:tp2",
        "1xA100:tp4:w=int8:a=int8 + 2xH100:nic=12.5GB/s -> 3xMI300X:usd=1.25e-05, kv=fp8, link=tcp-100g, pull, wire=fp8_fnuz",
        '2xH100:usd=98.32:offer="p5 ""x"": a, b + c" -> H20:tp8:batch=64:tokens=2048:tier=dram, link=efa, layerwise, local=512',
        "H200:tp2 -> 2xH200:tp4, link=nvlink4, engine=sglang",
        "H200 -> H200, link=nvlink4, disaggregated, wire=fp8, convert=transfer",
        "H100:kv=bf16 -> H100:kv=fp8, link=rdma-400g, codec=cast, wire=bf16, convert=decode",
        "A100:nic=1.2345678901GB/s",
    ],
)
def test_written_and_read_again(text: str) -> None:
    design = parse(text)
    assert parse(format_design(design, CATALOG)) == design


def test_every_mistake_at_once_with_its_column() -> None:
    told = findings("3xH1000:tp2:zz=3 -> 5xH20:tp4:tp2 -> L4, kv=fp9, lnik=rdma-400g, batch=1.5")
    for start in ("--design:38: a third pool", "--design:13: unknown word 'zz'", "--design:31: tp is given twice",
                  "--design:50: unknown word 'lnik'", "--design:3: unknown accelerator 'H1000'",
                  "--design:42: unknown format 'fp9'", "--design:66: 1.5 is not a whole number"):  # fmt: skip
        assert any(line.startswith(start) for line in told), (start, told)
    assert any("did you mean link?" in line for line in told)
    assert len(told) == len(set(told))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no accelerator here"),
        ("H100 -> H20", "nothing joins prefill and decode"),
        ("H100, link=pcie5", "a colocated design has no handoff"),
        ('"H100', "a quotation mark without its partner"),
        ("0xH100", "0 is not a whole number from 1"),
        ("H100:", "nothing between two signs"),
        ("H100:kv=", "unknown format ''"),
        ("H100 -> H20, link=rdma-400g, conditional", "conditional on what?"),
        ("H100 -> H20, link=rdma-400g, local=64, same-node", "local prompts in a same-node design"),
        ("H100 -> H20, link=rdma-4000g", "did you mean rdma-400g"),
        ("H100:usd=-1", "USD per hour from 0"),
        ("H100:nic=0GB/s", "a NIC without bandwidth"),
        ("H100:nic=5", "has no unit"),
    ],
)
def test_a_mistake_is_a_sentence(text: str, expected: str) -> None:
    assert any(expected in line for line in findings(text)), findings(text)


YAML = """
model: Qwen3-32B
prefill: [{accelerator: H100, count: 3, tp: 2}]
decode:
  - {accelerator: H20, count: 5, tp: 4}
kv: fp8
boundary: {link: rdma-400g, ownership: push}
"""


def test_a_file_says_the_same_in_more_lines(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text(YAML)
    (tmp_path / "d.json").write_text(f'{{"model": "Qwen3-32B", "design": "{PAIR}"}}')
    assert read_design(tmp_path / "d.yaml", CATALOG) == parse(PAIR)
    assert read_design(tmp_path / "d.json", CATALOG) == parse(PAIR)


def test_a_given_model_goes_before_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text(YAML)
    other = CATALOG.model("Llama-3.1-8B")
    assert read_design(tmp_path / "d.yaml", CATALOG, other).pools[0].members[0].worker.model == other


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("modl: Qwen3-32B\ndesign: H100", ["d.yaml:1: unknown word 'modl'", "did you mean model", "no model"]),
        ("model: Qwen3-32B\ndesign: H1000", ["d.yaml:2:1: unknown accelerator"]),
        ("model: Qwen3-32B\ndesign: H100\nprefill: []", ["together"]),
        ("model: Qwen3-32B\nprefill: [{accelerator: H100}]", ["prefill together"]),
        ("model: Qwen3-32B\ncolocated: [{count: 3}]", ["d.yaml:2: no accelerator"]),
        ("model: Qwen3-32B\ncolocated: [{accelerator: H100, tp: [2]}]", ["[2] is not a name or a number"]),
        ("model: Lama\ncolocated: [H100]", ["unknown model 'Lama'", "'H100' is not a mapping"]),
        ("- a", ["not a mapping"]),
        ("a: [", ["d.yaml"]),
    ],
)
def test_a_file_is_refused_with_lines(text: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text(text)
    with pytest.raises(InvalidDesign) as refused:
        read_design(tmp_path / "d.yaml", CATALOG)
    assert all(part in str(refused.value) for part in expected), str(refused.value)
