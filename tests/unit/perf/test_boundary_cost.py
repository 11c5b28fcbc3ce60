"""A contract's price is the handoff's: one arithmetic, two ways to ask."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diptych.boundary.contract import Verdict, contract
from diptych.boundary.conversion import Op
from diptych.boundary.describe import describe_worker, wire_format
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.design.boundary import Boundary, Codec, Placement, Representation, Side
from diptych.perf.boundary_cost import BoundaryCost, boundary_cost, cheapest_contract
from diptych.perf.handoff import handoff

CATALOG = Catalog.load()
LINK = CATALOG.link("ib-400g")


def worker(accelerator: str, kv: Dtype, tp: int = 2, model: str = "Qwen3-32B") -> Worker:
    precision = Precision(Dtype.BF16, Dtype.BF16, kv)
    return Worker(CATALOG.model(model), CATALOG.accelerator(accelerator), precision, Parallelism(tp))


def priced(prefill: Worker, decode: Worker, tokens: float, **given: object) -> tuple[BoundaryCost, Dtype]:
    agreed = contract(describe_worker(prefill), describe_worker(decode), **given)  # type: ignore[arg-type]
    crossing = next(step.before.format.element.dtype for step in agreed.plan if step.op is Op.TRANSFER)
    return boundary_cost(agreed, prefill, decode, LINK, tokens), crossing


PAIRS = [
    (Dtype.BF16, Dtype.BF16),
    (Dtype.BF16, Dtype.FP8),
    (Dtype.FP8, Dtype.BF16),
    (Dtype.FP8_FNUZ, Dtype.FP8),
    (Dtype.FP16, Dtype.BF16),
    (Dtype.INT8, Dtype.BF16),
]


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(("made", "used"), PAIRS)
@pytest.mark.parametrize("model", ["Qwen3-32B", "DeepSeek-V3", "gpt-oss-120b", "Qwen3-Next-80B-A3B"])
def test_a_plan_costs_what_the_handoff_says(model: str, made: Dtype, used: Dtype, side: Side) -> None:
    """Up to the one scale of a tensor, which the planner sends and FP8 of scale one does not have."""
    prefill, decode = worker("H100", made, 2, model), worker("MI300X", used, 2, model)
    cost, crossing = priced(prefill, decode, 2000, at=side)
    form = Representation(Codec.RAW if made is used else Codec.CAST, crossing, None if made is used else side)
    whole = handoff(prefill, decode, Boundary(Placement.DISAGGREGATED, LINK, form), 2000, 1.0)
    assert cost.wire_bytes == pytest.approx(float(whole.wire_bytes), rel=1e-5)
    assert cost.transfer == pytest.approx(float(whole.transfer), rel=1e-5)
    converting = (cost.prefill, cost.staged, cost.decode)
    expected = (whole.prefill_conversion, whole.staged_conversion, whole.decode_conversion)
    tolerance = 0.05 if Dtype.INT8 in (made, used) else 1e-9  # scales of a token are read too
    assert converting == pytest.approx([float(each) for each in expected], rel=tolerance)


def test_rearranging_is_paid_by_the_side_that_does_it() -> None:
    prefill, decode = worker("H100", Dtype.BF16), worker("A100-SXM4-80GB", Dtype.BF16)
    made, used = describe_worker(prefill), describe_worker(decode, block_tokens=64)
    here, there = (contract(made, used, at=side) for side in (Side.PREFILL, Side.DECODE))
    early, late = (boundary_cost(agreed, prefill, decode, LINK, 4000) for agreed in (here, there))
    moved = 2 * made.cache_bytes(4000)
    assert (early.decode, late.prefill) == (0, 0)
    assert early.prefill == pytest.approx(moved / (prefill.accelerator.memory_bandwidth * 0.8 * 2))
    assert late.decode == pytest.approx(moved / (decode.accelerator.memory_bandwidth * 0.8 * 2))
    assert early.seconds < late.seconds


def test_the_cheapest_is_found_among_sides_and_wires() -> None:
    prefill, decode = worker("H100", Dtype.BF16), worker("A100-SXM4-80GB", Dtype.BF16)
    made, used = describe_worker(prefill), describe_worker(decode, block_tokens=64)
    found = cheapest_contract(made, used, prefill, decode, LINK, 4000)
    assert found.cost is not None
    assert found.contract.plan[0].side is Side.PREFILL
    narrow = wire_format(Dtype.INT4, made.format, used.format)
    through = cheapest_contract(made, used, prefill, decode, LINK, 4000, wires=[narrow])
    assert through.cost is not None
    assert through.cost.seconds < found.cost.seconds
    assert through.contract.verdict is Verdict.BOTH


def test_a_pair_without_a_plan_has_no_price() -> None:
    prefill, decode = worker("H100", Dtype.FP8), worker("H100", Dtype.FP8)
    dynamic = Scaling(ScaleSource.DYNAMIC, ScaleGranularity.TENSOR)
    state = describe_worker(prefill, scaling=dynamic)
    refused = cheapest_contract(state, state, prefill, decode, LINK, 1000)
    assert (refused.contract.verdict, refused.cost) == (Verdict.REJECT, None)
    wide = cheapest_contract(state, state, prefill, decode, LINK, 1000, wires=[Format(Element.BF16)])
    assert wide.cost is not None


def test_tokens_before_heads_cost_a_descriptor_each() -> None:
    prefill, decode = worker("H100", Dtype.BF16, 2), worker("H100", Dtype.BF16, 4)
    by_head, by_token = (
        contract(describe_worker(prefill, layout=layout), describe_worker(decode, layout=layout))
        for layout in ("HND", "NHD")
    )
    slow = replace(LINK, per_piece=1e-6)
    one, other = (boundary_cost(agreed, prefill, decode, slow, 4000) for agreed in (by_head, by_token))
    assert one.wire_bytes == other.wire_bytes
    posted = 64 * 2 * 2 * 250  # layers, keys and values, ranks that a block is split over, blocks
    assert other.transfer - one.transfer == pytest.approx(1e-6 * posted * 15)
