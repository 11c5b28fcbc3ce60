"""What is not known is not given as nought: prices, idle parts and savings of what is owned, power without a data sheet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diptych.catalog.catalog import Catalog
from diptych.errors import InvalidInput
from diptych.perf.roofline import Roofline
from diptych.planner.ask import ask
from diptych.planner.pins import Pins
from diptych.planner.plan import Plan
from diptych.planner.planning import plan
from diptych.planner.sensitivity import NOTHING, _follows
from diptych.workload.load import load_workload

CATALOG, PERF = Catalog.load(), Roofline()
WORKLOAD = load_workload("fixed:2000x200", rate=4.0)
SLO_TEXT = "ttft_p90<2s, tpot_p90<50ms"


@pytest.fixture(scope="module")
def owned() -> Plan:
    owned = {"A100-80": 3, "L40S": 5}
    return plan("Llama-3.1-8B", WORKLOAD, SLO_TEXT, catalog=CATALOG, perf=PERF, inventory=owned)


def test_what_is_owned_without_prices_has_no_bill(owned: Plan) -> None:
    assert owned.verdict.savings == ()
    assert all(m.idle_accelerators == 0 for pool in owned.best.pools for m in pool.members)
    told = " ".join(item.detail for item in owned.checklist)
    assert "0.00 USD" not in told
    assert "the bill is unknown" in told


def test_the_parts_of_a_mixed_fleet_add_up(owned: Plan) -> None:
    for option in (owned.best, owned.colocated, owned.disaggregated, owned.heterogeneous):
        if option is not None:
            assert sum(option.ttft_parts.values()) == pytest.approx(option.ttft_decode.mean)
            assert "wait" in option.ttft_parts


def test_power_is_unknown_where_no_sheet_gives_it() -> None:
    bare = replace(CATALOG, accelerators={n: replace(a, tdp_w=0.0) for n, a in CATALOG.accelerators.items()})
    found = plan("Llama-3.1-8B", WORKLOAD, SLO_TEXT, catalog=bare, perf=PERF, prices="hyperstack")
    assert found.best.power_w is None
    assert all(pool.power_w is None for pool in found.best.pools)
    assert Plan.from_dict(found.to_dict()) == found


def test_an_answer_of_nothing_is_said_as_such() -> None:
    assert "no fleet" in _follows(NOTHING, "L40S colocated")
    assert "answer is no" not in _follows(NOTHING, "L40S colocated")


@pytest.mark.parametrize("text", ["w=fp8 w=bf16", "kv=fp8,kv=fp8", "w=fp8 weights=fp8"])
def test_a_format_given_twice_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="given 2 times"):
        ask("Llama-3.1-8B", WORKLOAD, SLO_TEXT, catalog=CATALOG, perf=PERF, prices="hyperstack", rate=1.0,
            pins=Pins(prefill_precision=text))  # fmt: skip


@pytest.mark.parametrize("text", ["tp2 tp4", "tp2,pp2,tp2"])
def test_a_size_given_twice_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="given twice"):
        ask("Llama-3.1-8B", WORKLOAD, SLO_TEXT, catalog=CATALOG, perf=PERF, prices="hyperstack", rate=1.0,
            pins=Pins(decode_parallelism=text))  # fmt: skip
