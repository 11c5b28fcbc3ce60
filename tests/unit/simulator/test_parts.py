"""Parts of the simulator by hand: step tables against the model, shared links, faults as text, demand, results as text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Role, Worker
from diptych.design.design import Design
from diptych.errors import InvalidDesign, InvalidInput
from diptych.perf.roofline import default_perf
from diptych.simulator.clock import NEVER, PS, Clock
from diptych.simulator.demand import Requests, drawn, read_requests, together
from diptych.simulator.faults import LinkSlow, Scale, Switch, WorkerDown, parse_changes
from diptych.simulator.network import Network, Port
from diptych.simulator.simulate import simulate
from diptych.simulator.tables import StepTable
from diptych.simulator.worker import steps_until
from diptych.workload.lengths import Lengths
from diptych.workload.presets import DATA

WORKERS = [
    ("H100-SXM-80GB", "Llama-3.1-8B", Dtype.BF16, 1),
    ("H20-96GB", "Qwen3-32B", Dtype.FP8, 4),
    ("H100-SXM-80GB", "Gemma-3-27B", Dtype.BF16, 2),
]


@pytest.mark.parametrize(("accelerator", "model", "dtype", "tp"), WORKERS)
def test_a_table_says_what_the_model_says(accelerator: str, model: str, dtype: Dtype, tp: int) -> None:
    """Within 0.5 %, and never below the physical floor by more than that."""
    catalog, perf = Catalog.load(), default_perf()
    worker = Worker(
        catalog.model(model), catalog.accelerator(accelerator), Precision(dtype, dtype, dtype), Parallelism(tp)
    )
    table, draw = StepTable(perf, worker, 8192), np.random.default_rng(1)
    for _ in range(200):
        batch, context = int(draw.integers(1, 200)), int(draw.integers(16, 16_000))
        seconds = perf.decode(worker, batch, context)
        assert table.decode_ps(batch, batch * context) / PS == pytest.approx(float(seconds.seconds), rel=5e-3)
        assert table.decode_ps(batch, batch * context) / PS >= float(seconds.floor) * 0.995
        tokens, past = int(draw.integers(1, 8193)), int(draw.choice([0, 700, 9000]))
        seconds = perf.prefill(worker, tokens, past)
        pairs = tokens * (2 * past + tokens)
        assert table.prompt_ps(tokens, pairs) / PS == pytest.approx(float(seconds.seconds), rel=2e-2)
        assert table.prompt_ps(tokens, pairs) / PS >= float(seconds.floor) * 0.98
        mixed = float(perf.mixed(worker, tokens, past, batch, context).seconds)
        assert table.mixed_ps(tokens, pairs, batch, batch * context) / PS == pytest.approx(mixed, rel=2e-2)


@given(st.integers(0, 10**7), st.integers(1, 10**5), st.integers(0, 300))
def test_steps_until_is_the_least_that_reaches(gap: int, first: int, difference: int) -> None:
    count = steps_until(gap, first, difference)
    total = count * first + difference * count * (count - 1) // 2
    before = (count - 1) * first + difference * (count - 1) * (count - 2) // 2
    assert total >= gap
    assert count == 1 or before < gap


def ends(capacities: tuple[int, ...], transfers: list[tuple[int, int, int, float]]) -> dict[int, float]:
    """When transfers (from, to, bytes, at s) end; `capacities` of the ports out are also those in."""
    clock, found = Clock(), {}
    network = Network(clock, lambda about, now: found.__setitem__(about, now / PS))
    out = [Port(f"{n} out", c) for n, c in enumerate(capacities)]
    into = [Port(f"{n} in", c) for n, c in enumerate(capacities)]
    routes = {}
    for number, (source, target, size, at) in enumerate(transfers):
        clock.run_before(int(at * PS))
        key = (source, target)
        routes[key] = routes.get(key) or network.route(out[source], into[target], 10**15)
        network.send(routes[key], size, 0, number, int(at * PS))
    clock.run_before(NEVER)
    assert not any(port.active for port in out + into)
    return found


def test_a_transfer_alone_takes_the_narrowest_port() -> None:
    assert ends((10**9, 10**8), [(0, 1, 10**8, 0.0)]) == pytest.approx({0: 1.0})


def test_two_transfers_share_and_the_second_speeds_up_when_the_first_ends() -> None:
    assert ends((10**9, 10**9), [(0, 1, 10**9, 0.0), (0, 1, 2 * 10**9, 0.0)]) == pytest.approx({0: 2.0, 1: 3.0})


def test_directions_do_not_share() -> None:
    assert ends((10**9, 10**9), [(0, 1, 10**9, 0.0), (1, 0, 10**9, 0.0)]) == pytest.approx({0: 1.0, 1: 1.0})


def test_what_a_slow_port_leaves_goes_to_the_others() -> None:
    """0 → 1 is held to 0.1 GB/s by its target; 0 → 2 takes the other 0.9."""
    found = ends((10**9, 10**8, 10**9), [(0, 1, 10**8, 0.0), (0, 2, 9 * 10**8, 0.0)])
    assert found == pytest.approx({0: 1.0, 1: 1.0})


def test_a_promise_gives_way_to_who_starts_before_it() -> None:
    clock, found = Clock(), {}
    network = Network(clock, lambda about, now: found.__setitem__(about, now / PS))
    route = network.route(Port("out", 10**9), Port("in", 10**9), 10**15)
    network.send(route, 10**9, 5 * PS, "late", 0)
    network.send(route, 10**9, PS, "early", 0)
    clock.run_before(NEVER)
    assert found == pytest.approx({"early": 2.0, "late": 6.0})


def test_a_cut_stops_and_a_repair_goes_on() -> None:
    clock, found = Clock(), {}
    network = Network(clock, lambda about, now: found.__setitem__(about, now / PS))
    out = Port("out", 10**9)
    network.send(network.route(out, Port("in", 10**9), 10**15), 10**9, 0, "it", 0)
    for at, factor in ((PS // 2, 0.0), (3 * PS, 0.5)):
        clock.run_before(at)
        out.slow(factor)
        network.changed([out], at)
    clock.run_before(NEVER)
    assert found == pytest.approx({"it": 4.0})


def test_faults_are_read_as_people_write_them() -> None:
    texts = ["decode[1] dies @300s for 120s", "prefill pool dies @5min", "link prefill->decode at 10% @600s for 60s",
             "link prefill[0]->decode[2] cut @600s", "decode +2 @900s", "prefill to decode @1h"]  # fmt: skip
    assert parse_changes(texts) == (
        WorkerDown(Role.DECODE, 1, 300.0, 120.0),
        WorkerDown(Role.PREFILL, None, 300.0),
        LinkSlow(0.1, 600.0, 60.0),
        LinkSlow(0.0, 600.0, float("inf"), 0, 2),
        Scale(Role.DECODE, 2, 900.0),
        Switch(Role.PREFILL, Role.DECODE, 3600.0),
    )


def test_every_wrong_fault_is_named_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_changes(["decoder[1] dies @3s", "decode dies", "decode[0] dies @x", "link prefill->decode at 10% @1s"])
    assert len(caught.value.findings) == 3


def test_a_trace_is_read_row_by_row() -> None:
    requests = read_requests(DATA / "azure2023_conv.csv.gz")
    assert len(requests) == 19366
    assert (int(requests.isl[0]), int(requests.osl[0]), float(requests.arrival[1])) == (374, 44, 4.3146)
    hashed = read_requests(DATA / "mooncake_arxiv_first1000.jsonl.gz")
    assert hashed.hash_tokens == 512
    assert hashed.blocks is not None
    assert len(hashed.blocks) == len(hashed) == 1000


def test_time_scales_and_resampling_keep_what_they_say() -> None:
    requests = read_requests(DATA / "azure2023_conv.csv.gz")
    assert requests.at_rate(30.0).rate == pytest.approx(30.0)
    assert len(requests.until(60.0)) == int(np.sum(requests.arrival <= 60.0))
    again = requests.resampled(5000, 3)
    assert set(again.isl.tolist()) <= set(requests.isl.tolist())
    assert np.array_equal(again.arrival, requests.resampled(5000, 3).arrival)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_drawn_gaps_have_the_mean_and_the_variation_asked_for(cv: float) -> None:
    requests = together(drawn(Lengths.fixed(100, 10), 20.0, 5, count=60_000, cv=cv))
    gaps = np.diff(requests.arrival)
    assert float(gaps.mean()) == pytest.approx(1 / 20, rel=0.05)
    assert float(gaps.std() / gaps.mean()) == pytest.approx(cv, rel=0.05)


def test_a_drawn_stream_ends_on_time() -> None:
    requests = together(drawn(Lengths.fixed(100, 10), 50.0, 5, duration=30.0))
    assert float(requests.arrival[-1]) <= 30.0
    assert len(requests) == pytest.approx(1500, rel=0.1)


def test_a_design_without_its_pools_is_refused() -> None:
    with pytest.raises(InvalidDesign, match="colocated"):
        simulate(Design(()), Requests(np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64)), default_perf())
