"""A whole handoff: two prefill ranks with bf16 blocks of 16 tokens, four decode ranks with other blocks, format and order."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from diptych.boundary.codecs.codec import Codec
from diptych.boundary.codecs.stored import KvShape, StoredKV
from diptych.boundary.descriptor import Layout, Shard
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format
from diptych.boundary.layout import empty_pool
from diptych.boundary.regroup import Paged, gathered, scattered
from diptych.boundary.reshard import reshard_plan, reshard_stored, shortfall

LAYERS, TOKENS, HEADS, DIM = 3, 83, 4, 32
PREFILL, DECODE = Shard(tp=2), Shard(tp=4)
BF16 = Format(Element.BF16)


def whole_request() -> NDArray[np.float32]:
    values = np.random.default_rng(11).standard_normal((LAYERS, 2, TOKENS, HEADS, DIM)).astype(np.float32)
    values[:, 0, :, 1, 3] *= 40  # an outlier channel of one key head
    return values


def pools(layout: Layout, block: int, heads: int, width: int, dtype: np.dtype) -> list[Paged]:
    """One pool for keys and one for values, the request in blocks out of order."""
    count = -(-TOKENS // block)
    table = tuple(range(count, 0, -1))
    return [
        Paged(empty_pool(layout, LAYERS, count + 2, block, heads, width, dtype), layout, table, TOKENS)
        for _ in range(2)
    ]


@pytest.mark.parametrize("element", [Element.E4M3FN, Element.E4M3FNUZ, Element.INT8, Element.INT4], ids=str)
@pytest.mark.parametrize("compressed", [False, True])
def test_every_value_arrives_on_its_rank_within_the_bound(element: Element, compressed: bool) -> None:
    values = whole_request()
    wire = Format(element, Scaling(ScaleSource.INLINE, ScaleGranularity.TOKEN))
    codec = Codec(BF16, wire, compressed)

    sent: list[StoredKV] = []
    for rank in range(PREFILL.tp):
        mine = values[:, :, :, [*PREFILL.heads(rank, HEADS)]].astype(ml_dtypes.bfloat16)
        held = pools(Layout.of("HND"), 16, 2, DIM, mine.dtype)
        scattered(mine, held)
        encoded = codec.encode(gathered(held))
        shape = KvShape(LAYERS, 2, TOKENS, 2, DIM)
        sent.append(codec.received(shape, b"".join(bytes(each) for each in codec.payload(encoded))))

    pieces = reshard_plan(PREFILL, DECODE, HEADS)
    assert not shortfall(pieces, DECODE, HEADS)
    for rank, arrived in enumerate(reshard_stored(sent, pieces, DECODE, HEADS)):
        width = arrived.array.shape[-1]
        held = pools(Layout.of("NHD"), 32, 1, width, arrived.array.dtype)
        scattered(arrived.array, held)
        assert gathered(held).tobytes() == arrived.codes.tobytes()
        decoded = codec.decode(arrived).array.astype(np.float64)
        wanted = values[:, :, :, [*DECODE.heads(rank, HEADS)]].astype(ml_dtypes.bfloat16).astype(np.float64)
        scales = arrived.scales.view(np.float32).reshape(LAYERS, 2, TOKENS, 1, 1)
        assert (np.abs(decoded - wanted) <= codec.bound.error(wanted, scales)).all()
