"""Integer sizing of two pools, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from diptych.planner.balance import (
    Balance,
    Budget,
    StageWorker,
    above_and_below,
    balance,
    balanced_ratio,
    best_rate,
    best_split,
    cheapest,
    fewest,
    mixed_pool_rate,
    split_rate,
)

P, D = StageWorker(3.0, 1, 2.0, "X"), StageWorker(10.0, 2, 6.0, "Y")


def test_a_worker_more_only_when_needed() -> None:
    assert [P.needed(rate) for rate in (0.1, 3.0, 3.0 + 1e-12, 3.1, 9.0)] == [1, 1, 1, 2, 3]


def test_what_a_pair_says_of_itself() -> None:
    pair = Balance(P, D, 3, 1)
    assert (pair.rate, pair.accelerators, pair.usd_per_hour) == (9.0, 5, 12.0)
    assert pair.prefill_idle() == 0
    assert pair.decode_idle() == pytest.approx(0.1)
    assert pair.decode_idle(rate=5.0) == pytest.approx(0.5)
    assert pair.usd_per_million(100) == pytest.approx(12 / (9 * 100 * 3600) * 1e6)
    assert balanced_ratio(P, D) == pytest.approx(10 / 3)


def test_every_limit_of_a_budget_bounds() -> None:
    assert Budget(accelerators=7).most(D) == 3
    assert Budget(accelerators=7).most(D, P, 2) == 2
    assert Budget(usd_per_hour=20).most(D) == 3
    assert Budget(usd_per_hour=20).most(D, P, 5) == 1
    assert Budget(inventory={"Y": 5}).most(D, P, 100) == 2
    twin = StageWorker(1.0, 1, kind="Y")
    assert Budget(inventory={"Y": 5}).most(D, twin, 2) == 1  # both roles draw on the same kind
    assert Budget(accelerators=1).most(D, P, 3) == 0


def test_a_budget_must_bound_something() -> None:
    with pytest.raises(ValueError, match="bounds neither"):
        Budget().most(StageWorker(1.0))


def test_nothing_fits() -> None:
    assert balance(P, D, Budget(accelerators=2)) is None
    assert best_rate([P], [D], Budget(usd_per_hour=7)) is None


def test_among_equals_the_smaller_fleet() -> None:
    pair = balance(StageWorker(10.0), StageWorker(1.0), Budget(accelerators=8))
    assert pair is not None
    assert (pair.prefill_workers, pair.decode_workers) == (1, 7)
    capped = balance(StageWorker(10.0), StageWorker(1.0, kind="rare"), Budget(8, inventory={"rare": 2}))
    assert capped is not None
    assert (capped.prefill_workers, capped.decode_workers, capped.accelerators) == (1, 2, 3)


def test_fewest_and_cheapest_may_differ() -> None:
    big_and_dear, small_and_cheap = StageWorker(10.0, 1, 9.0), StageWorker(2.0, 1, 1.0)
    assert fewest(10.0, [big_and_dear, small_and_cheap], [D]).prefill_workers == 1
    assert cheapest(10.0, [big_and_dear, small_and_cheap], [D]).prefill_workers == 5


def test_split_rate_by_hand() -> None:
    assert split_rate(0.5, 2.0, 1.0, 10.0) == 2.0  # local bounds: 1/(1−0.5)
    assert split_rate(0.5, 1.0, 2.0, 10.0) == 2.0  # remote bounds
    assert split_rate(0.5, 9.0, 9.0, 3.0) == 3.0  # decode bounds
    assert split_rate(np.array([0.0, 1.0]), 0.0, 4.0, 10.0).tolist() == [4.0, 0.0]
    assert split_rate(0.0, 0.0, 4.0, 10.0) == 4.0  # nobody goes there, so its capacity does not matter


def test_above_and_below() -> None:
    isl, weight = np.array([30.0, 10.0, 20.0]), np.array([0.25, 0.5, 0.25])
    share, above, below = above_and_below(isl, weight, np.array([5, 10, 25, 99]))
    assert share == pytest.approx([1.0, 0.5, 0.25, 0.0])
    assert above == pytest.approx([17.5, 25.0, 30.0, 99.0])
    assert below == pytest.approx([5.0, 10.0, 40 / 3, 17.5])


def test_best_split_tries_every_threshold_and_division() -> None:
    share, remote, local = np.array([0.8, 0.5, 0.2]), np.array([2.0, 2.2, 2.4]), np.array([0.5, 1.0, 1.5])
    best = max(
        min(remote[t] / share[t], n / local[t] / (1 - share[t]), (6 - n) * 1.5) for t in range(3) for n in range(6)
    )
    split = best_split(np.array([1.0, 2.0, 3.0]), share, remote, local, 1.5, 6)
    assert split.rate == pytest.approx(best)
    assert split.prefill_workers + split.decode_workers == 6


def test_mixed_pools_lose_some_of_their_sum() -> None:
    low, high = mixed_pool_rate([(2, StageWorker(3.0)), (1, StageWorker(4.0))])
    assert (low, high) == pytest.approx((9.1, 9.5))
