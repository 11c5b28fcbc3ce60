"""Plans on the shipped catalog: the whole answer, and the ten ways a planner of this kind went wrong elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from diptych.catalog.accelerator import Accelerator
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.offer import Offer, PriceBook
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.boundary import Boundary, Codec, Placement, Representation
from diptych.errors import NoFeasibleDesign
from diptych.metrics.slo import SLO
from diptych.perf.estimate import Basis
from diptych.perf.roofline import Roofline
from diptych.perf.transfer import path
from diptych.planner.enumerate import Candidate
from diptych.planner.meeting import Meeting
from diptych.planner.pins import Pins
from diptych.planner.plan import Answer, Plan
from diptych.planner.planning import plan
from diptych.planner.roles import leaning
from diptych.planner.rushes import Steps
from diptych.planner.stages import DecodeStage, Load, PrefillStage
from diptych.workload.lengths import Lengths
from diptych.workload.load import load_workload
from diptych.workload.workload import Arrivals, Workload

CATALOG, PERF = Catalog.load(), Roofline()
SLO_TEXT = "ttft_p90<2s, tpot_p90<50ms"
BF16 = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16)
FP8 = Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8)


def fixed(isl: float, osl: float, rate: float) -> Workload:
    return Workload("fixed", Lengths.fixed(isl, osl), Arrivals(rate), 1)


def book(*rows: tuple[str, int, float, float]) -> PriceBook:
    """(accelerator, GPUs per instance, USD per GPU hour, NIC bytes/s per GPU) at one place."""
    offers = tuple(
        Offer(CATALOG.accelerator(name).name, "here", f"{name}-x{gpus}", gpus, usd * gpus, "one", nic_bandwidth=nic)
        for name, gpus, usd, nic in rows
    )
    return PriceBook("test", "2026-01-01", offers)


@pytest.fixture(scope="module")
def conversation() -> Plan:
    return plan(
        "Llama-3.1-70B",
        load_workload("azure2023_conv.csv.gz"),
        SLO_TEXT,
        catalog=CATALOG,
        perf=PERF,
        prices="aws",
        rate=20.0,
    )


def test_the_plan_reads_back_as_itself(conversation: Plan) -> None:
    text = json.dumps(conversation.to_dict(), allow_nan=False)
    assert Plan.from_dict(json.loads(text)) == conversation


def test_the_best_keeps_the_slo_and_no_baseline_is_cheaper(conversation: Plan) -> None:
    best = conversation.best
    assert best.ttft.p90 <= 2.0
    assert best.tpot.p90 <= 0.05
    assert best.goodput >= best.rate
    for other in (conversation.colocated, conversation.disaggregated, conversation.heterogeneous):
        assert other is not None
        assert other.usd_per_hour >= best.usd_per_hour - 1e-9
        assert other.goodput >= other.rate * (1 - 1e-4)


def test_no_number_lies_below_its_physical_floor(conversation: Plan) -> None:
    for option in (conversation.best, conversation.colocated, conversation.disaggregated):
        assert option is not None
        assert option.tpot.p50 >= option.tpot.floor > 0
        assert option.ttft.p50 >= option.ttft.floor > 0
        assert option.ttft_decode.p90 >= option.ttft.p90
        assert option.e2e.p50 > option.ttft.p50


def test_the_bill_adds_up(conversation: Plan) -> None:
    best, workload = conversation.best, conversation.question.workload
    assert sum(pool.usd_per_hour for pool in best.pools) == pytest.approx(best.usd_per_hour)
    tokens = best.rate * 3600 / 1e6 * workload.osl_mean
    assert best.usd_per_mtok_output * tokens == pytest.approx(best.usd_per_hour)
    assert 1 / best.usd_per_mtok_total == pytest.approx(1 / best.usd_per_mtok_input + 1 / best.usd_per_mtok_output)


def test_the_space_adds_up_and_is_large(conversation: Plan) -> None:
    space = conversation.space
    assert space.cartesian == sum(rule.dropped for rule in space.rules) + space.effective
    assert space.effective == space.sized + sum(rule.dropped for rule in space.pruned)
    assert space.effective > 10_000_000
    assert all(rule.sentence for rule in (*space.rules, *space.pruned))


def test_savings_and_flips_say_from_what_to_what(conversation: Plan) -> None:
    assert {saving.against for saving in conversation.verdict.savings} <= {str(answer) for answer in Answer}
    assert {"bandwidth", "prompt length", "prefix hit rate", "rate"} <= {flip.axis for flip in conversation.sensitivity}
    for flip in conversation.sensitivity:
        assert flip.at is None or flip.before != flip.after
        assert flip.low <= (flip.at if flip.at is not None else flip.low) <= flip.high


def test_the_checklist_is_answered(conversation: Plan) -> None:
    questions = [item.question for item in conversation.checklist]
    assert len(questions) >= 10
    assert all(item.detail for item in conversation.checklist)


def test_a_price_flip_is_one(conversation: Plan) -> None:
    """Asked again on the far side of the nearest price, the answer is what the flip said."""
    flips = [f for f in conversation.sensitivity if f.axis.startswith("price:") and f.at is not None and f.at > f.now]
    flip = min(flips, key=lambda f: f.at / f.now)
    name, factor = flip.axis.partition(":")[2], flip.at / flip.now * 1.02
    book_ = CATALOG.book("nebius")
    dearer = replace(
        book_,
        offers=tuple(replace(o, usd_per_hour=o.usd_per_hour * factor) if o.accelerator == name else o for o in book_),
    )
    again = plan(
        "Llama-3.1-70B",
        load_workload("azure2023_conv.csv.gz"),
        SLO_TEXT,
        catalog=CATALOG,
        perf=PERF,
        prices=dearer,
        rate=20.0,
    )
    assert again.best.label != conversation.best.label


@pytest.fixture(scope="module")
def pair() -> Plan:
    """One accelerator in one format per role: prefill in FP8, decode in BF16."""
    pins = Pins(
        prefill="H100", decode="H200", prefill_precision="w=fp8 a=fp8 kv=fp8", decode_precision="w=bf16 a=bf16 kv=bf16"
    )
    return plan("Llama-3.1-8B", fixed(2000, 200, 10), SLO_TEXT, catalog=CATALOG, perf=PERF, rate=10.0, pins=pins,
                prices=book(("H100", 8, 3, 50e9), ("H200", 8, 4, 50e9)))  # fmt: skip


def test_a_kv_mismatch_is_converted_and_charged(pair: Plan) -> None:
    boundary = pair.best.boundary
    assert boundary is not None
    assert boundary.codec is not Codec.RAW
    assert boundary.conversion_p90 > 0
    assert "converts nothing" in boundary.engine_support
    assert pair.best.ttft_parts["conversion"] > 0


def test_the_transfer_is_inside_ttft(pair: Plan) -> None:
    assert pair.best.boundary is not None
    assert pair.best.boundary.exposed_p90 > 0
    assert pair.best.ttft_parts["transfer"] > 0
    assert pair.colocated is None or pair.colocated.boundary is None


def test_a_kv_mismatch_is_refused_with_stock_engines() -> None:
    pins = Pins(prefill="H100", decode="H200", engine="vllm", placement="disaggregated",
                prefill_precision="w=fp8 a=fp8 kv=fp8", decode_precision="w=bf16 a=bf16 kv=bf16")  # fmt: skip
    with pytest.raises(NoFeasibleDesign):
        plan("Llama-3.1-8B", fixed(2000, 200, 10), SLO_TEXT, catalog=CATALOG, perf=PERF, rate=10.0, pins=pins,
             prices=book(("H100", 8, 3, 50e9), ("H200", 8, 4, 50e9)))  # fmt: skip


def test_the_same_question_gives_the_same_bytes(pair: Plan) -> None:
    pins = Pins(
        prefill="H100", decode="H200", prefill_precision="w=fp8 a=fp8 kv=fp8", decode_precision="w=bf16 a=bf16 kv=bf16"
    )
    again = plan("Llama-3.1-8B", fixed(2000, 200, 10), SLO_TEXT, catalog=CATALOG, perf=Roofline(), rate=10.0, pins=pins,
                 prices=book(("H100", 8, 3, 50e9), ("H200", 8, 4, 50e9)))  # fmt: skip
    assert json.dumps(again.to_dict()) == json.dumps(pair.to_dict())


def test_a_slow_link_saturates() -> None:
    """Four TP2 prefill workers at 0.5 GB/s per rank carry at most 4e9/1.0486e9 = 3.81 prompts/s of 4,000 tokens (Qwen3-32B)."""
    load = Load(Lengths.fixed(4000, 500), SLO.parse("tpot_mean<1s"), Steps.steady(1.0))
    h200 = CATALOG.accelerator("H200")
    sides = [Worker(CATALOG.model("Qwen3-32B"), h200, BF16, Parallelism(tp=tp)) for tp in (2, 4)]
    slow = replace(CATALOG.link("tcp-10g"), bandwidth=0.5e9, alpha=0.0, efficiency=1.0, half_size=0.0, per_piece=0.0)
    offer = Offer(h200.name, "p", "i", 8, 1.0)
    meeting = Meeting(
        Candidate(sides[0], offer), Candidate(sides[1], offer), PrefillStage(PERF, sides[0], load),
        DecodeStage(PERF, sides[1], load),
        Boundary(Placement.DISAGGREGATED, slow, Representation(Codec.RAW, Dtype.BF16)), path(*sides, slow),
    )  # fmt: skip
    assert float(meeting.margins(3.80, 4.0, 30.0)["link"]) > 0
    assert float(meeting.margins(3.83, 4.0, 30.0)["link"]) < 0
    near, far = (float(meeting.delay(rate, 4.0, 30.0).quantile(0.9)) for rate in (3.0, 3.8))
    assert far > 2 * near


def test_no_expensive_accelerator_idles() -> None:
    """One H100 feeds many slow decode workers; a second would be idle."""
    pins = Pins(
        prefill="H100",
        decode="Arc-Pro-B60",
        prefill_parallelism="tp1",
        decode_parallelism="tp4",
        placement="disaggregated",
    )
    found = plan("Llama-3.1-8B", fixed(4000, 500, 6), "ttft_p90<3s, tpot_p90<60ms", catalog=CATALOG, perf=PERF, rate=6.0,
                 pins=pins, prices=book(("H100", 1, 3, 25e9), ("Arc-Pro-B60", 4, 0.3, 3.1e9)))  # fmt: skip
    prefill, decode = found.best.pools
    assert prefill.workers == 1
    assert decode.workers >= 2


def test_an_unmeasured_chip_is_planned_with_a_band() -> None:
    sheet = CATALOG.accelerator("H100")
    chip = Accelerator(
        "my-chip", "me", 96e9, 2.5e12, {Dtype.BF16: 4e14, Dtype.FP8: 8e14}, sheet.scaleup, 64e9, 25e9, 400.0
    )
    catalog = replace(CATALOG, accelerators={**CATALOG.accelerators, "my-chip": chip})
    offers = (Offer("my-chip", "me", "box", 8, 12.0, "lab", nic_bandwidth=25e9),)
    found = plan(
        "Llama-3.1-8B",
        fixed(1000, 200, 5),
        SLO_TEXT,
        catalog=catalog,
        perf=PERF,
        rate=5.0,
        prices=PriceBook("mine", "2026-01-01", offers),
    )
    assert found.best.ttft.trust.basis is Basis.ROOFLINE
    assert found.best.ttft.trust.band > 0.1
    assert any(item.status == "partly" for item in found.checklist if "measured on these" in item.question)


def test_an_l4_needs_53_ms_for_a_token_of_8b() -> None:
    """16.06 GB over 300 GB/s."""
    worker = Worker(CATALOG.model("Llama-3.1-8B"), CATALOG.accelerator("L4"), BF16, Parallelism())
    assert float(PERF.decode(worker, 1.0, 100.0).seconds) >= 0.0500


def roles(model: str, shapes: dict[str, tuple[Precision, int]]) -> dict[str, float]:
    """Prefill capacity over decode capacity of each accelerator at 2048/128; higher leans to prefill."""
    return {
        name: leaning(
            PERF,
            Worker(CATALOG.model(model), CATALOG.accelerator(name), form, Parallelism(tp), "trtllm"),
            Lengths.fixed(2048, 128),
        ).ratio
        for name, (form, tp) in shapes.items()
    }


def test_l40s_prefills_8b_for_a100() -> None:
    """Published output tok/s at 2048/128 over 128/2048 (TensorRT-LLM 0.15): L40S FP8 0.199, A100 0.151, H100 FP8 0.175.

    Against H100 FP8 the published 14 % are not reached: ours puts the two level.
    """
    ratio = roles("Llama-3.1-8B", {"L40S": (FP8, 1), "A100-SXM4-80GB": (BF16, 1), "H100": (FP8, 1)})
    assert ratio["L40S"] > 1.1 * ratio["A100-SXM4-80GB"]
    assert ratio["L40S"] == pytest.approx(ratio["H100"], rel=0.1)


def test_l40s_decodes_70b_for_a100_and_h100() -> None:
    """Published: L40S FP8 TP4 0.092, A100 TP4 0.120, H100 FP8 TP2 0.131: TP over PCIe costs prefill most."""
    ratio = roles("Llama-3.1-70B", {"L40S": (FP8, 4), "A100-SXM4-80GB": (BF16, 4), "H100": (FP8, 2)})
    assert ratio["L40S"] < 0.95 * ratio["A100-SXM4-80GB"]
    assert ratio["L40S"] < 0.8 * ratio["H100"]


def test_homogeneous_wins_where_one_part_is_best_at_both() -> None:
    found = plan("Llama-3.1-8B", fixed(1000, 200, 20), SLO_TEXT, catalog=CATALOG, perf=PERF, rate=20.0,
                 prices=book(("H100", 1, 2, 50e9), ("A100-80", 1, 3, 50e9)))  # fmt: skip
    assert found.verdict.answer is not Answer.HETEROGENEOUS
    assert {member.accelerator for pool in found.best.pools for member in pool.members} == {"H100-SXM-80GB"}


def test_pools_on_one_server_hand_over_inside_it() -> None:
    pins = Pins(placement="same-node")
    found = plan("Llama-3.1-8B", fixed(4000, 100, 10), SLO_TEXT, catalog=CATALOG, perf=PERF, rate=10.0, pins=pins,
                 prices=book(("H100", 8, 2, 1e9)))  # fmt: skip
    assert found.best.placement is Placement.SAME_NODE
    assert found.best.boundary is not None
    assert found.best.boundary.link == "nvlink4"
    prefill, decode = (found.best.pool(role) for role in (Role.PREFILL, Role.DECODE))
    assert prefill is not None and decode is not None  # noqa: PT018


def test_what_is_owned_is_used_in_mixed_pools() -> None:
    found = plan(
        "Llama-3.1-70B", fixed(2000, 200, 1), SLO_TEXT, catalog=CATALOG, perf=PERF, inventory={"A100-80": 4, "H100": 4}
    )
    best = found.best
    used = dict.fromkeys(("A100-SXM4-80GB", "H100-SXM-80GB"), 0)
    for pool in best.pools:
        for member in pool.members:
            used[member.accelerator] += member.accelerators
    assert max(used.values()) <= 4
    assert found.colocated is not None
    assert best.goodput >= found.colocated.goodput
    assert Plan.from_dict(found.to_dict()) == found


def test_short_prompts_stay_local_when_asked() -> None:
    pins = Pins(placement="conditional")
    lengths = Lengths(np.array([200.0, 6000.0]), np.array([150.0, 150.0]), np.zeros(2), np.array([0.6, 0.4]))
    workload = Workload("two lengths", lengths, Arrivals(10.0), 2)
    found = plan("Llama-3.1-8B", workload, SLO_TEXT, catalog=CATALOG, perf=PERF, rate=10.0, pins=pins,
                 prices=book(("H100", 8, 3, 50e9), ("A100-80", 8, 2, 25e9)))  # fmt: skip
    best = found.best
    assert best.placement is Placement.CONDITIONAL
    assert best.boundary is not None
    assert 200 < best.boundary.local_below <= 6000
    assert best.ttft.p90 <= 2.0
    assert best.tpot.p90 <= 0.05
    assert best.boundary.wire_bytes_mean == pytest.approx(
        float(CATALOG.model("Llama-3.1-8B").kv_bytes(6000, best.boundary.wire)), rel=0.01
    )


def test_a_rush_beyond_the_goodput_is_told() -> None:
    calm, rushed = Arrivals(2.0, peak_to_mean=1.0), Arrivals(2.0, peak_to_mean=3.0)
    warnings = [
        plan(
            "Llama-3.1-8B", Workload("fixed", Lengths.fixed(1000, 100), arrivals, 1), SLO_TEXT, prices="hyperstack"
        ).warnings
        for arrivals in (calm, rushed)
    ]
    assert not any("busiest" in note for note in warnings[0])
    assert any("3.00 times the average" in note and "--rate 6" in note for note in warnings[1])
