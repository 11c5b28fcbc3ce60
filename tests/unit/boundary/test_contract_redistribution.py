"""Every redistribution that a contract plans has the code that carries it out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from diptych.boundary.contract import Verdict, contract
from diptych.boundary.describe import describe
from diptych.boundary.descriptor import KVState, Layout, Shard
from diptych.boundary.layout import permuted
from diptych.boundary.reshard import reshard_plan, shortfall
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision

MODEL = Catalog.load().model("Qwen3-32B")
KNOWN = [layout for layout in Layout if layout is not Layout.UNKNOWN]


def state(tp: int, layout: Layout = Layout.LBHNC) -> KVState:
    return describe(MODEL, Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16), Parallelism(tp), layout=layout)


@pytest.mark.parametrize(("prefill", "decode"), list(product((1, 2, 4, 8, 16, 32), repeat=2)))
def test_every_pair_of_tp_that_is_accepted_can_be_resharded(prefill: int, decode: int) -> None:
    found = contract(state(prefill), state(decode))
    assert found.verdict is (Verdict.CONSUME if prefill == decode else Verdict.REDISTRIBUTE)
    pieces = reshard_plan(Shard(tp=prefill), Shard(tp=decode), 8)
    assert not shortfall(pieces, Shard(tp=decode), 8)


@pytest.mark.parametrize(("origin", "wanted"), list(product(KNOWN, repeat=2)))
def test_every_pair_of_layouts_that_is_accepted_can_be_permuted(origin: Layout, wanted: Layout) -> None:
    assert contract(state(2, origin), state(2, wanted)).is_usable
    sizes = dict(zip("LBHNC", (2, 3, 4, 5, 6), strict=True))
    pool = np.arange(720).reshape([sizes[letter] for letter in origin])
    there = permuted(pool, origin, wanted)
    assert there.shape == tuple(sizes[letter] for letter in wanted)
    np.testing.assert_array_equal(permuted(there, wanted, origin), pool)
