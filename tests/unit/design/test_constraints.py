"""Each rule on a design that keeps it and one that breaks it; the sentence names what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.memory import TierKind
from diptych.catalog.offer import Offer
from diptych.design import constraints
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Boundary, Codec, Overlap, Ownership, Placement, Representation, Side
from diptych.design.constraints import pair_violations, violations, worker_violations
from diptych.design.design import Design, Member, Pool
from diptych.design.ruling import Pair, Quality, Setting
from diptych.planner.enumerate import memory_of

CATALOG = Catalog.load()
SETTING = Setting(4096, memory_of)
BF16 = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16)
FP8 = Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8)


def worker(name: str = "H100", precision: Precision = BF16, model: str = "Llama-3.1-8B", **shape: int) -> Worker:
    return Worker(CATALOG.model(model), CATALOG.accelerator(name), precision, Parallelism(**shape))


def boundary(link: str = "rdma-400g", codec: Codec = Codec.RAW, wire: Dtype = Dtype.BF16, side: Side | None = None,
             place: Placement = Placement.DISAGGREGATED, owner: Ownership = Ownership.PULL,
             overlap: Overlap = Overlap.SERIAL) -> Boundary:  # fmt: skip
    return Boundary(place, CATALOG.link(link), Representation(codec, wire, side), owner, overlap)


def offer(
    name: str = "H100-SXM-80GB", provider: str = "Nebius", region: str = "eu", nic: float = 50e9, gpus: int = 8
) -> Offer:
    return Offer(name, provider, "x", gpus, 10.0, region, nic_bandwidth=nic)


def broken(item: Worker | Pair, setting: Setting = SETTING) -> set[str]:
    if isinstance(item, Worker):
        return {v.rule for v in worker_violations(item, setting)}
    return {v.rule for v in pair_violations(item, setting)}


def pair(
    prefill: Worker | None = None, decode: Worker | None = None, at: Boundary | None = None, offers=(None, None)
) -> Pair:
    return Pair(prefill or worker(), decode or worker(), at or boundary(), *offers)


def test_a_sound_worker_and_pair_break_nothing() -> None:
    assert broken(worker()) == set()
    assert broken(pair()) == set()


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        ("engine_serves_accelerator", worker("Groq-LPU-v1")),
        ("sixteen_bits_are_one_choice", worker(precision=Precision(Dtype.FP16, Dtype.FP16, Dtype.FP16))),
        ("activations_are_multiplied", worker("A100-80", FP8)),
        ("weights_not_wider", worker(precision=Precision(Dtype.BF16, Dtype.FP8, Dtype.BF16))),
        ("engine_executes_precision", worker("MI300X", FP8)),  # its FP8 KV is e4m3fnuz
        ("quality_is_kept", worker(precision=Precision(Dtype.INT4, Dtype.BF16, Dtype.BF16))),
        ("tp_stays_in_scaleup", worker(tp=16)),
        ("tp_divides_heads", worker(model="Qwen2.5-7B", tp=8)),
        ("stages_hold_layers", worker(pp=64)),
        ("expert_parallelism_needs_experts", worker(dp=2)),
        ("expert_ranks_are_the_workers", worker(model="Mixtral-8x7B", tp=4, ep=2)),
        ("no_larger_than_needed", worker(tp=8, pp=2)),
        ("weights_fit", worker(model="Llama-3.1-405B", tp=1)),
    ],
)
def test_worker_rules(rule: str, bad: Worker) -> None:
    assert rule in broken(bad)


def test_fp8_on_ampere_is_weight_only() -> None:
    assert "engine_executes_precision" not in broken(worker("A100-80", Precision(Dtype.FP8, Dtype.BF16, Dtype.BF16)))


def test_b300_has_no_int8_engine_although_the_sheet_multiplies_it() -> None:
    int8 = Precision(Dtype.INT8, Dtype.INT8, Dtype.BF16)
    assert "engine_executes_precision" in broken(worker("B300", int8))
    assert "engine_executes_precision" not in broken(worker("H100", int8))


def test_memory_rules_say_how_much_is_short() -> None:
    details = [v.detail for v in worker_violations(worker("L4", model="Llama-3.1-70B"), SETTING)]
    assert any("short by" in detail and "GB" in detail for detail in details)
    long = replace(SETTING, max_context=131072)
    (violation,) = worker_violations(worker("H100", FP8, "Llama-3.1-70B", tp=1), long)
    assert violation.rule == "longest_request_fits"


def test_quality_any_allows_four_bits() -> None:
    narrow = worker(precision=Precision(Dtype.INT4, Dtype.BF16, Dtype.BF16))
    assert broken(narrow, replace(SETTING, quality=Quality.ANY)) == set()


def test_models_published_in_four_bits_keep_their_quality() -> None:
    native = worker("B200", Precision(Dtype.FP4, Dtype.FP4, Dtype.BF16), "gpt-oss-120b")
    assert "quality_is_kept" not in broken(native)


@pytest.mark.parametrize(
    ("model", "weights", "quality", "kept"),
    [
        (
            "gpt-oss-120b",
            Dtype.INT4,
            Quality.EIGHT_BIT,
            False,
        ),  # published in MXFP4: another four bits are another model
        ("gpt-oss-120b", Dtype.INT4, Quality.ANY, True),
        ("gpt-oss-120b", Dtype.FP8, Quality.NATIVE, True),
        ("DeepSeek-V3", Dtype.INT8, Quality.NATIVE, False),  # published in FP8
        ("DeepSeek-V3", Dtype.INT8, Quality.EIGHT_BIT, True),
        ("DeepSeek-V3", Dtype.FP8, Quality.NATIVE, True),
        ("Llama-3.1-8B", Dtype.FP16, Quality.NATIVE, True),  # published in BF16
        ("Llama-3.1-8B", Dtype.FP8, Quality.NATIVE, False),
    ],
)
def test_as_published_means_the_format_and_not_its_width(
    model: str, weights: Dtype, quality: Quality, kept: bool
) -> None:
    mine = worker("H100", Precision(weights, Dtype.BF16, Dtype.BF16), model)
    assert ("quality_is_kept" not in broken(mine, replace(SETTING, quality=quality))) is kept


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        ("another_server_excludes_scaleup", pair(at=boundary("nvlink4"))),
        ("one_server_uses_its_own_link", pair(at=boundary(place=Placement.SAME_NODE))),
        ("one_server_holds_one_accelerator", pair(decode=worker("H200"), at=boundary("nvlink4", place=Placement.SAME_NODE))),
        ("scaleup_must_exist", pair(at=boundary("nvlink5", place=Placement.SAME_NODE))),
        ("pools_share_a_network", pair(offers=(offer(), offer(provider="Crusoe")))),
        ("pools_share_a_network", pair(offers=(offer(), offer(region="us")))),
        ("rdma_needs_rdma_nics", pair(offers=(offer(nic=1e9, gpus=1), offer()))),
        ("hosts_carry_their_traffic", pair(worker("TPU-v6e"), worker("TPU-v6e"))),
        ("clouds_have_their_own_rdma", pair(at=boundary("efa"), offers=(offer(), offer()))),
        ("one_stack_is_chosen_by_name", pair(at=boundary("ib-400g-mooncake"))),
        ("vendors_meet_in_host_memory", pair(decode=worker("MI300X"))),
        ("nobody_compresses_kv", pair(at=boundary(codec=Codec.COMPRESSED))),
        ("wire_keeps_eight_bits", pair(at=boundary(codec=Codec.QUANTISED, wire=Dtype.INT4, side=Side.PREFILL))),
        ("wire_format_is_known", pair(at=boundary(codec=Codec.QUANTISED, wire=Dtype.INT8, side=Side.PREFILL))),
        ("raw_needs_one_format", pair(decode=worker(precision=FP8))),
        ("raw_needs_no_converter", pair(at=boundary(side=Side.DECODE))),
        ("converting_something", pair(at=boundary(codec=Codec.CAST, side=Side.DECODE))),
        ("quantised_is_narrower", pair(at=boundary(codec=Codec.CAST, wire=Dtype.FP8, side=Side.PREFILL))),
        ("converter_is_where_formats_meet", pair(at=boundary(codec=Codec.QUANTISED, wire=Dtype.FP8, side=Side.DECODE))),
        ("same_model_and_tokenizer", pair(decode=worker(model="Qwen3-8B"))),
        ("pull_needs_unreplicated_source", pair(prefill=worker("GB200", tp=16), decode=worker("GB200", tp=8))),
        ("push_needs_unreplicated_target", pair(prefill=worker("GB200", tp=8), decode=worker("GB200", tp=16),
                                                at=boundary(owner=Ownership.PUSH))),
        ("pull_starts_after_prefill", pair(at=boundary(overlap=Overlap.LAYERWISE))),
    ],
)  # fmt: skip
def test_boundary_rules(rule: str, bad: Pair) -> None:
    assert rule in broken(bad)


def test_fp8_means_twice_as_much_in_e4m3fn() -> None:
    fnuz = worker("MI300X", Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8_FNUZ))
    bad = pair(worker(precision=FP8), fnuz, boundary("tcp-100g", wire=Dtype.FP8))
    (violation,) = [v for v in pair_violations(bad, SETTING) if v.rule == "raw_needs_one_format"]
    assert "twice" in violation.detail


def test_a_mismatch_is_covered_by_a_charged_conversion() -> None:
    converted = boundary(codec=Codec.CAST, wire=Dtype.FP8, side=Side.DECODE)
    assert broken(pair(worker(precision=FP8), worker(), converted)) == set()
    assert broken(pair(worker(precision=FP8), worker(), converted), replace(SETTING, stock_only=True)) == {
        "stock_engines_do_not_convert"
    }


def test_a_given_link_is_believed() -> None:
    given = replace(SETTING, link_is_given=True)
    far = pair(at=boundary("ib-400g-mooncake"), offers=(offer(), offer(provider="Crusoe")))
    assert broken(far, given) == set()


def test_decode_holds_live_kv_in_hbm() -> None:
    cold = replace(worker(), residency=TierKind.DRAM)
    pools = (Pool(Role.PREFILL, (Member(cold, 1),)), Pool(Role.DECODE, (Member(cold, 1),)))
    rules = [v.rule for v in violations(Design(pools, boundary()), SETTING)]
    assert rules == ["live_kv_is_in_hbm"]


def test_every_rule_speaks_one_sentence() -> None:
    for rule in (
        *constraints.WORKER_RULES,
        *constraints.BOUNDARY_RULES,
        *constraints.RESIDENCY_RULES,
        *constraints.OFFER_RULES,
    ):
        text = constraints.sentence(rule)
        assert text[0].isupper() or text.startswith("bf16")
        assert 20 < len(text) < 140, rule.__name__
        assert "\n" not in text


def test_a_group_needs_its_server() -> None:
    one, eight = offer(gpus=1), offer(gpus=8)
    spread = worker(model="Mixtral-8x7B", dp=8, ep=8)
    assert constraints.server_holds_the_group(worker(tp=2), one) is not None
    assert constraints.server_holds_the_group(spread, one) is not None
    assert constraints.server_holds_the_group(spread, eight) is None
    assert constraints.server_holds_the_group(worker(model="DeepSeek-V3", dp=16, ep=16), eight) is None
    assert constraints.server_holds_the_group(worker("GB200", tp=16), offer("GB200", gpus=4)) is None
