"""Heads from prefill's ranks to decode's: every distinct head once, copies or not."""

from __future__ import annotations

import numpy as np
import pytest

from diptych.boundary.codecs.convert import convert
from diptych.boundary.codecs.refusals import NotRepresentable, WrongLength
from diptych.boundary.codecs.stored import StoredKV
from diptych.boundary.descriptor import Shard
from diptych.boundary.element import Element as E
from diptych.boundary.element import ScaleGranularity as G
from diptych.boundary.element import ScaleSource, Scaling
from diptych.boundary.format import Format
from diptych.boundary.reshard import rank_map, received_bytes, reshard, reshard_plan, reshard_stored, shortfall
from diptych.errors import InvalidInput

SIZES = (1, 2, 4, 8, 16)


def held(values: np.ndarray, shard: Shard) -> list[np.ndarray]:
    """What each rank holds of (layers, parts, tokens, heads, dim)."""
    heads = values.shape[3]
    return [values[:, :, :, [*shard.heads(rank, heads)]] for rank in range(shard.tp)]


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("prefill", SIZES)
@pytest.mark.parametrize("decode", SIZES)
def test_every_rank_gets_its_heads_once(kv_heads: int, prefill: int, decode: int) -> None:
    values = np.arange(2 * 2 * 3 * kv_heads * 4).reshape(2, 2, 3, kv_heads, 4)
    mine, theirs = Shard(tp=prefill), Shard(tp=decode)
    pieces = reshard_plan(mine, theirs, kv_heads)
    assert not shortfall(pieces, theirs, kv_heads)
    made = reshard(held(values, mine), pieces, theirs, kv_heads)
    for got, wanted in zip(made, held(values, theirs), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_eight_ranks_of_four_heads_to_one() -> None:
    """A map of decode rank 0 to prefill rank 0 alone moves a quarter of it, and the request was marked ready all the same."""
    head_bytes, one = 65_536, Shard(tp=1)
    pieces = reshard_plan(Shard(tp=8), one, 4)
    assert rank_map(pieces) == {0: (0, 2, 4, 6)}
    assert received_bytes(pieces, head_bytes) == {0: 262_144}
    assert received_bytes(pieces[:1], head_bytes) == {0: 65_536}
    assert [str(finding) for finding in shortfall(pieces[:1], one, 4)] == [
        f"decode rank 0: head {head} arrives 0 times; expected 1" for head in (1, 2, 3)
    ]


def test_a_head_that_arrives_twice_is_no_more_ready() -> None:
    pieces = reshard_plan(Shard(tp=2), Shard(tp=1), 2)
    assert "arrives 2 times" in str(shortfall([*pieces, pieces[0]], Shard(tp=1), 2)[0])
    with pytest.raises(WrongLength):
        reshard([np.zeros((1, 1, 1, 1, 4))] * 2, [*pieces, pieces[0]], Shard(tp=1), 2)


def test_takers_of_one_head_spread_over_its_copies() -> None:
    assert rank_map(reshard_plan(Shard(tp=8), Shard(tp=8), 4)) == {rank: (rank,) for rank in range(8)}
    assert rank_map(reshard_plan(Shard(tp=4), Shard(tp=8), 2)) == {
        0: (0,), 1: (1,), 2: (0,), 3: (1,), 4: (2,), 5: (3,), 6: (2,), 7: (3,)
    }  # fmt: skip


def test_a_latent_goes_whole_to_every_rank() -> None:
    assert rank_map(reshard_plan(Shard(tp=2), Shard(tp=4), 1)) == {0: (0,), 1: (1,), 2: (0,), 3: (1,)}


@pytest.mark.parametrize(("prefill", "decode", "heads"), [(3, 1, 4), (1, 3, 4), (6, 6, 4), (1, 1, 0)])
def test_ranks_that_cannot_share_the_heads_are_refused(prefill: int, decode: int, heads: int) -> None:
    with pytest.raises(InvalidInput, match="cannot share"):
        reshard_plan(Shard(tp=prefill), Shard(tp=decode), heads)


def test_a_rank_that_lacks_its_heads_is_refused() -> None:
    pieces = reshard_plan(Shard(tp=2), Shard(tp=1), 4)
    with pytest.raises(WrongLength, match="rank 1"):
        reshard([np.zeros((1, 1, 1, 2, 4)), np.zeros((1, 1, 1, 1, 4))], pieces, Shard(tp=1), 4)
    with pytest.raises(WrongLength, match="rank 1"):
        reshard([np.zeros((1, 1, 1, 2, 4))], pieces, Shard(tp=1), 4)


def _inline(element: E, granularity: G, group: int = 0) -> Format:
    return Format(element, Scaling(ScaleSource.INLINE, granularity, group=group))


@pytest.mark.parametrize(
    "form",
    [Format(E.BF16), _inline(E.E4M3FN, G.HEAD), _inline(E.INT8, G.TOKEN), _inline(E.INT4, G.GROUP, 16)],
    ids=str,
)
def test_scales_move_with_their_heads(form: Format) -> None:
    values = np.random.default_rng(1).standard_normal((2, 2, 5, 4, 32)).astype(np.float32)
    mine, theirs = Shard(tp=8), Shard(tp=2)
    ranks = [convert(StoredKV.of(part), form) for part in held(values, mine)]
    made = reshard_stored(ranks, reshard_plan(mine, theirs, 4), theirs, 4)
    for got, wanted in zip(made, held(values, theirs), strict=True):
        whole = convert(StoredKV.of(wanted), form)
        assert got.codes.tobytes() == whole.codes.tobytes()
        assert got.scales.tobytes() == whole.scales.tobytes()


@pytest.mark.parametrize("form", [_inline(E.INT8, G.TENSOR), _inline(E.NVFP4, G.GROUP, 16)], ids=str)
def test_scales_of_a_whole_rank_cannot_be_torn_apart(form: Format) -> None:
    values = np.ones((1, 1, 2, 2, 16), np.float32)
    ranks = [convert(StoredKV.of(part), form) for part in held(values, Shard(tp=2))]
    with pytest.raises(NotRepresentable, match="per-head"):
        reshard_stored(ranks, reshard_plan(Shard(tp=2), Shard(tp=1), 2), Shard(tp=1), 2)


def test_ranks_that_differ_in_format_are_refused() -> None:
    values = np.ones((1, 1, 2, 1, 16), np.float32)
    ranks = [StoredKV.of(values), convert(StoredKV.of(values), Format(E.BF16))]
    with pytest.raises(WrongLength, match="differ"):
        reshard_stored(ranks, reshard_plan(Shard(tp=2), Shard(tp=1), 2), Shard(tp=1), 2)
