"""Options as designs; finalists simulated, kept, enlarged or dropped, each counted and said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.offer import Offer, PriceBook
from diptych.design.text import format_design, parse_design
from diptych.errors import InvalidInput, NoFeasibleDesign
from diptych.metrics.slo import SLO
from diptych.perf.roofline import Roofline
from diptych.perf.transfer import path
from diptych.planner.demand import Demand
from diptych.planner.fleet import fleet_of_option, priced
from diptych.planner.judge import judge
from diptych.planner.plan import Fate, Option, Plan
from diptych.planner.planning import plan
from diptych.simulator.demand import Requests
from diptych.workload.lengths import Lengths
from diptych.workload.workload import Arrivals, Workload

CATALOG, PERF = Catalog.load(), Roofline()
MODEL = CATALOG.model("Llama-3.1-8B")
SLO_TEXT = "ttft_p90<1s, tpot_p90<40ms"
RATE, ISL, OSL = 12.0, 1500, 150


def _offer(name: str, gpus: int, usd: float, nic: float) -> Offer:
    return Offer(CATALOG.accelerator(name).name, "here", f"{name} x{gpus}", gpus, usd * gpus, "one", nic_bandwidth=nic)


BOOK = PriceBook("test", "2026-01-01", (_offer("L40S", 1, 1.9, 12.5e9), _offer("A100", 4, 2.5, 12.5e9)))
WORKLOAD = Workload("steady", Lengths.fixed(ISL, OSL), Arrivals(RATE), 1)


def requests(arrival: np.ndarray, isl: int = ISL) -> Demand:
    count = len(arrival)
    return Demand(Requests(arrival, np.full(count, isl), np.full(count, OSL), name="made"), "made", "", ())


def steady(count: int = 1500) -> Demand:
    return requests(np.cumsum(np.random.default_rng(5).exponential(1 / RATE, count)))


def rushes(count: int = 1500, rush: float = 2.5) -> Demand:
    """Half a minute of `rush` times the load, then quiet, again and again; the mean rate is the same."""
    busy = np.cumsum(np.random.default_rng(5).exponential(1 / (RATE * rush), count))
    return requests(busy + np.floor(busy / 30.0) * 30.0 * (rush - 1))


def planned(demand: Demand | None = None, **more: object) -> Plan:
    return plan(MODEL, WORKLOAD, SLO_TEXT, catalog=CATALOG, perf=PERF, prices=BOOK, verify=demand, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain() -> Plan:
    return planned()


@pytest.fixture(scope="module")
def rushed() -> Plan:
    return planned(rushes())


def options(found: Plan) -> list[Option]:
    named = (
        found.best,
        found.colocated,
        found.disaggregated,
        found.heterogeneous,
        *(a.option for a in found.alternatives),
    )
    return [option for option in named if option is not None]


def test_an_option_becomes_the_design_it_was_sized_as(plain: Plan) -> None:
    assert any(option.boundary for option in options(plain))
    for option in options(plain):
        fleet = fleet_of_option(option, CATALOG, MODEL, BOOK)
        design = fleet.design
        assert design.accelerators == option.accelerators
        assert design.usd_per_hour == pytest.approx(option.usd_per_hour)
        assert parse_design(format_design(design, CATALOG), CATALOG, MODEL) == design
        assert (design.boundary is None) == (option.boundary is None)
        if design.boundary is not None and option.boundary is not None:
            workers = [pool.members[0].worker for pool in design.pools]
            assert path(workers[0], workers[1], design.boundary.link).achievable == pytest.approx(
                option.boundary.bandwidth
            )
            assert design.boundary.representation.wire is option.boundary.wire


def test_without_the_book_another_path_is_told(plain: Plan) -> None:
    apart = next(option for option in options(plain) if option.boundary)
    assert apart.boundary is not None
    other = replace(apart, boundary=replace(apart.boundary, bandwidth=apart.boundary.bandwidth / 3))
    assert any("own NICs" in note for note in fleet_of_option(other, CATALOG, MODEL).notes)


def test_a_written_design_is_priced_by_a_book() -> None:
    design = parse_design("2xL40S -> 2xA100:tp2:usd=9, link=rdma-100g", CATALOG, MODEL)
    first, second = (pool.members[0] for pool in priced(design, BOOK).pools)
    assert (first.usd_per_hour, first.offer, first.worker.accelerator.nic_bandwidth) == (1.9, "L40S x1", 12.5e9)
    assert second == design.pools[1].members[0]
    with pytest.raises(InvalidInput, match="no offer of H20-96GB"):
        priced(parse_design("H20", CATALOG, MODEL), BOOK)


def test_a_plan_says_nothing_of_simulations_it_did_not_make(plain: Plan) -> None:
    assert plain.verification is None


def test_every_finalist_is_counted_and_shown_ones_were_simulated(rushed: Plan) -> None:
    told = rushed.verification
    assert told is not None
    fates = [checked.fate for checked in told.finalists]
    assert (told.kept, told.corrected, told.dropped) == tuple(fates.count(fate) for fate in Fate)
    assert told.simulations == sum(checked.simulations for checked in told.finalists)
    alive = {checked.label for checked in told.finalists if checked.fate is not Fate.DROPPED}
    assert {option.label for option in options(rushed)} <= alive


def test_rushes_cost_workers_and_what_is_kept_holds(plain: Plan, rushed: Plan) -> None:
    told = rushed.verification
    assert told is not None
    assert told.corrected + told.dropped > 0
    assert rushed.best.usd_per_hour > plain.best.usd_per_hour
    for checked in told.finalists:
        if checked.fate is not Fate.DROPPED:
            assert all(promise.holds for promise in checked.promises), checked
        if checked.fate is Fate.CORRECTED:
            assert "held by" in checked.reason
            assert checked.usd_per_hour >= checked.planned_usd_per_hour
    design = fleet_of_option(rushed.best, CATALOG, MODEL, BOOK).design
    scaled = replace(rushes(), requests=rushes().requests.at_rate(rushed.best.rate))
    assert judge(design, scaled, PERF, SLO.parse(SLO_TEXT)).holds


def test_a_corrected_pool_is_the_smallest_that_holds(rushed: Plan) -> None:
    assert rushed.verification is not None
    together = rushed.colocated
    assert together is not None
    checked = next(c for c in rushed.verification.finalists if c.label == together.label)
    if checked.fate is not Fate.CORRECTED:
        pytest.skip("the colocated fleet held as planned")
    design = fleet_of_option(together, CATALOG, MODEL, BOOK).design
    (member,) = design.pools[0].members
    smaller = replace(design, pools=(replace(design.pools[0], members=(replace(member, count=member.count - 1),)),))
    scaled = replace(rushes(), requests=rushes().requests.at_rate(together.rate))
    assert not judge(smaller, scaled, PERF, SLO.parse(SLO_TEXT)).holds


def test_a_steady_load_corrects_less(rushed: Plan) -> None:
    calm = planned(steady())
    assert calm.verification is not None
    assert calm.best.usd_per_hour < rushed.best.usd_per_hour


def test_the_plan_with_its_verification_is_readable_json(rushed: Plan) -> None:
    assert Plan.from_dict(rushed.to_dict()) == rushed


def test_same_inputs_same_plan(rushed: Plan) -> None:
    assert planned(rushes()).to_dict() == rushed.to_dict()


def test_a_budget_keeps_its_fleet_and_corrects_its_goodput() -> None:
    before, after = planned(budget=8.0), planned(rushes(), budget=8.0)
    assert after.verification is not None
    assert after.best.usd_per_hour <= 8.0
    assert after.best.goodput < before.best.goodput
    assert all("held at" in c.reason for c in after.verification.finalists if c.fate is Fate.CORRECTED)


def test_requests_that_fit_nowhere_end_in_a_refusal() -> None:
    with pytest.raises(NoFeasibleDesign, match=r"finalists held the SLO in simulation.*more workers do not help"):
        planned(requests(np.arange(30) / RATE, isl=5_000_000))
