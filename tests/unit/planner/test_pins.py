"""Any axis may be pinned, of either role: it is kept, or refused by the rule that drops it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.offer import Offer, PriceBook
from diptych.design.axes import Role
from diptych.design.boundary import Placement
from diptych.errors import InvalidInput, NoFeasibleDesign
from diptych.perf.roofline import Roofline
from diptych.planner.pins import Pins
from diptych.planner.plan import Plan
from diptych.planner.planning import plan
from diptych.workload.lengths import Lengths
from diptych.workload.workload import Arrivals, Workload

CATALOG, PERF = Catalog.load(), Roofline()
SLO_TEXT = "ttft_p90<2s, tpot_p90<50ms"
BASE = Pins(prefill="H100", decode="H100", prefill_precision="w=fp8 a=fp8 kv=fp8", decode_precision="w=fp8 a=fp8 kv=fp8",
            prefill_parallelism="tp1", decode_parallelism="tp1", placement="disaggregated")  # fmt: skip
BOOK = PriceBook("test", "2026-01-01", (Offer("H100-SXM-80GB", "here", "one", 1, 3.0, "site", nic_bandwidth=50e9),))
LENGTHS = Lengths(np.array([500.0, 3000.0]), np.array([100.0, 100.0]), np.array([0.0, 2000.0]), np.array([0.5, 0.5]))


def planned(rate: float = 20.0, **pins: object) -> Plan:
    found = Workload("two lengths", LENGTHS, Arrivals(rate), 2)
    return plan("Llama-3.1-8B", found, SLO_TEXT, catalog=CATALOG, perf=PERF, rate=rate, prices=BOOK,
                pins=replace(BASE, **pins))  # type: ignore[arg-type]  # fmt: skip


@pytest.fixture(scope="module")
def free() -> Plan:
    return planned()


def decode_of(found: Plan) -> tuple[int, int]:
    """(workers, batch limit) of the decode pool."""
    pool = found.best.pool(Role.DECODE)
    assert pool is not None
    assert pool.batch <= pool.members[0].max_batch
    return pool.workers, pool.members[0].max_batch


def test_a_batch_limit_takes_more_workers(free: Plan) -> None:
    workers, limit = decode_of(planned(decode_max_batch=4))
    assert limit == 4
    assert workers > decode_of(free)[0]


def test_counts_add_up_under_pins(free: Plan) -> None:
    for found in (free, planned(decode_max_batch=64, prefill_residency="hbm", decode_residency="hbm")):
        space = found.space
        assert space.cartesian == sum(row.dropped for row in space.rules) + space.effective
        assert space.effective == space.sized + sum(row.dropped for row in space.pruned)


def test_prefixes_in_dram_are_fetched(free: Plan) -> None:
    """2,000 cached tokens of 65,536 bytes at 25 GB/s are 5.24 ms, 20 µs before them, for half of the prompts."""
    found = planned(prefill_residency="dram")
    more = found.best.ttft_parts["prefill"] - free.best.ttft_parts["prefill"]
    assert more == pytest.approx((2000 * 65536 / 25e9 + 20e-6) / 2, rel=1e-6)


def test_live_kv_in_dram_is_refused_with_numbers() -> None:
    with pytest.raises(NoFeasibleDesign, match=r"decode from HBM.*live KV in dram.*from HBM"):
        planned(decode_residency="dram")


def test_a_codec_nobody_has_is_refused_by_its_rule() -> None:
    with pytest.raises(NoFeasibleDesign, match="no connector compresses KV"):
        planned(codec="compressed")


def test_an_engine_that_cannot_is_refused_by_its_rule() -> None:
    with pytest.raises(NoFeasibleDesign, match="must itself run this combination"):
        planned(decode_engine="mlx")


def test_each_role_runs_its_own_engine() -> None:
    found = planned(prefill_engine="vllm", decode_engine="sglang")
    assert [pool.members[0].engine for pool in found.best.pools] == ["vllm", "sglang"]
    assert found.best.boundary is not None
    assert "vllm and sglang share no connector" in found.best.boundary.engine_support


def test_a_threshold_is_kept() -> None:
    found = planned(placement=None, local_below=1000)
    assert found.best.placement is Placement.CONDITIONAL
    assert found.best.boundary is not None
    assert found.best.boundary.local_below == 1000


def test_every_mistake_is_found_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        planned(decode_residency="drm", codec="rw", converts_at="prefil", prefill_max_batch=0, decode_engine="vlm",
                local_below=5, decode_max_batched_tokens=-1)  # fmt: skip
    told = str(caught.value)
    for words in ("did you mean dram", "did you mean raw", "did you mean prefill", "--prefill-max-batch", "did you mean vllm",
                  "--local-below", "--decode-max-batched-tokens"):  # fmt: skip
        assert words in told


def test_an_unknown_book_is_one_finding() -> None:
    with pytest.raises(InvalidInput) as caught:
        plan("Llama-3.1-8B", "fixed:1000x100", SLO_TEXT, catalog=CATALOG, perf=PERF, rate=1.0, prices="awss")
    assert len(caught.value.findings) == 1


def test_an_owned_pair_is_used_as_pinned() -> None:
    found = plan("Llama-3.1-8B", "fixed:1000x100", SLO_TEXT, catalog=CATALOG, perf=PERF, inventory={"L40S": 2, "H100": 1},
                 pins=Pins(prefill="L40S", decode="H100"))  # fmt: skip
    names = [{member.accelerator for member in pool.members} for pool in found.best.pools]
    assert names == [{"L40S"}, {"H100-SXM-80GB"}]


def test_a_budget_pays_for_every_alternative() -> None:
    found = plan(
        "Llama-3.1-8B", "fixed:1000x100", SLO_TEXT, catalog=CATALOG, perf=PERF, budget=13.0, prices=BOOK, pins=BASE
    )
    assert max(o.usd_per_hour for o in (found.best, *(a.option for a in found.alternatives))) <= 13.0


def test_idle_accelerators_of_shared_instances() -> None:
    offers = (Offer("H100-SXM-80GB", "here", "eight", 8, 24.0, "site", nic_bandwidth=50e9),)
    found = plan("Llama-3.1-8B", Workload("two lengths", LENGTHS, Arrivals(20.0), 2), SLO_TEXT, catalog=CATALOG, perf=PERF,
                 rate=20.0, prices=PriceBook("test", "2026-01-01", offers), pins=BASE)  # fmt: skip
    members = [pool.members[0] for pool in found.best.pools]
    assert sum(member.instances for member in members) * 8 == found.best.usd_per_hour / 24 * 8
    assert sum(m.idle_accelerators + m.accelerators for m in members) == found.best.usd_per_hour / 24 * 8


@pytest.mark.parametrize(("made", "kept_as"), [("bf16", "fp8"), ("fp8", "bf16"), ("bf16", "bf16")])
def test_an_inventory_keeps_the_kv_formats_of_both_roles(made: str, kept_as: str) -> None:
    """Alike or not: unlike ones are converted, never read as no fleet at all."""
    pins = Pins(prefill="H100", decode="L40S", prefill_precision=f"kv={made}", decode_precision=f"kv={kept_as}")
    found = plan("Llama-3.1-8B", "fixed:1000x100", SLO_TEXT, catalog=CATALOG, perf=PERF, pins=pins,
                 inventory={"H100": 2, "L40S": 4})  # fmt: skip
    formats = [found.best.pool(role).members[0].kv for role in (Role.PREFILL, Role.DECODE)]  # type: ignore[union-attr]
    assert [str(kv) for kv in formats] == [made, kept_as]
    assert found.best.boundary is not None
    assert (found.best.boundary.converts_at is None) == (made == kept_as)
