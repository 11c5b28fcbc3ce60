"""Bad questions and impossible ones: every finding at once, the floor, what is short and by how much."""

from __future__ import annotations

import numpy as np
import pytest

from diptych.catalog.catalog import Catalog
from diptych.errors import InvalidInput, NoFeasibleDesign
from diptych.perf.roofline import Roofline
from diptych.planner.pins import Pins
from diptych.planner.planning import plan
from diptych.workload.lengths import Lengths
from diptych.workload.workload import Arrivals, Workload

CATALOG, PERF = Catalog.load(), Roofline()


def asking(
    model: str = "Llama-3.1-8B",
    slo: str = "ttft_p90<2s, tpot_p90<50ms",
    isl: float = 1000.0,
    osl: float = 100.0,
    **given,
):
    options = {"prices": "hyperstack", "rate": 1.0, **given}
    workload = Workload("fixed", Lengths.fixed(isl, osl), Arrivals(1.0), 1)
    return plan(model, workload, slo, catalog=CATALOG, perf=PERF, **options)


def findings(**given) -> str:
    with pytest.raises(InvalidInput) as caught:
        asking(**given)
    return str(caught.value)


def test_every_mistake_is_named_at_once() -> None:
    text = findings(model="Lama-3.1-8B", slo="ttfx_p90<2s", prices="hyperstak", rate=-1.0, quality="best")
    for part in ("--model", "did you mean", "--slo", "--prices", "--rate", "--quality"):
        assert part in text


@pytest.mark.parametrize("rate", [float("nan"), -3.0, 0.0, float("inf")])
def test_rates_must_be_positive_and_finite(rate: float) -> None:
    assert "--rate" in findings(rate=rate)


def test_one_goal_at_a_time() -> None:
    assert "exactly one of the three" in findings(rate=2.0, budget=60.0)


def test_unknown_accelerators_have_near_names() -> None:
    assert "did you mean" in findings(pins=Pins(prefill="H1000"))
    assert "did you mean" in findings(rate=None, prices=None, inventory={"A100_88": 8})


def test_contradictory_pins() -> None:
    text = findings(
        pins=Pins(prefill="H100", decode="L40", placement="colocated", overlap="layerwise", ownership="pull")
    )
    assert "different accelerators per role" in text
    assert "cannot overlap" in text
    assert "no handoff to pin" in text


def test_unreadable_pins() -> None:
    text = findings(
        pins=Pins(prefill_parallelism="two", decode_precision="x=fp8", wire="fp7", interconnect="rdma-401g")
    )
    for part in ("--prefill-parallelism", "--decode-precision", "--wire", "--interconnect"):
        assert part in text


def test_an_accelerator_without_an_offer_is_refused_with_those_that_have_one() -> None:
    assert "has no offer of" in findings(pins=Pins(decode="H20"))


def test_prompts_beyond_the_model_are_refused() -> None:
    assert "the longest request has" in findings(isl=200_000.0)


def test_a_few_prompts_beyond_the_model_are_left_out_and_told() -> None:
    """As an engine does: 1 % of the requests too long for the model make a note, 20 % another workload."""
    pins = Pins(prefill="L40", decode="L40", placement="colocated", prefill_parallelism="tp1", decode_parallelism="tp1")

    def answer(share: float):
        lengths = Lengths(
            np.array([1000.0, 200_000.0]), np.array([100.0, 100.0]), np.zeros(2), np.array([1 - share, share])
        )
        workload = Workload("some", lengths, Arrivals(1.0), 1)
        return plan("Llama-3.1-8B", workload, "ttft_p90<2s", catalog=CATALOG, perf=PERF, prices="hyperstack", rate=1.0,
                    pins=pins)  # fmt: skip

    found = answer(0.01)
    assert any("1 % of the requests are left out as too long for the model" in note for note in found.warnings)
    assert found.question.workload.isl_mean == pytest.approx(1000.0)
    assert found.best.usd_per_hour == asking(pins=pins, slo="ttft_p90<2s").best.usd_per_hour
    with pytest.raises(InvalidInput, match="20 % of the requests are too long"):
        answer(0.2)


