"""Mixed fleets as MLPerf audited them: Llama-2-70B-99.9, tokens/s, closed division (MLCommons results, Apache-2.0).

Parts are single-node results of the same submitter and round.
"""

from __future__ import annotations

import pytest

from diptych.planner.balance import MIXED_POOL_SHARE, StageWorker, mixed_pool_rate

FLEETS = {
    # fleet: measured, parts (nodes of eight accelerators, tokens/s of one node)
    "v5.1 32 MI300X + 16 MI325X offline": (169_197, [(4, 27_854.4), (2, 34_454.4)]),
    "v5.1 32 MI300X + 16 MI325X server": (153_076, [(4, 24_860.5), (2, 31_671.9)]),
    "v5.1 8 MI300X + 16 MI325X offline": (92_158.2, [(1, 27_854.4), (2, 34_454.4)]),
    "v5.1 8 MI300X + 16 MI325X server": (80_594.9, [(1, 24_860.5), (2, 31_671.9)]),
    "v6.0 8 MI300X + 8 MI325X + 8 MI355X offline": (151_843, [(1, 27_598.7), (1, 33_880.4), (1, 97_535.1)]),
    "v6.0 8 MI300X + 8 MI325X + 8 MI355X server": (141_521, [(1, 25_463.1), (1, 31_888.9), (1, 93_272.4)]),
}


@pytest.mark.parametrize("fleet", FLEETS)
def test_mixed_fleets_reach_the_band(compare, fleet: str) -> None:
    measured, nodes = FLEETS[fleet]
    parts = [(count, StageWorker(tokens)) for count, tokens in nodes]
    low, high = mixed_pool_rate(parts)
    compare(f"MLPerf {fleet}, tokens/s", measured, (low + high) / 2, 0.03, in_sample=True)
    assert MIXED_POOL_SHARE[0] <= round(measured / whole(nodes), 2) <= MIXED_POOL_SHARE[1]


@pytest.mark.parametrize("scenario", ["offline", "server"])
def test_the_share_of_v5_1_predicts_v6_0(compare, scenario: str) -> None:
    shares = [measured / whole(nodes) for fleet, (measured, nodes) in FLEETS.items() if fleet.startswith("v5.1")]
    fleet = f"v6.0 8 MI300X + 8 MI325X + 8 MI355X {scenario}"
    measured, nodes = FLEETS[fleet]
    compare(f"MLPerf {fleet}, tokens/s (share of v5.1)", measured, sum(shares) / len(shares) * whole(nodes), 0.03)


def whole(nodes: list[tuple[int, float]]) -> float:
    return sum(count * tokens for count, tokens in nodes)


def test_no_fleet_exceeds_its_parts() -> None:
    for measured, nodes in FLEETS.values():
        assert measured < whole(nodes)
