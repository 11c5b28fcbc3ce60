"""Layouts, block sizes and page strides: every element arrives where it belongs, and nothing else is touched."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from diptych.boundary.codecs.refusals import WrongLength
from diptych.boundary.descriptor import Layout
from diptych.boundary.layout import empty_pool, logical, permuted
from diptych.boundary.regroup import Paged, Pages, copy_pages, gathered, regroup, scattered
from diptych.errors import InvalidInput

KNOWN = [layout for layout in Layout if layout is not Layout.UNKNOWN]


@pytest.mark.parametrize(("origin", "wanted"), list(itertools.product(KNOWN, KNOWN)), ids=str)
def test_a_permuted_pool_holds_each_element_at_its_new_place(origin: Layout, wanted: Layout) -> None:
    sizes = {"L": 2, "B": 3, "N": 4, "H": 5, "C": 6}
    pool = np.arange(720).reshape([sizes[letter] for letter in origin])
    moved = permuted(pool, origin, wanted)
    place = {"L": 1, "B": 2, "N": 3, "H": 4, "C": 5}
    here, there = (tuple(place[letter] for letter in layout) for layout in (origin, wanted))
    assert moved[there] == pool[here]
    assert moved.flags.c_contiguous
    np.testing.assert_array_equal(permuted(moved, wanted, origin), pool)


def test_the_engines_aliases_are_the_same_orders() -> None:
    pool = np.arange(2 * 3 * 4 * 16 * 8).reshape(2, 3, 4, 16, 8)  # HND: layers, blocks, heads, tokens, dim
    assert permuted(pool, Layout.of("HND"), Layout.of("NHD")).shape == (2, 3, 16, 4, 8)
    assert permuted(pool, Layout.of("HND"), Layout.LBHNC) is pool


def test_what_no_engine_states_is_refused() -> None:
    pool = np.zeros((1,) * 5)
    for origin, wanted in (
        (Layout.UNKNOWN, Layout.UNKNOWN),
        (Layout.UNKNOWN, Layout.LBHNC),
        (Layout.LBHNC, Layout.UNKNOWN),
    ):
        with pytest.raises(InvalidInput, match="unknown"):
            permuted(pool, origin, wanted)
    with pytest.raises(WrongLength, match="4 dimensions"):
        logical(np.zeros((1,) * 4), Layout.LBHNC)


def paged(layout: Layout, block: int, tokens: int, seed: int, spare: int = 3) -> Paged:
    """A request in shuffled blocks of a pool that holds minus one everywhere."""
    count = -(-tokens // block)
    pool = empty_pool(layout, 2, count + spare, block, 3, 4, np.dtype(np.int32))
    pool -= 1
    table = tuple(int(number) for number in np.random.default_rng(seed).permutation(count + spare)[:count])
    return Paged(pool, layout, table, tokens)


def write(request: Paged, values: np.ndarray) -> None:
    size = request.view.shape[2]
    for token in range(request.tokens):
        request.view[:, request.table[token // size], token % size] = values[:, token]


def read(request: Paged) -> np.ndarray:
    size = request.view.shape[2]
    return np.stack([request.view[:, request.table[t // size], t % size] for t in range(request.tokens)], axis=1)


@pytest.mark.parametrize(
    ("origin", "wanted"), [(a, b) for a in (Layout.LBHNC, Layout.BHLNC, Layout.LBNHC) for b in KNOWN]
)
@pytest.mark.parametrize(("have", "room"), [(16, 32), (32, 64), (64, 16), (16, 16), (48, 32)])
@pytest.mark.parametrize("tokens", [1, 16, 31, 97, 128])
def test_regrouped_tokens_are_the_request_and_only_it(
    origin: Layout, wanted: Layout, have: int, room: int, tokens: int
) -> None:
    source, target = paged(origin, have, tokens, 1), paged(wanted, room, tokens, 2)
    values = np.arange(2 * tokens * 3 * 4, dtype=np.int32).reshape(2, tokens, 3, 4)
    write(source, values)
    regroup(source, target)
    np.testing.assert_array_equal(read(target), values)
    assert np.count_nonzero(target.pool >= 0) == values.size, "something behind the last token was written"


@pytest.mark.parametrize(
    ("table", "tokens", "says"),
    [
        ((0, 1), 33, "2 blocks"),
        ((0, 1), 16, "2 blocks"),
        ((0, 7), 32, "names"),
        ((0, -1), 32, "names"),
        ((1, 1), 32, "twice"),
    ],
)
def test_a_table_that_is_not_the_requests_is_refused(table: tuple[int, ...], tokens: int, says: str) -> None:
    pool = empty_pool(Layout.LBNHC, 1, 4, 16, 2, 8, np.dtype(np.uint8))
    with pytest.raises(InvalidInput, match=says):
        Paged(pool, Layout.LBNHC, table, tokens)


def test_pools_of_another_kind_are_refused() -> None:
    source = Paged(empty_pool(Layout.LBNHC, 1, 4, 16, 2, 8, np.dtype(np.uint16)), Layout.LBNHC, (0,), 16)
    for heads, width, dtype, tokens in ((3, 8, "u2", 16), (2, 9, "u2", 16), (2, 8, "f4", 16), (2, 8, "u2", 15)):
        pool = empty_pool(Layout.LBNHC, 1, 4, 32, heads, width, np.dtype(dtype))
        with pytest.raises(WrongLength):
            regroup(source, Paged(pool, Layout.LBNHC, (0,), tokens))


def test_values_scatter_into_pools_and_gather_again() -> None:
    values = np.arange(2 * 2 * 37 * 3 * 4, dtype=np.int32).reshape(2, 2, 37, 3, 4)
    pools = [paged(Layout.BHLNC, 16, 37, 1), paged(Layout.BHLNC, 16, 37, 2)]
    scattered(values, pools)
    np.testing.assert_array_equal(read(pools[1]), values[:, 1])
    np.testing.assert_array_equal(gathered(pools), values)
    for wrong in (values[:, :1], values[0], values[:, :, :36]):
        with pytest.raises(WrongLength):
            scattered(wrong, pools)


STRIDE_P, STRIDE_D, PAYLOAD = 131_072, 147_456, 131_072


def test_pages_of_two_strides() -> None:
    """A device that pads its pages and one that does not (Ascend 910B to H20): no byte outside a page."""
    source = np.random.default_rng(1).integers(0, 255, 4 * STRIDE_P, np.uint8)
    target = np.full(5 * STRIDE_D, 255, np.uint8)
    copy_pages(Pages(source, STRIDE_P, 4), (3, 0, 1), Pages(target, STRIDE_D, 5), (0, 2, 4), PAYLOAD)
    pages = target.reshape(5, STRIDE_D)
    for origin, place in ((3, 0), (0, 2), (1, 4)):
        assert pages[place, :PAYLOAD].tobytes() == source[origin * STRIDE_P :][:PAYLOAD].tobytes()
    assert (pages[:, PAYLOAD:] == 255).all(), "the padding was written"
    assert (pages[[1, 3]] == 255).all(), "a page that was not named was written"
    back = np.zeros_like(source)
    copy_pages(Pages(target, STRIDE_D, 5), (0, 2, 4), Pages(back, STRIDE_P, 4), (3, 0, 1), PAYLOAD)
    assert back.reshape(4, -1)[[0, 1, 3]].tobytes() == source.reshape(4, -1)[[0, 1, 3]].tobytes()


@pytest.mark.parametrize(
    ("source_ids", "target_ids", "payload", "says"),
    [
        ((0,), (0,), STRIDE_D, "smaller page"),
        ((0,), (0,), 0, "smaller page"),
        ((0, 1), (0,), PAYLOAD, "2 read, 1 written"),
        ((4,), (0,), PAYLOAD, "source pages"),
        ((0,), (5,), PAYLOAD, "target pages"),
        ((0, 1), (2, 2), PAYLOAD, "twice"),
    ],
)
def test_pages_beyond_a_buffer_are_refused(
    source_ids: tuple[int, ...], target_ids: tuple[int, ...], payload: int, says: str
) -> None:
    source, target = np.zeros(4 * STRIDE_P, np.uint8), np.zeros(5 * STRIDE_D, np.uint8)
    with pytest.raises(InvalidInput, match=says):
        copy_pages(Pages(source, STRIDE_P, 4), source_ids, Pages(target, STRIDE_D, 5), target_ids, payload)
    assert not target.any()


def test_a_buffer_shorter_than_its_pages_is_refused() -> None:
    with pytest.raises(WrongLength, match="4 pages"):
        Pages(np.zeros(4 * STRIDE_P - 1, np.uint8), STRIDE_P, 4)