def test_pins_that_no_accelerator_executes_are_refused_with_what_it_lacks() -> None:
    for role in ("prefill", "decode"):
        pins = Pins(**{role: "L40", f"{role}_precision": "w=fp8 a=fp8 kv=int8"})
        with pytest.raises(NoFeasibleDesign, match="nothing that is offered can run"):
            asking(pins=Pins(**{role: "L40", f"{role}_precision": "w=fp8 a=fp4"}))
        with pytest.raises(NoFeasibleDesign, match="L40"):
            asking(pins=pins)


def test_a_pinned_engine_runs_every_pool() -> None:
    with pytest.raises(InvalidInput, match="did you mean vllm"):
        asking(pins=Pins(engine="vlm"))
    found = asking(pins=Pins(engine="SGLang"))
    options = (found.best, *(other.option for other in found.alternatives))
    assert {member.engine for option in options for pool in option.pools for member in pool.members} == {"sglang"}


def test_empty_and_negative_workloads() -> None:
    empty = Lengths(*(np.zeros(0) for _ in range(4)))
    with pytest.raises(InvalidInput, match="holds no request"):
        plan(
            "Llama-3.1-8B",
            Workload("empty", empty, Arrivals(1.0)),
            "ttft<1s",
            catalog=CATALOG,
            perf=PERF,
            prices="aws",
            rate=1.0,
        )
    with pytest.raises(InvalidInput, match="negative"):
        asking(osl=-5.0)


def test_an_slo_below_the_floor_says_the_floor() -> None:
    with pytest.raises(NoFeasibleDesign, match=r"below the physical floor.*weights over memory bandwidth"):
        asking(model="Llama-3.1-70B", slo="ttft_p90<2s, tpot_p90<0.2ms")
    with pytest.raises(NoFeasibleDesign, match=r"below the physical floor.*FLOP over peak"):
        asking(model="Llama-3.1-70B", slo="ttft_p90<0.1ms, tpot_p90<50ms", isl=8000.0)


@pytest.mark.parametrize("statistic", ["p50", "p90", "mean"])
def test_an_end_to_end_limit_below_the_floor_says_the_floor(statistic: str) -> None:
    with pytest.raises(NoFeasibleDesign, match=r"e2e_.* is below the physical floor.*at least \d"):
        asking(slo=f"e2e_{statistic}<1ms")


def test_a_budget_below_the_smallest_fleet_says_its_price() -> None:
    with pytest.raises(NoFeasibleDesign, match=r"0\.01 USD/h rents no fleet.*the smallest that does costs") as caught:
        asking(rate=None, budget=0.01)
    least = float(caught.value.nearest.split(" costs ")[1].split()[0])
    assert asking(rate=None, budget=least * 1.01).best.usd_per_hour == pytest.approx(least, rel=0.01)


def test_a_model_that_fits_nowhere_says_what_is_short() -> None:
    with pytest.raises(NoFeasibleDesign) as caught:
        asking(
            model="Llama-3.1-405B",
            pins=Pins(prefill="L40", decode="L40", prefill_parallelism="tp8", decode_parallelism="tp8"),
        )
    assert "short by" in caught.value.nearest
    assert caught.value.dropped["weights_fit"] > 0


def test_a_context_that_fits_nowhere_is_refused() -> None:
    """70 GB of weights and 43 GB of KV for one request of 131,072 tokens do not fit on 80 GB."""
    pins = Pins(prefill="H100", decode="H100", prefill_parallelism="tp1", decode_parallelism="tp1",
                prefill_precision="w=fp8 a=fp8 kv=bf16", decode_precision="w=fp8 a=fp8 kv=bf16")  # fmt: skip
    with pytest.raises(NoFeasibleDesign, match="fits on nothing") as caught:
        asking(model="Llama-3.1-70B", isl=130_000.0, osl=1000.0, pins=pins)
    assert "short by" in caught.value.nearest


def test_a_tight_slo_names_the_nearest_miss() -> None:
    with pytest.raises(NoFeasibleDesign) as caught:
        asking(model="Llama-3.1-70B", slo="ttft_p90<30ms, tpot_p90<50ms", isl=2000.0)
    assert caught.value.dropped
    assert caught.value.nearest
