"""How much of the prompts a prefix cache would hold, for every cache size at once.

A request's blocks form a chain, so the cached part of a prompt is its leading blocks that are still resident. An LRU cache
of C blocks holds the C blocks touched last: a block is resident if its stack distance, the number of distinct blocks touched
since, is below C (Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970). One pass
gives the distance of every touch and with it the exact hit ratio of every capacity.
Within a request the last block counts as touched first, as engines free blocks from the tail: no parent goes before its child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_TOUCHES = 10_000_000  # block touches held while measuring, at about 100 bytes each
NEVER = np.iinfo(np.int64).max
_INT = NDArray[np.int64]
_FLOAT = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Reuse:
    """Prefix reuse of one trace.

    `depth` (m,) is the stack distance of each block touch in blocks, the largest so far within its request, `NEVER` for a first
    touch; `tokens` (m,) its prompt tokens; `request` (m,) the request it belongs to; `total` all prompt tokens.
    """

    block: int
    depth: _INT
    tokens: _FLOAT
    request: _INT
    requests: int
    total: float
    distinct: int

    def hit_ratio(self, capacity_tokens: float = np.inf) -> float:
        """Share of prompt tokens found in an LRU cache of that many tokens; without one, in a cache that never forgets."""
        return float(np.sum(self.tokens[self._hits(capacity_tokens)]) / self.total)

    def cached(self, capacity_tokens: float = np.inf) -> _FLOAT:
        """Cached tokens of each request, shape (requests,)."""
        hits = self._hits(capacity_tokens)
        return np.bincount(self.request[hits], weights=self.tokens[hits], minlength=self.requests).astype(np.float64)

    def curve(self, capacities: Sequence[float]) -> tuple[tuple[float, float], ...]:
        """(capacity in tokens, hit ratio) pairs of an LRU cache."""
        return tuple((capacity, self.hit_ratio(capacity)) for capacity in capacities)

    def _hits(self, capacity_tokens: float) -> NDArray[np.bool_]:
        blocks = NEVER if np.isinf(capacity_tokens) else int(capacity_tokens // self.block)
        return self.depth < blocks


def measure_reuse(ids: NDArray[np.uint64], counts: _INT, isl: _FLOAT) -> Reuse:
    """Prefix reuse from the block hashes of all requests in order.

    `ids` (m,) are the hashes, request after request; `counts` (n,) how many each request has; `isl` (n,) its prompt tokens.
    """
    block = block_size(counts, isl)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    request = np.repeat(np.arange(len(counts)), counts)
    index = np.arange(len(ids)) - starts[request]
    tokens = np.clip(isl[request] - index * block, 0, block).astype(np.float64)
    _, dense = np.unique(ids, return_inverse=True)
    depth = _running_max(_stack_distances(dense.astype(np.int64), counts, starts, request, index), starts, counts)
    return Reuse(block, depth, tokens, request, len(counts), float(isl.sum()), int(dense.max(initial=-1)) + 1)


def block_size(counts: _INT, isl: _FLOAT) -> int:
    """Tokens per block: the power of two nearest to tokens over blocks, counting a last partial block as half."""
    blocks = float(counts.sum())
    if not blocks:
        return 1
    per_block = float(isl[counts > 0].sum()) / blocks
    candidates = 2 ** np.arange(0, 15)
    fits = [np.mean(np.abs(counts * size - isl) <= size) for size in candidates]
    best = np.flatnonzero(np.isclose(fits, np.max(fits)))
    return int(candidates[best[np.argmin(np.abs(np.log(candidates[best] / per_block)))]])


def _stack_distances(dense: _INT, counts: _INT, starts: _INT, request: _INT, index: _INT) -> _INT:
    """Distinct blocks touched since each block's last touch before its request began; `NEVER` if there was none."""
    total = len(dense)
    place = starts[request] + counts[request] - 1 - index  # touched from the tail
    order = np.empty(total, np.int64)
    order[place] = dense
    previous = _previous(order)
    begins = starts[request]  # the same for all touches of a request, in whichever order
    asked = np.flatnonzero((previous >= 0) & (previous < begins))
    distance = np.full(total, NEVER)
    later = _count_greater(previous, begins[asked], previous[asked])
    distance[asked] = begins[asked] - previous[asked] - 1 - later
    placed: _INT = distance[place]
    return placed


def _previous(order: _INT) -> _INT:
    """Place of the touch of the same block before this one, −1 for the first."""
    by_block = np.lexsort((np.arange(len(order)), order))
    previous = np.full(len(order), -1, np.int64)
    same = order[by_block[1:]] == order[by_block[:-1]]
    previous[by_block[1:][same]] = by_block[:-1][same]
    return previous


def _count_greater(values: _INT, ends: _INT, floors: _INT) -> _INT:
    """For each query, how many of `values[:end]` are above `floor`: a wavelet matrix, all queries level by level."""
    shifted, wanted = values + 1, floors + 1
    lows, highs = np.zeros(len(ends), np.int64), ends.astype(np.int64)
    above = np.zeros(len(ends), np.int64)
    for bit in range(int(shifted.max(initial=0)).bit_length() - 1, -1, -1):
        ones = (shifted >> bit) & 1
        rank = np.concatenate([[0], np.cumsum(ones)])
        ones_low, ones_high, zeros = rank[lows], rank[highs], len(shifted) - int(rank[-1])
        is_one = ((wanted >> bit) & 1).astype(bool)
        above += np.where(is_one, 0, ones_high - ones_low)
        lows = np.where(is_one, zeros + ones_low, lows - ones_low)
        highs = np.where(is_one, zeros + ones_high, highs - ones_high)
        shifted = np.concatenate([shifted[ones == 0], shifted[ones == 1]])
    return above


def _running_max(depth: _INT, starts: _INT, counts: _INT) -> _INT:
    """The largest depth so far within each request: a block counts as cached only if all before it are."""
    ranked, inverse = np.unique(depth, return_inverse=True)
    request = np.repeat(np.arange(len(counts)), counts)
    lifted = inverse + request * np.int64(len(ranked))
    return ranked[np.maximum.accumulate(lifted) - request * np.int64(len(ranked))] if len(depth) else depth
