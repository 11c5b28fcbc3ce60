"""Pools of KV blocks in the orders that engines keep them, and one order as another.

A pool is one part's array (keys, values or a latent) with a dimension for each letter of its `Layout`: L layers, B blocks, N
tokens of a block, H heads, C elements of one head. Elements of four bits are pairs: C counts bytes then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.boundary.codecs.refusals import WrongLength
from diptych.boundary.descriptor import Layout
from diptych.errors import Finding, InvalidInput

Array = NDArray[Any]

TOKENS_FIRST = "LBNHC"
"""The order of `logical`: a block's tokens before its heads."""


def logical(pool: Array, layout: Layout) -> Array:
    """The pool as (layers, blocks, tokens, heads, elements): a view, through which it can be written.

    Raises:
        InvalidInput: the layout is unknown. WrongLength: the pool has not its five dimensions.
    """
    if layout is Layout.UNKNOWN:
        raise InvalidInput(Finding("layout", "is unknown", "one that the engine states"))
    if pool.ndim != len(layout):
        raise WrongLength(Finding("pool", f"has {pool.ndim} dimensions", f"{len(layout)} for {layout}"))
    return pool.transpose([layout.index(letter) for letter in TOKENS_FIRST])


def permuted(pool: Array, origin: Layout, wanted: Layout) -> Array:
    """The pool in another order: every element kept, contiguous, the same array where the orders are one.

    >>> permuted(np.zeros((2, 9, 4, 16, 64)), Layout.of("HND"), Layout.of("NHD")).shape
    (2, 9, 16, 4, 64)
    """
    if origin is wanted and origin is not Layout.UNKNOWN:
        return pool
    order = _order(wanted)
    return np.ascontiguousarray(logical(pool, origin).transpose(order))


def empty_pool(
    layout: Layout, layers: int, blocks: int, block_tokens: int, heads: int, width: int, dtype: np.dtype[Any]
) -> Array:
    """Room for a pool in the order of `layout`, all zero."""
    sizes = dict(zip(TOKENS_FIRST, (layers, blocks, block_tokens, heads, width), strict=True))
    logical(np.empty((0,) * 5), layout)
    return np.zeros([sizes[letter] for letter in layout], dtype)


def _order(layout: Layout) -> list[int]:
    if layout is Layout.UNKNOWN:
        raise InvalidInput(Finding("layout", "is unknown", "one that the engine states"))
    return [TOKENS_FIRST.index(letter) for letter in layout]
