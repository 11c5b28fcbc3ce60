"""Laws of the handoff between processes, in a world of trouble: 300 seeds here, 20,000 by `make test-long`."""

import pytest
from protocol_world import Trouble, World

CALM = Trouble(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("seed", range(0, 300, 50))
def test_every_law_holds_whatever_happens(seed):
    for each in range(seed, seed + 50):
        World(each).run()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 21_000, 250))
def test_every_law_holds_in_twenty_thousand_worlds(seed):
    for each in range(seed, seed + 250):
        World(each).run()


def test_without_trouble_everyone_is_served():
    for seed in range(40):
        world = World(seed, CALM).run()
        assert {job.outcome for job in world.jobs.values()} <= {"length", "client gone"}


def test_trouble_is_real():
    """A run in which nothing happened proves nothing: across seeds there are retries, refusals and full answers."""
    outcomes = {job.outcome for seed in range(60) for job in World(seed).run().jobs.values()}
    assert {"length", "client gone"} < outcomes


@pytest.mark.parametrize("seed", [3, 17])
def test_one_seed_is_one_history(seed):
    first, second = World(seed).run(), World(seed).run()
    assert [job.seen for job in first.jobs.values()] == [job.seen for job in second.jobs.values()]
    assert first.number == second.number
