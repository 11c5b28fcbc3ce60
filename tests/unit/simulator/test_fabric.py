"""A fabric narrower than the ports is shared by all routes and gives back what it took."""

from __future__ import annotations

import pytest

from diptych.simulator.clock import NEVER, PS, Clock
from diptych.simulator.network import Network, Port


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
