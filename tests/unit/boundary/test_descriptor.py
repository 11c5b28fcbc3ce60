"""The parts of a Runtime KV State: what they refuse, what they call the same, and the bytes they count."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from diptych.boundary.describe import describe_worker, usual_scaling, wire_format
from diptych.boundary.descriptor import Holding, KVState, Layout, Shard, Storage
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format, element_named
from diptych.boundary.identity import Identity, Position, TokenRange
from diptych.boundary.layers import LayerKind, Layers
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.errors import InvalidInput
from diptych.perf.transfer import wire_bytes

CATALOG = Catalog.load()
GQA = Layers(LayerKind.FULL, 4, kv_heads=8, head_dim=128, v_head_dim=128)
BF16 = Format(Element.BF16)


def precision(kv: Dtype) -> Precision:
    return Precision(Dtype.BF16, Dtype.BF16, kv)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: Identity(""), "model: is empty"),
    (lambda: Identity("m", blocks=("a",)), "blocks: are given without tokens"),
    (lambda: TokenRange(4, 4), "covers [4, 4)"),
    (lambda: Position(theta=0.0), "theta: is 0.0"),
    (lambda: Position(theta=float("nan")), "theta: is nan"),
    (lambda: Layers(LayerKind.FULL, 0, kv_heads=8, head_dim=128), "count: is 0"),
    (lambda: Layers(LayerKind.FULL, 1, head_dim=128), "kv_heads: is missing of a full layer"),
    (lambda: Layers(LayerKind.SLIDING, 1, kv_heads=8, head_dim=128), "window: is missing of a sliding layer"),
    (lambda: Layers(LayerKind.LATENT, 1), "latent_rank: is missing"),
    (lambda: Layers(LayerKind.STATE, 1), "state_elements: is missing"),
    (lambda: Layers(LayerKind.FULL, 1, kv_heads=-8, head_dim=128), "kv_heads: is -8"),
    (lambda: Layers(LayerKind.FULL, 2, kv_heads=8, head_dim=128, index=(3, 3)), "index: names 1 layers"),
    (lambda: Format(Element.BF16, Scaling(ScaleSource.UNIT)), "bf16 with unit scales"),
    (lambda: Format(Element.E4M3FN), "e4m3fn without scales"),
    (lambda: Format(Element.INT8, Scaling(ScaleSource.INLINE)), "scaling.granularity: is none"),
    (lambda: Format(Element.INT4, Scaling(ScaleSource.INLINE, ScaleGranularity.GROUP)), "scaling.group: is 0"),
    (lambda: Format(Element.INT4, Scaling(ScaleSource.INLINE, ScaleGranularity.TOKEN, group=8)), "scaling.group: is 8"),
    (lambda: Format(Element.NVFP4, Scaling(ScaleSource.UNIT)), "16, as nvfp4 is defined"),
    (
        lambda: Format(Element.E4M3FN, Scaling(ScaleSource.DYNAMIC, ScaleGranularity.TENSOR, "sha256:a")),
        "scaling.digest: is given for dynamic scales",
    ),
    (lambda: Layers(LayerKind.FULL, 10**9, kv_heads=8, head_dim=128), "count: is 1000000000; expected 65536 at most"),
    (lambda: Layers(LayerKind.STATE, 1, state_elements=float("inf")), "state_elements: is inf"),
    (lambda: Layers(LayerKind.STATE, 1, state_elements=float("nan")), "state_elements: is nan"),
    (lambda: Shard(tp=10**9), "tp: is 1000000000; expected 65536 at most"),
    (lambda: Shard(pp=1, stage_layers=(-1,)), "stage_layers[0]: is -1"),
    (lambda: TokenRange(0, 2**60), "covers [0, 1152921504606846976)"),
    (
        lambda: KVState(Identity("m"), 1000 * (replace(GQA, count=66),), BF16, Storage(16)),
        "layers: are 66000; expected 65536 at most",
    ),
    (lambda: KVState(Identity("m"), 1025 * (GQA,), BF16, Storage(16)), "layers: are 1025 entries"),
    (lambda: Storage(0), "block_tokens: is 0"),
    (lambda: Storage(16, page_stride=-1), "page_stride: is -1"),
    (lambda: Shard(tp=0), "tp: is 0"),
    (lambda: Shard(tp=2, tp_rank=2), "tp_rank: is 2"),
    (lambda: Shard(pp=2, stage_layers=(8,)), "stage_layers: has 1 stages"),
    (lambda: Holding(epoch=-1), "epoch: is -1"),
    (lambda: KVState(Identity("m"), (), BF16, Storage(16)), "layers: are none"),
    (lambda: KVState(Identity("m"), (GQA,), BF16, Storage(16), Shard(tp=3)), "3 ranks cannot share 8 KV heads"),
    (lambda: KVState(Identity("m"), (GQA,), BF16, Storage(16), schema="2.0"), "schema: is '2.0'"),
    (lambda: KVState(Identity("m"), (GQA,), BF16, Storage(16), Shard(pp=2, stage_layers=(1, 2))), "hold 3 layers"),
    (lambda: Layout.of("NDH"), "unknown layout 'NDH'; did you mean NHD, HND?"),
    (lambda: element_named("fp8"), "fp8 is e4m3fn, e4m3fnuz or e5m2"),
    (lambda: element_named("float8_e4m3fnz"), "did you mean float8_e4m3fn"),
    (lambda: KVState.of(CATALOG.model("Phi-4"), precision(Dtype.BF16), Parallelism(4)), "4 ranks cannot share 10"),
    (lambda: KVState.of(CATALOG.model("Phi-4"), precision(Dtype.TF32), Parallelism()), "no cache is stored in tf32"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_makes_no_sense_is_refused_with_its_place(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert message in str(caught.value)


def test_every_finding_comes_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        Layers(LayerKind.SLIDING, 0, compress=0)
    assert [finding.where for finding in caught.value.findings] == [
        "count",
        "compress",
        "kv_heads",
        "head_dim",
        "window",
    ]


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("HND", Layout.LBHNC),
        ("nhd", Layout.LBNHC),
        ("LBHNC", Layout.LBHNC),
        ("blnhc", Layout.BLNHC),
        ("layer_first", Layout.LBNHC),
        ("page_first_direct", Layout.BLNHC),
        ("unknown", Layout.UNKNOWN),
    ],
)
def test_engines_names_of_a_layout_are_one(name: str, layout: Layout) -> None:
    assert Layout.of(name) is layout


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("torch.bfloat16", Element.BF16),
        ("half", Element.FP16),
        ("float8_e4m3fnuz", Element.E4M3FNUZ),
        ("nvfp4", Element.NVFP4),
    ],
)
def test_tensor_types_name_one_element(name: str, element: Element) -> None:
    assert element_named(name) is element


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 32])
def test_ranks_hold_every_head_equally_often(tp: int) -> None:
    shard = Shard(tp=tp)
    held = [head for rank in range(tp) for head in shard.heads(rank, 8)]
    assert sorted(set(held)) == list(range(8))
    assert {held.count(head) for head in held} == {shard.replication(8)}


@pytest.mark.parametrize(("pp", "count"), [(1, 61), (2, 61), (4, 30), (7, 61), (61, 61)])
def test_stages_hold_every_layer_once(pp: int, count: int) -> None:
    shard = Shard(pp=pp)
    stages = [shard.layers(stage, count) for stage in range(pp)]
    assert [layer for stage in stages for layer in stage] == list(range(count))
    assert max(map(len, stages)) - min(map(len, stages)) <= 1


def test_stages_chosen_by_hand_are_kept() -> None:
    shard = Shard(pp=2, stage_layers=(24, 40))
    assert [shard.layers(stage, 64) for stage in range(2)] == [range(24), range(24, 64)]


@pytest.mark.parametrize("name", CATALOG.models)
def test_bytes_are_those_of_the_planner(name: str) -> None:
    """Every model of the catalog, windows, latents and states included: what ranks hold is what perf says."""
    model = CATALOG.model(name)
    for tp, kv in ((1, Dtype.BF16), (2, Dtype.FP16), (2, Dtype.FP32)):
        state = KVState.of(model, precision(kv), Parallelism(tp))
        for tokens in (0, 100, 20_000):
            assert state.held_bytes(tokens) == pytest.approx(
                float(wire_bytes(model, tokens, kv, tp, tp, latent_copies=tp))
            )


@pytest.mark.parametrize("kv", [Dtype.FP8, Dtype.INT8, Dtype.INT4])
def test_scales_that_travel_are_counted_as_in_the_planner(kv: Dtype) -> None:
    """But one per-tensor FP8 scale a layer, which stays where it is."""
    model = CATALOG.model("Qwen3-32B")
    state = KVState.of(model, precision(kv), Parallelism())
    stays = 64 * 2 * 4.0 if kv is Dtype.FP8 else 0.0
    assert state.held_bytes(1000) == float(wire_bytes(model, 1000, kv)) - stays


def test_nvfp4_has_a_byte_a_group_and_a_float_a_tensor() -> None:
    state = KVState.of(CATALOG.model("Qwen3-32B"), precision(Dtype.FP4), Parallelism())
    elements = 64 * 8 * 256 * 100
    assert state.held_bytes(100) == elements / 2 + elements / 16 + 64 * 2 * 4


def test_a_block_is_what_a_connector_registers() -> None:
    state = KVState.of(CATALOG.model("Qwen3-32B"), precision(Dtype.BF16), Parallelism(2))
    assert state.block_bytes(state.layers[0]) == 16 * 4 * 128 * 2
    latent = KVState.of(CATALOG.model("DeepSeek-V3"), precision(Dtype.BF16), Parallelism(8))
    assert latent.block_bytes(latent.layers[0]) == 16 * 576 * 2


def test_a_designs_worker_is_described() -> None:
    worker = Worker(
        CATALOG.model("gpt-oss-120b"), CATALOG.accelerator("H100"), precision(Dtype.FP8), Parallelism(2, dp=2),
        residency=TierKind.DRAM,
    )  # fmt: skip
    state = describe_worker(worker, block_tokens=64, layout="NHD")
    assert [(each.kind, each.count, each.window) for each in state.layers] == [
        (LayerKind.SLIDING, 18, 128),
        (LayerKind.FULL, 18, 0),
    ]
    assert (state.shard, state.holding.tier) == (Shard(tp=2, dp=2), TierKind.DRAM)
    assert (state.storage, str(state.format)) == (Storage(64, Layout.LBNHC), "e4m3fn (scale 1)")


def test_every_element_has_usual_scales() -> None:
    for element in Element:
        assert Format(element, usual_scaling(element)).element is element


def test_a_wire_format_is_a_sides_own_or_one_whose_scales_travel() -> None:
    made = Format(Element.E4M3FN, Scaling(ScaleSource.CHECKPOINT, ScaleGranularity.TENSOR, "a"))
    assert wire_format(Dtype.FP8, made, BF16) is made
    assert wire_format(Dtype.BF16, made, BF16) is BF16
    crossing = wire_format(Dtype.INT4, made, BF16).scaling
    assert (crossing.source, crossing.granularity, crossing.group) == (ScaleSource.INLINE, ScaleGranularity.GROUP, 64)
    assert wire_format(Dtype.FP8, BF16, BF16).scaling.source is ScaleSource.INLINE


def test_describing_kv_needs_no_arrays() -> None:
    """A gateway may read descriptions without numpy or torch."""
    code = "import sys, diptych.boundary.serial as s; print(sorted({'numpy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
