"""Ranks of a prefill worker that hand their heads to the ranks of a decode worker of another number of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from joints import KEY, Worker, values

from diptych.boundary.descriptor import Shard
from diptych.integrations.vllm.host import Rank
from diptych.integrations.vllm.jobs import Fetch, Keep, Made, Make

TOKENS = 77


class Group:
    """One worker's ranks, each with its own heads of the model."""

    def __init__(
        self, name: str, ranks: int, heads: int, tokens: int, dtype: str = "torch.float32", **settings
    ) -> None:
        self.shard, self.total = Shard(tp=ranks), heads
        mine = max(1, heads // ranks)
        self.ranks = [
            Worker(tokens, dtype, heads=mine, total=heads, rank=Rank(name, number, ranks), **settings)
            for number in range(ranks)
        ]

    def heads(self, rank: int) -> list[int]:
        return list(self.shard.heads(rank, self.total))

    def put(self, told: np.ndarray, blocks: list[int]) -> None:
        for number, rank in enumerate(self.ranks):
            rank.put(told[:, :, :, self.heads(number)], blocks)

    def check(self, told: np.ndarray, blocks: list[int]) -> None:
        for number, rank in enumerate(self.ranks):
            np.testing.assert_array_equal(rank.get(told.shape[2], blocks), told[:, :, :, self.heads(number)])

    def places(self) -> tuple:
        return tuple(rank.place for rank in self.ranks)


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    made: list[Group] = []
    yield made
    for group in made:
        for rank in group.ranks:
            rank.joint.close()


SIZES = [(1, 2, 4), (2, 1, 4), (2, 2, 4), (2, 4, 4), (4, 2, 4), (4, 1, 2), (1, 4, 2), (4, 2, 1), (2, 4, 2), (3, 1, 3)]


@pytest.mark.parametrize(("prefill", "decode", "heads"), SIZES)
@pytest.mark.parametrize("other", [False, True], ids=["alike", "converted"])
def test_every_rank_gets_its_heads(groups, prefill, decode, heads, other) -> None:
    first = Group("p", prefill, heads, 32)
    second = Group("d", decode, heads, *((64, "torch.float16") if other else (32,)))
    groups += [first, second]
    told, there, here = values(TOKENS, heads=heads), [5, 2, 9], [3, 7, 1][: 2 if other else 3]
    first.put(told, there)
    for rank in first.ranks:
        rank.joint.keep(Keep(KEY, "p", tuple(there), TOKENS))
    for rank in second.ranks:
        rank.joint.fetch(Fetch(KEY, "d", tuple(here), TOKENS, 0, ranks=first.places()))
    for rank in second.ranks:
        assert not rank.wait(received="d").failed
    second.check(told, here)
    for rank in first.ranks:  # those whose copies nobody takes are freed as well
        rank.wait(sent="p")
        assert rank.joint.leases == 0
    assert sum(rank.joint.counted()["received"] for rank in second.ranks) == 1
    assert sum(rank.joint.counted()["sent"] for rank in first.ranks) == 1


def test_ranks_that_cannot_share_the_heads_are_refused(groups) -> None:
    first, second = Group("p", 1, 3, 32), Group("d", 2, 3, 32)
    groups += [first, second]
    first.ranks[0].joint.keep(Keep(KEY, "p", (1,), 20))
    for rank in second.ranks:
        rank.joint.fetch(Fetch(KEY, "d", (1,), 20, 0, ranks=first.places()))
        assert rank.wait(received="d").failed == {"d"}
        assert any("cannot share" in line for line in rank.said)


def test_one_rank_that_is_gone_fails_the_prompt_on_both_and_frees_the_other(groups) -> None:
    first, second = Group("p", 2, 4, 32), Group("d", 1, 4, 32)
    groups += [first, second]
    for rank in first.ranks:
        rank.joint.keep(Keep(KEY, "p", (1,), 20))
    first.ranks[1].joint.close()
    second.ranks[0].joint.fetch(Fetch(KEY, "d", (1,), 20, 0, ranks=first.places()))
    assert second.ranks[0].wait(received="d").failed == {"d"}
    first.ranks[0].wait(sent="p")
    assert second.ranks[0].joint.counted()["open_transfers"] == 0


@pytest.mark.parametrize(("prefill", "decode", "heads"), [(2, 1, 4), (1, 2, 4), (4, 2, 2)])
def test_shares_are_pushed_once_every_rank_has_room(groups, free_ports, prefill, decode, heads) -> None:
    port = free_ports(prefill)
    first, second = Group("p", prefill, heads, 32, ownership="push", port=port), Group("d", decode, heads, 32)
    groups += [first, second]
    for rank in second.ranks:
        rank.joint.fetch(Fetch(KEY, "d", (1, 2, 3), TOKENS, 0, "same", meeting=f"tcp:127.0.0.1:{port}"))
    for rank in first.ranks:
        rank.joint.make(Make(KEY, "p", TOKENS, "same"))
    for rank in first.ranks:
        rank.wait(roomy="p")
    told = values(TOKENS, heads=heads)
    first.put(told, [4, 5, 6])
    for rank in first.ranks:
        for layer in range(3):
            rank.joint.made(Made(KEY, (4, 5, 6), TOKENS), layer)
        rank.joint.keep(Keep(KEY, "p", (4, 5, 6), TOKENS))
    for rank in second.ranks:
        assert not rank.wait(received="d").failed
    second.check(told, [1, 2, 3])
    for rank in first.ranks:
        rank.wait(sent="p")
