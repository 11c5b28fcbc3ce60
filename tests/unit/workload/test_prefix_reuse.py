"""Prefix reuse by hand, and against a dull LRU cache that is filled and emptied block by block."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.workload.reuse import Reuse, block_size, measure_reuse

BLOCK = 16


def measure(requests: list[list[int]], partial: int = 0) -> Reuse:
    counts = np.array([len(ids) for ids in requests], np.int64)
    isl = np.maximum(counts * BLOCK - partial, 1).astype(float)
    return measure_reuse(np.array([block for ids in requests for block in ids], np.uint64), counts, isl)


def dull_hits(requests: list[list[int]], capacity: float) -> list[int]:
    """Leading blocks found in a cache of `capacity` blocks, request by request; the tail of a request is touched first."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for ids in requests:
        found = 0
        while found < len(ids) and ids[found] in cache:
            found += 1
        hits.append(found)
        for block in reversed(ids):
            cache.pop(block, None)
            cache[block] = None
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def test_by_hand() -> None:
    # Request 2 shares two of three blocks, request 4 comes back to request 1 after five other blocks were touched.
    reuse = measure([[1, 2, 3], [1, 2, 4], [7, 8, 9], [1, 2, 3]])
    assert reuse.block == BLOCK
    assert list(reuse.cached()) == [0, 2 * BLOCK, 0, 3 * BLOCK]
    assert reuse.hit_ratio() == pytest.approx(5 / 12)
    # In request 4, block 1 lies under 7, 8, 9 (depth 3), block 2 one deeper, block 3 under block 4 as well (depth 6).
    assert list(reuse.depth[-3:]) == [3, 4, 6]
    assert [reuse.cached(blocks * BLOCK)[-1] / BLOCK for blocks in (3, 4, 5, 6, 7)] == [0, 1, 2, 2, 3]


def test_a_partial_last_block_counts_its_own_tokens() -> None:
    reuse = measure([[1, 2], [1, 2]], partial=6)
    assert list(reuse.cached()) == [0, 2 * BLOCK - 6]


def test_prefix_ends_at_the_first_miss() -> None:
    reuse = measure([[1, 2, 3], [1, 9, 3]])
    assert list(reuse.cached()) == [0, BLOCK]


def test_requests_without_blocks() -> None:
    reuse = measure_reuse(np.array([5, 5], np.uint64), np.array([0, 1, 0, 1]), np.array([7.0, 16.0, 9.0, 16.0]))
    assert list(reuse.cached()) == [0, 0, 0, 16]


@pytest.mark.parametrize("size", [16, 64, 512])
@pytest.mark.parametrize("rounding", [np.ceil, np.floor])
def test_block_size_from_counts(size: int, rounding) -> None:
    isl = np.random.default_rng(1).integers(size, 90 * size, 200).astype(float)
    assert block_size(rounding(isl / size).astype(np.int64), isl) == size


requests = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True), min_size=1, max_size=30)
chains = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=40).map(
    lambda rows: [[100 * (depth + 1) + tree * (depth > 1) for depth in range(length)] for tree, length in rows]
)


@settings(deadline=None)
@given(st.one_of(requests, chains), st.integers(0, 16))
def test_equals_the_dull_cache(ids: list[list[int]], capacity: int) -> None:
    reuse = measure(ids)
    # Of any requests, dull caches may keep a child whose parent is gone; ours never counts it, nor does theirs reach it.
    assert list(reuse.cached(capacity * reuse.block) / reuse.block) == dull_hits(ids, capacity)


@settings(deadline=None)
@given(st.one_of(requests, chains))
def test_without_limit_equals_everything_seen(ids: list[list[int]]) -> None:
    reuse = measure(ids)
    assert list(reuse.cached() / reuse.block) == dull_hits(ids, np.inf)
