"""Routers, leases, residency, admission, fallback: small rules by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.serving.admission import Admission
from diptych.serving.fallback import Fallback, Way
from diptych.serving.ownership import Leases
from diptych.serving.request import Sequence
from diptych.serving.residency import Residency, Retention
from diptych.serving.router import Router, Routing


@dataclass
class Some:
    index: int
    load: int = 0
    up: bool = True


def test_round_robin_goes_round_those_who_are_up() -> None:
    workers = [Some(0), Some(1, up=False), Some(2)]
    router = Router(Routing.ROUND_ROBIN)
    assert [router.pick(workers, None).index for _ in range(4)] == [0, 2, 0, 2]


def test_least_loaded_breaks_ties_by_index() -> None:
    workers = [Some(0, 5), Some(1, 3), Some(2, 3)]
    assert Router(Routing.LEAST_LOADED).pick(workers, None).index == 1


def test_prefix_aware_weighs_what_is_left_to_compute() -> None:
    workers = [Some(0, 0), Some(1, 300)]
    request = Sequence(1, 1000, 5, ("a",))
    cached = {0: 0, 1: 900}
    router = Router(Routing.PREFIX_AWARE, lambda worker, _: cached[worker.index])
    assert router.pick(workers, request).index == 1
    workers[1].load = 1000
    assert router.pick(workers, request).index == 0


@pytest.mark.parametrize("routing", Routing)
def test_nobody_up_is_nobody(routing: Routing) -> None:
    assert Router(routing).pick([Some(0, up=False)], Sequence(1, 5, 5)) is None
    assert Router(routing).pick([], Sequence(1, 5, 5)) is None


def test_a_lease_ends_unless_it_is_renewed() -> None:
    leases = Leases(30)
    leases.grant("r", 1, 0)
    assert leases.renew("r", 1, 25)
    assert leases.valid("r", 1, 54)
    assert not leases.valid("r", 1, 55)
    assert not leases.renew("r", 1, 55), "a heartbeat after the end revives nothing"
    assert leases.expired(55) == ["r"]


def test_a_newer_epoch_fences_the_older_one() -> None:
    leases = Leases(30)
    leases.grant("r", 2, 0)
    assert leases.grant("r", 1, 5).epoch == 2
    assert not leases.valid("r", 1, 5)
    assert not leases.end("r", 1)
    assert leases.end("r", 2)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.integers(0, 100)), max_size=40))
def test_at_most_one_lease_is_live_per_key(grants: list[tuple[str, int, int]]) -> None:
    leases, highest = Leases(10), {}
    for key, epoch, now in grants:
        leases.grant(key, epoch, now)
        highest[key] = max(highest.get(key, 0), epoch)
        assert leases.held[key].epoch == highest[key]


def test_blocks_move_down_and_leave_at_the_end() -> None:
    tiers = Residency([2, 1])
    moves = tiers.demote(["a", "b", "c", "d"])
    assert [list(tier.blocks) for tier in tiers.tiers] == [["c", "d"], ["b"]]
    assert [(move.tier, move.blocks) for move in moves] == [(0, 4), (1, 2)]


def test_a_promoted_block_is_in_one_place() -> None:
    tiers = Residency([2, 2])
    tiers.demote(["a", "b", "c"])
    assert tiers.locate(["a", "b", "x", "c"]) == [1, 0]
    assert [(move.tier, move.blocks) for move in tiers.promote(["a", "b"])] == [(0, 1), (1, 1)]
    assert tiers.locate(["a"]) == []


def test_retention_decides_what_is_worth_keeping() -> None:
    assert Residency([4], Retention.NONE).demote(["a"]) == []
    reused = Residency([4], Retention.REUSED)
    assert reused.demote(["a"]) == []
    reused.found.add("a")
    assert [move.blocks for move in reused.demote(["a", "b"])] == [1]


class Seen:
    def __init__(self, ttft: float) -> None:
        self._ttft = ttft

    def ttft(self) -> float:
        return self._ttft

    def tpot(self, batch: float) -> float:
        return 0.01 * batch


def test_decode_is_judged_at_the_moment_of_the_handoff() -> None:
    """Ten run now and will be gone; naive rejection would refuse."""
    rule = Admission(ttft=5.0, tpot=0.06, decode_seconds=10.0)
    assert rule.admits(Seen(1.0), decoding=10, ahead=0, until_handoff=9.0)
    assert not Admission(5.0, 0.06, at_handoff=False).admits(Seen(1.0), 10, 0, 9.0)
    assert not rule.admits(Seen(6.0), 0, 0, 0.0)
    assert not rule.admits(Seen(1.0), decoding=0, ahead=10, until_handoff=9.0)


@pytest.mark.parametrize(
    ("prefill", "decode", "losses", "way"),
    [
        (True, True, 0, Way.APART), (False, True, 0, Way.ON_DECODE), (True, False, 0, Way.ON_PREFILL),
        (False, False, 0, Way.HOLD), (True, True, 4, Way.REFUSE),
    ],
)  # fmt: skip
def test_a_lost_request_finds_the_way_that_is_left(prefill: bool, decode: bool, losses: int, way: Way) -> None:
    assert Fallback().way(prefill, decode, losses) is way


def test_without_colocation_and_holding_a_gone_pool_refuses() -> None:
    assert Fallback(colocate=False, hold=False).way(False, True, 0) is Way.REFUSE
