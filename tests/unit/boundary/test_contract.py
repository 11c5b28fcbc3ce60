"""The contract's verdicts one by one: the gate, the plans, their sides, and what is refused with which reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diptych.boundary.contract import Contract, Policy, Verdict, contract
from diptych.boundary.conversion import Loss, Op
from diptych.boundary.descriptor import Holding, KVState, Layout, Shard, Storage
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format
from diptych.boundary.identity import Identity, Position, PositionKind, TokenRange
from diptych.boundary.layers import LayerKind, Layers
from diptych.boundary.serial import digest
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.design.axes import Parallelism, Precision
from diptych.design.boundary import Side
from diptych.errors import InvalidInput
from diptych.perf.transfer import wire_bytes

CATALOG = Catalog.load()
KNOWN = Identity("m", "r1", "w1", "", "t1", Position(PositionKind.ROPE, 1e6, "", True))
BF16, FP16 = Format(Element.BF16), Format(Element.FP16)
FN, FNUZ = (Format(element, Scaling(ScaleSource.UNIT)) for element in (Element.E4M3FN, Element.E4M3FNUZ))
INT4 = Format(Element.INT4, Scaling(ScaleSource.INLINE, ScaleGranularity.GROUP, group=64))
NVFP4 = Format(Element.NVFP4, Scaling(ScaleSource.INLINE, ScaleGranularity.GROUP, group=16))
DYNAMIC = Format(Element.E4M3FN, Scaling(ScaleSource.DYNAMIC, ScaleGranularity.TENSOR))
BASE = KVState(
    KNOWN,
    (Layers(LayerKind.FULL, 4, kv_heads=8, head_dim=128, v_head_dim=128),),
    BF16,
    Storage(16, Layout.LBHNC),
    Shard(tp=2),
)


def checkpoint(digest: str) -> Format:
    return Format(Element.E4M3FN, Scaling(ScaleSource.CHECKPOINT, ScaleGranularity.TENSOR, digest))


def identified(**changes: Any) -> KVState:
    return replace(BASE, identity=replace(KNOWN, **changes))


def stored(form: Format, **changes: Any) -> KVState:
    return replace(BASE, format=form, storage=replace(BASE.storage, **changes))


def steps(found: Contract) -> list[str]:
    return [f"{step.op} at {step.side}" for step in found.plan if step.op is not Op.TRANSFER]


OTHERS = [
    ({"model": "n"}, Verdict.REJECT),
    ({"revision": "r2"}, Verdict.REJECT),
    ({"weights": "w2"}, Verdict.REJECT),
    ({"tokenizer": "t2"}, Verdict.REJECT),
    ({"adapter": "lora"}, Verdict.REROUTE),
    ({"position": replace(KNOWN.position, theta=5e5)}, Verdict.REJECT),
    ({"position": replace(KNOWN.position, scaling="yarn factor=4")}, Verdict.REJECT),
    ({"position": replace(KNOWN.position, keys_rotated=False)}, Verdict.REJECT),
    ({"position": Position(PositionKind.ALIBI)}, Verdict.REJECT),
]


@pytest.mark.parametrize(("change", "verdict"), OTHERS, ids=lambda value: str(value)[:60])
def test_another_identity_is_never_transformed(change: dict[str, Any], verdict: Verdict) -> None:
    for found in (contract(BASE, identified(**change)), contract(identified(**change), BASE)):
        assert (found.verdict, found.plan, found.is_usable) == (verdict, (), False)
        assert found.reasons[0].where.startswith(f"identity.{next(iter(change))}")


def test_the_hardest_answer_holds_and_all_reasons_are_told() -> None:
    found = contract(BASE, identified(adapter="lora", revision="r2"))
    assert found.verdict is Verdict.REJECT
    assert [reason.where for reason in found.reasons] == ["identity.revision", "identity.adapter"]
    gentle = Policy(identity=Verdict.RECOMPUTE)
    assert contract(BASE, identified(revision="r2"), policy=gentle).verdict is Verdict.RECOMPUTE


def test_a_policy_cannot_let_a_mismatch_pass() -> None:
    with pytest.raises(InvalidInput, match=r"policy.identity: is consume; expected recompute, reroute or reject"):
        Policy(identity=Verdict.CONSUME)


UNSAID = [
    ("revision", {"revision": None}),
    ("weights", {"weights": None}),
    ("adapter", {"adapter": None}),
    ("tokenizer", {"tokenizer": None}),
    ("position.kind", {"position": Position()}),
    ("position.theta", {"position": replace(KNOWN.position, theta=None)}),
    ("position.keys_rotated", {"position": replace(KNOWN.position, keys_rotated=None)}),
    ("tokens", {"tokens": TokenRange(0, 8)}),
]


@pytest.mark.parametrize(("where", "change"), UNSAID, ids=[where for where, _ in UNSAID])
def test_what_one_side_does_not_say_is_told(where: str, change: dict[str, Any]) -> None:
    found = contract(BASE, identified(**change))
    assert found.verdict is Verdict.CONSUME
    assert f"identity.{where}" in [each.where for each in found.unverified]
    assert not contract(BASE, BASE).unverified


@pytest.mark.parametrize(
    ("made", "wanted", "verdict"),
    [
        ((0, 128), (0, 128), Verdict.CONSUME),
        ((0, 128), (64, 128), Verdict.CONSUME),
        ((64, 128), (0, 128), Verdict.RECOMPUTE),
        ((0, 127), (0, 128), Verdict.RECOMPUTE),
    ],
)
def test_what_was_made_must_cover_what_is_wanted(
    made: tuple[int, int], wanted: tuple[int, int], verdict: Verdict
) -> None:
    found = contract(identified(tokens=TokenRange(*made)), identified(tokens=TokenRange(*wanted)))
    assert found.verdict is verdict


def test_blocks_are_compared_where_they_cover_the_same_tokens() -> None:
    made = identified(tokens=TokenRange(0, 64), blocks=("a", "b", "c", "d"))
    same = identified(tokens=TokenRange(32, 64), blocks=("c", "d"))
    other = identified(tokens=TokenRange(32, 64), blocks=("c", "x"))
    assert contract(made, same).verdict is Verdict.CONSUME
    found = contract(made, other)
    assert (found.verdict, found.reasons[0].where) == (Verdict.RECOMPUTE, "identity.blocks[1]")
    wider = replace(same, storage=replace(same.storage, block_tokens=32))
    assert [each.where for each in contract(made, wider).unverified] == ["identity.blocks"]


PLANS: list[tuple[str, KVState, KVState, dict[str, Any], Verdict, list[str], Loss]] = [
    ("equal", BASE, BASE, {}, Verdict.CONSUME, [], Loss.EXACT),
    ("narrower goes at prefill", BASE, stored(FN), {}, Verdict.CONVERT, ["quantise at prefill"], Loss.LOSSY),
    ("wider comes at decode", stored(FN), BASE, {}, Verdict.CONVERT, ["dequantise at decode"], Loss.EXACT),
    ("the side that was chosen", BASE, stored(FN), {"at": Side.DECODE}, Verdict.CONVERT, ["quantise at decode"], Loss.LOSSY),
    ("staged", stored(FN), BASE, {"at": Side.TRANSFER}, Verdict.CONVERT, ["dequantise at transfer"], Loss.EXACT),
    (
        "few bytes are rearranged first", stored(FN), stored(BF16, block_tokens=64, layout=Layout.LBNHC), {}, Verdict.BOTH,
        ["regroup blocks at decode", "permute layout at decode", "dequantise at decode"], Loss.EXACT,
    ),
    (
        "and last", BASE, stored(FN, block_tokens=64), {"at": Side.PREFILL}, Verdict.BOTH,
        ["quantise at prefill", "regroup blocks at prefill"], Loss.LOSSY,
    ),
    (
        "through a narrow wire", BASE, BASE, {"wire": INT4}, Verdict.CONVERT,
        ["quantise at prefill", "dequantise at decode"], Loss.BOUNDED,
    ),
    (
        "through a staged wire", BASE, stored(FP16), {"wire": INT4, "at": Side.TRANSFER}, Verdict.CONVERT,
        ["quantise at transfer", "dequantise at transfer"], Loss.LOSSY,
    ),
    ("as it is on a wire of its own", BASE, BASE, {"wire": BF16}, Verdict.CONSUME, [], Loss.EXACT),
    ("pages apart", BASE, stored(BF16, page_stride=1 << 20), {}, Verdict.REDISTRIBUTE, ["repage at decode"], Loss.EXACT),
    (
        "other ranks", BASE, replace(BASE, shard=Shard(tp=4, pp=2)), {}, Verdict.REDISTRIBUTE,
        ["reshard heads and layers at transfer"], Loss.EXACT,
    ),
    ("replicas of attention", BASE, replace(BASE, shard=Shard(tp=2, dp=8)), {}, Verdict.CONSUME, [], Loss.EXACT),
    ("another tier", BASE, replace(BASE, holding=Holding(TierKind.DRAM, "d0", 3)), {}, Verdict.CONSUME, [], Loss.EXACT),
    ("the same checkpoint", stored(checkpoint("a")), stored(checkpoint("a")), {}, Verdict.CONSUME, [], Loss.EXACT),
    (
        "scales that both were given", stored(checkpoint("a")), stored(checkpoint("b")), {"have": ("a",)}, Verdict.CONVERT,
        ["rescale at decode"], Loss.LOSSY,
    ),
    ("to the checkpoint of decode", BASE, stored(checkpoint("b")), {}, Verdict.CONVERT, ["quantise at decode"], Loss.LOSSY),
    ("from that of prefill", stored(checkpoint("a")), BASE, {}, Verdict.CONVERT, ["dequantise at prefill"], Loss.BOUNDED),
    ("dynamic scales where they are", stored(DYNAMIC), BASE, {}, Verdict.CONVERT, ["dequantise at prefill"], Loss.BOUNDED),
    ("and where they will be", BASE, stored(DYNAMIC), {}, Verdict.CONVERT, ["quantise at decode"], Loss.BOUNDED),
    (
        "dynamic scales through 16 bit", stored(DYNAMIC), stored(DYNAMIC), {"wire": BF16}, Verdict.CONVERT,
        ["dequantise at prefill", "quantise at decode"], Loss.BOUNDED,
    ),
    ("fnuz to fn, scale one", stored(FNUZ), stored(FN), {}, Verdict.CONVERT, ["rescale at decode"], Loss.BOUNDED),
    ("fn to fnuz, scale one", stored(FN), stored(FNUZ), {}, Verdict.CONVERT, ["rescale at decode"], Loss.LOSSY),
    ("nvfp4 in place", stored(NVFP4), BASE, {}, Verdict.CONVERT, ["dequantise at decode"], Loss.BOUNDED),
    (
        "unknown layouts, element by element", stored(BF16, layout=Layout.UNKNOWN), stored(FP16, layout=Layout.UNKNOWN), {},
        Verdict.CONVERT, ["cast at decode"], Loss.LOSSY,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("produced", "consumed", "given", "verdict", "plan", "loss"),
    [case[1:] for case in PLANS],
    ids=[case[0] for case in PLANS],
)
def test_a_difference_of_representation_has_a_plan(
    produced: KVState, consumed: KVState, given: dict[str, Any], verdict: Verdict, plan: list[str], loss: Loss
) -> None:
    found = contract(produced, consumed, **given)
    assert (found.verdict, steps(found), found.loss) == (verdict, plan, loss), str(found)


STATE = Layers(LayerKind.STATE, 2, state_elements=4096.0)
HYBRID = replace(BASE, layers=(*BASE.layers, STATE))
REFUSED: list[tuple[str, KVState, KVState, dict[str, Any], str]] = [
    ("dynamic scales stay", stored(DYNAMIC), stored(DYNAMIC), {}, "dynamic scales stay with the producer"),
    ("they are not at decode", stored(DYNAMIC), BASE, {"at": Side.DECODE}, "the decode side does not have the scales"),
    ("nor at prefill", BASE, stored(DYNAMIC), {"at": Side.PREFILL}, "the prefill side does not have the scales"),
    ("two checkpoints", stored(checkpoint("a")), stored(checkpoint("b")), {}, "needs both sets of scales"),
    ("a wire with scales of nobody", BASE, BASE, {"wire": checkpoint("z")}, "scales that the prefill side lacks"),
    ("a wire that decode cannot read", stored(checkpoint("a")), BASE, {"wire": checkpoint("a")}, "the decode side lacks"),
    ("nvfp4 over other ranks", stored(NVFP4), replace(stored(NVFP4), shard=Shard(tp=4)), {}, "order of its kernel's blocks"),
    ("nvfp4 in other blocks", BASE, stored(NVFP4, block_tokens=32), {}, "in the order of its kernel's blocks"),
    ("another packing", stored(BF16, packing="aiter"), BASE, {}, "only the kernel that packs a block"),
    ("packed and cast", stored(BF16, packing="aiter"), stored(FP16, packing="aiter"), {}, "passed on as they are"),
    ("packed through a wire", *2 * (stored(BF16, packing="aiter"),), {"wire": INT4}, "passed on as they are"),
    ("one layout unknown", stored(BF16, layout=Layout.UNKNOWN), BASE, {}, "unknown layout"),
    ("unknown and regrouped", *(stored(BF16, layout=Layout.UNKNOWN, block_tokens=n) for n in (16, 32)), {}, "unknown layout"),
    ("unknown and scaled by group", *(stored(f, layout=Layout.UNKNOWN) for f in (INT4, BF16)), {}, "unknown layout"),
    ("context parallel", BASE, replace(BASE, shard=Shard(tp=2, cp=2)), {}, "context-parallel"),
    ("state over other ranks", HYBRID, replace(HYBRID, shard=Shard(tp=4)), {}, "linear-attention layers is not described"),
    (
        "state in another format", HYBRID,
        replace(HYBRID, layers=(*BASE.layers, replace(STATE, state_format=Element.BF16))), {}, "no step casts the state",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("produced", "consumed", "given", "why"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_no_step_makes_right_is_refused_with_its_reason(
    produced: KVState, consumed: KVState, given: dict[str, Any], why: str
) -> None:
    found = contract(produced, consumed, **given)
    assert (found.verdict, found.plan) == (Verdict.REJECT, ())
    assert any(why in reason.why for reason in found.reasons), str(found)
    assert (
        contract(produced, consumed, **given, policy=Policy(untransformable=Verdict.RECOMPUTE)).verdict
        is Verdict.RECOMPUTE
    )


def test_other_shapes_and_orders_of_layers_are_another_model() -> None:
    one = Layers(LayerKind.SLIDING, 1, kv_heads=8, head_dim=64, v_head_dim=64, window=128, index=(0,))
    two = Layers(LayerKind.FULL, 1, kv_heads=8, head_dim=64, v_head_dim=64, index=(1,))
    state = replace(BASE, layers=(one, two))
    swapped = replace(state, layers=(replace(one, index=(1,)), replace(two, index=(0,))))
    unordered = replace(state, layers=(replace(one, index=()), replace(two, index=())))
    assert contract(state, replace(state, layers=(two, one))).verdict is Verdict.CONSUME
    assert contract(state, swapped).reasons[0].where == "layers.index"
    assert [each.where for each in contract(state, unordered).unverified] == ["layers.index"]
    assert not contract(unordered, unordered).unverified  # the model's, whose identity was compared
    fewer = contract(state, replace(state, layers=(one,))).reasons[0]
    assert (fewer.where, fewer.consumed) == ("layers", "1 sliding of 8 heads of 64 + 64, 128 tokens kept")


@pytest.mark.parametrize(
    ("produced", "consumed", "why"),
    [
        (Shard(tp=4, tp_rank=0), Shard(tp=4, tp_rank=0), ""),
        (Shard(tp=4, tp_rank=0), Shard(tp=4, tp_rank=1), "the ranks have no head in common"),
        (Shard(tp=2, tp_rank=0), Shard(tp=4, tp_rank=1), ""),
        (Shard(tp=2, tp_rank=0), Shard(tp=4, tp_rank=2), "the ranks have no head in common"),
        (Shard(tp=2, tp_rank=1), Shard(tp=8, tp_rank=1), "the ranks have no head in common"),
        (Shard(tp=16, tp_rank=0), Shard(tp=16, tp_rank=1), ""),
        (Shard(pp=2, pp_rank=0), Shard(pp=2, pp_rank=1), "the ranks have no layer in common"),
        (Shard(pp=2, pp_rank=1), Shard(pp=4, pp_rank=3), ""),
        (Shard(pp=2, pp_rank=1, stage_layers=(1, 3)), Shard(pp=4, pp_rank=1), ""),
        (Shard(dp=2, dp_rank=0), Shard(dp=2, dp_rank=1), ""),
    ],
)
def test_ranks_hand_over_what_both_hold(produced: Shard, consumed: Shard, why: str) -> None:
    found = contract(replace(BASE, shard=produced), replace(BASE, shard=consumed))
    assert [reason.why for reason in found.reasons] == ([why] if why else [])


LATENT = replace(BASE, layers=(Layers(LayerKind.LATENT, 4, latent_rank=512, rope_dim=64),))


@pytest.mark.parametrize("layout", [Layout.LBNHC, Layout.UNKNOWN])
def test_other_ranks_read_a_latent_as_it_is(layout: Layout) -> None:
    state = replace(LATENT, storage=Storage(64, layout))
    found = contract(state, replace(state, shard=Shard(tp=8)))
    assert (found.verdict, found.wire_bytes(100)) == (Verdict.CONSUME, 8 * state.cache_bytes(100, once=True))


def test_layouts_that_differ_in_the_place_of_one_head_are_one() -> None:
    """A latent, or a rank of one head: HND and NHD are the same bytes."""
    for state in (LATENT, replace(BASE, shard=Shard(tp=8)), replace(BASE, shard=Shard(tp=16))):
        other = replace(state, storage=Storage(16, Layout.of("NHD")))
        found = contract(state, other)
        assert (found.verdict, found.plan[-1].after.storage) == (Verdict.CONSUME, other.storage)
        assert digest(state) == digest(other)
        assert contract(state, replace(state, storage=Storage(16, Layout.BLNHC))).verdict is Verdict.REDISTRIBUTE
    assert digest(BASE) != digest(stored(BF16, layout=Layout.LBNHC))


@pytest.mark.parametrize(
    ("made", "wanted", "tp", "pieces"),
    [
        ("HND", "NHD", (8, 2), 16),  # single heads are woven into tokens
        ("NHD", "HND", (8, 2), 1),
        ("NHD", "HND", (2, 8), 16),
        ("HND", "NHD", (2, 8), 1),
    ],
)
def test_single_heads_are_placed_as_they_cross(made: str, wanted: str, tp: tuple[int, int], pieces: int) -> None:
    produced, consumed = (
        replace(BASE, storage=Storage(16, Layout.of(name)), shard=Shard(tp=size))
        for name, size in zip((made, wanted), tp, strict=True)
    )
    found = contract(produced, consumed)
    assert (steps(found), found.pieces_per_block) == (["reshard heads and layers at transfer"], pieces)


def test_a_latent_is_whole_on_every_rank() -> None:
    latent = LATENT
    sides = (replace(latent, shard=Shard(tp=4, tp_rank=rank)) for rank in (0, 3))
    assert contract(*sides).verdict is Verdict.CONSUME


def test_a_rank_beside_a_whole_worker_is_told() -> None:
    found = contract(replace(BASE, shard=Shard(tp=2, tp_rank=0)), BASE)
    assert [each.where for each in found.unverified] == ["shard.tp_rank"]


def test_two_unknown_layouts_are_passed_on_aloud() -> None:
    """Also where two ways to write one format meet: unit scales with and without a granularity, one digest and none."""
    spelled = Format(Element.E4M3FN, Scaling(ScaleSource.UNIT, ScaleGranularity.TENSOR))
    for packing in ("", "vllm-cpu"):
        for one, other in ((BF16, BF16), (FN, spelled), (checkpoint("a"), checkpoint(""))):
            sides = (stored(form, layout=Layout.UNKNOWN, packing=packing) for form in (one, other))
            found = contract(*sides)
            assert found.verdict is Verdict.CONSUME, str(found)
            assert "storage.layout" in [each.where for each in found.unverified]


def test_unknown_scales_of_a_checkpoint_are_taken_on_trust_aloud() -> None:
    for pair in ((checkpoint(""), checkpoint("")), (checkpoint("a"), checkpoint(""))):
        found = contract(*map(stored, pair))
        assert found.verdict is Verdict.CONSUME
        assert [each.where for each in found.unverified] == ["format.scaling.digest"]


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-120b", "Qwen3-235B-A22B", "DeepSeek-V4-Pro"])
@pytest.mark.parametrize("tp", [(1, 1), (2, 8), (16, 4), (1, 32)])
def test_wire_bytes_are_those_of_the_planner(name: str, tp: tuple[int, int]) -> None:
    model, precision = CATALOG.model(name), Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16)
    found = contract(*(KVState.of(model, precision, Parallelism(size)) for size in tp))
    expected = wire_bytes(model, 3000, Dtype.BF16, *tp, latent_copies=tp[1])
    assert found.wire_bytes(3000) == pytest.approx(float(expected))


def test_a_narrow_wire_halves_what_crosses() -> None:
    raw, narrow = contract(BASE, BASE), contract(BASE, BASE, wire=INT4)
    assert raw.wire_bytes(1000) == 1000 * 4 * 8 * 256 * 2
    assert narrow.wire_bytes(1000) == 1000 * 4 * 8 * 256 * (0.5 + 2 / 64)
    assert narrow.moved_bytes(1000, Side.PREFILL) == raw.wire_bytes(1000) + narrow.wire_bytes(1000)
    assert (raw.moved_bytes(1000, Side.PREFILL), raw.moved_bytes(1000, Side.DECODE)) == (0, 0)


@pytest.mark.parametrize(
    ("layout", "tp", "pieces"),
    [(Layout.LBHNC, 4, 1), (Layout.LBNHC, 4, 16), (Layout.LBNHC, 2, 1), (Layout.BLNHC, 1, 16), (Layout.LBNHC, 8, 16)],
)
def test_tokens_before_heads_cross_in_more_pieces(layout: Layout, tp: int, pieces: int) -> None:
    side = stored(BF16, layout=layout)
    assert contract(side, replace(side, shard=Shard(tp=tp))).pieces_per_block == pieces


def test_a_contract_reads_as_sentences() -> None:
    found = contract(BASE, replace(stored(FN, block_tokens=64), shard=Shard(tp=4)))
    assert str(found).splitlines() == [
        "redistribute and convert",
        "  quantise at prefill: bf16 → e4m3fn (scale 1), lossy (clips beyond 448; else relative 2^-4, absolute 0.000976562)",
        "  reshard heads and layers: tp 2 pp 1 → tp 4 pp 1, exact",
        "  transfer: hbm → hbm, exact",
        "  regroup blocks at decode: 16 tokens → 64 tokens, exact",
        "  storage.block_tokens: 16 → 64 (transformable): regroup blocks",
        "  shard.tp: 2 → 4 (transformable): reshard heads and layers",
        "  format: bf16 → e4m3fn (scale 1) (transformable): quantise",
    ]
