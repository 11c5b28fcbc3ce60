"""Bad questions and impossible ones: every finding at once, the floor, what is short and by how much."""

from __future__ import annotations

import numpy as np
import pytest

from diptych.catalog.catalog import Catalog
from diptych.errors import InvalidInput, NoFeasibleDesign
from diptych.perf.roofline import Roofline
from diptych.planner.ask import Pins
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
