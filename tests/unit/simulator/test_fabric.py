"""A fabric narrower than the ports is shared by all routes and gives back what it took."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "laws"))

from affine_perf import ACCELERATOR
from sim_worlds import PERF, apart, boundary, worker

from diptych.catalog.interconnect import Link, LinkKind
from diptych.serving.router import Routing
from diptych.simulator.clock import NEVER, PS, Clock
from diptych.simulator.demand import Requests
from diptych.simulator.network import Network, Port
from diptych.simulator.policy import Policy
from diptych.simulator.simulate import simulate


def ends(fabric: int | None, starts: list[float]) -> tuple[list[float], list[Port]]:
    """When transfers of 1 GB, each between two workers of its own, end (s); their ports are 1 GB/s wide."""
    clock, found = Clock(), {}
    shared = None if fabric is None else Port("fabric", fabric)
    network = Network(clock, lambda about, now: found.__setitem__(about, now / PS), shared)
    routes = [network.route(Port(f"{n} out", 10**9), Port(f"{n} in", 10**9), 10**12) for n, _ in enumerate(starts)]
    for number, start in enumerate(starts):
        clock.run_before(int(start * PS))
        network.send(routes[number], 10**9, 0, number, int(start * PS))
    clock.run_before(NEVER)
    ports = [port for route in routes for port in route.ports]
    return [found[number] for number in sorted(found)], ports


def test_without_a_fabric_workers_of_their_own_do_not_meet() -> None:
    assert ends(None, [0.0, 0.0])[0] == pytest.approx([1.0, 1.0])


def test_a_fabric_is_shared_fairly_and_given_back() -> None:
    """Alone for 1 s at 0.5 GB/s, then two at 0.25 each, then one again."""
    found, ports = ends(5 * 10**8, [0.0, 1.0])
    assert found == pytest.approx([3.0, 4.0])
    assert not any(port.active for port in ports)


def test_a_wide_fabric_changes_nothing() -> None:
    assert ends(10**12, [0.0, 0.3])[0] == pytest.approx([1.0, 1.3])


def handoffs(instances: dict[str, int], prompts: int) -> float:
    """Mean seconds of a handoff when so many of an instance's prefill workers have one at the same time."""
    accelerator = replace(ACCELERATOR, nic_bandwidth=5e9)
    source, target = (replace(worker(), accelerator=accelerator) for _ in range(2))
    requests = Requests(np.zeros(prompts), np.full(prompts, 2000), np.full(prompts, 2))
    policy = Policy(instances=instances, prefill_routing=Routing.ROUND_ROBIN, decode_routing=Routing.ROUND_ROBIN)
    path = replace(boundary(40e9), link=Link("wide", LinkKind.INFINIBAND, 40e9, 5e-6))
    run = simulate(apart(4, 4, path, source, target), requests, PERF, policy=policy)
    return float(np.mean(run.requests.moved - run.requests.first_token))


def test_workers_of_an_instance_share_its_nics() -> None:
    """Four workers of one NIC share each: alone one has four times its share, all together just theirs."""
    alone, together = handoffs({"": 4}, 1), handoffs({"": 4}, 4)
    assert together == pytest.approx(4 * alone, rel=0.01)
    assert handoffs({}, 1) == pytest.approx(handoffs({}, 4), rel=1e-6) == pytest.approx(together, rel=0.01)


def test_a_pair_shares_and_the_next_one_lies_on_another_instance() -> None:
    assert handoffs({"": 2}, 4) == pytest.approx(2 * handoffs({"": 2}, 1), rel=0.01)
