"""Where an attention backend puts each element of a block, found out by writing known tokens and looking.

vLLM's CPU attention keeps keys of a block with the tokens innermost, values plainly; others do otherwise, and a packed order
differs with the size of a block. So nothing is assumed: digits of each element's number are written as tokens, and the digits
that stand at each place of the block say which element it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from diptych.errors import Finding, InvalidInput

BASE = 8
"""Digits 0 to 7 are exact in every element format, e5m2 included."""

Values = NDArray[np.float32]
Write = Callable[[Values], NDArray[Any]]
"""Write tokens, (parts, tokens, heads, dim), into one block through the backend; what stands in the block then, flat."""


def find_packing(write: Write, parts: int, heads: int, tokens: int, dim: int) -> NDArray[np.int64]:
    """The place in a block of every element: (parts, heads, tokens, dim) numbers, each place once.

    Raises:
        InvalidInput: the block does not hold each element once and unchanged, so that nobody can say what it holds.
    """
    size = parts * heads * tokens * dim
    numbers = np.arange(size).reshape(parts, heads, tokens, dim)
    found, factor = np.zeros(size, np.int64), 1
    while factor < size:
        digits = numbers // factor % BASE
        stands = np.asarray(write(digits.transpose(0, 2, 1, 3).astype(np.float32)), np.float64)
        if stands.shape != (size,):
            raise _unreadable(f"has {stands.size} elements of one block", f"{size}")
        read = np.nan_to_num(stands, nan=-1.0)
        if not np.array_equal(read, read.round()) or read.min() < 0 or read.max() >= BASE:
            raise _unreadable("changes small whole numbers", "elements kept as they are, unscaled")
        found += read.astype(np.int64) * factor
        factor *= BASE
    if not np.array_equal(np.sort(found), np.arange(size)):
        raise _unreadable("does not keep each element in one place", "a permutation of a block's elements")
    places = np.empty(size, np.int64)
    places[found] = np.arange(size)
    return places.reshape(parts, heads, tokens, dim)


@dataclass(frozen=True, slots=True)
class Run:
    """One part of a block as a strided view: where its first element is, and the steps of a head, a token and a dim."""

    begin: int
    steps: tuple[int, int, int]


def runs_of(places: NDArray[np.int64]) -> tuple[Run, ...] | None:
    """Each part's elements as a strided view of a block, where a backend keeps them so; else None."""
    found = []
    for part in places:
        begin = int(part[0, 0, 0])
        ends = (part[1:2, 0, 0], part[0, 1:2, 0], part[0, 0, 1:2])
        steps = tuple(int(end[0]) - begin if end.size else 1 for end in ends)
        head, token, dim = (np.arange(count) * step for count, step in zip(part.shape, steps, strict=True))
        if min(steps) < 1 or not np.array_equal(part, begin + head[:, None, None] + token[:, None] + dim):
            return None
        found.append(Run(begin, steps))  # type: ignore[arg-type]
    return tuple(found)


def name_of(places: NDArray[np.int64]) -> str:
    """A name by which two packings can be told apart: what it is, and a digest of every element's place."""
    return f"{_kind_of(places)} {xxhash.xxh3_64_hexdigest(np.ascontiguousarray(places).tobytes())}"


def _kind_of(places: NDArray[np.int64]) -> str:
    if np.array_equal(places.reshape(-1), np.arange(places.size)):
        return "plain"
    parts, heads, tokens, dim = places.shape
    plain = np.arange(places.size).reshape(heads, parts, tokens, dim)
    for part in range(parts):
        keys = plain[:, part].reshape(heads, dim, tokens).transpose(0, 2, 1)
        if not (np.array_equal(places[part], plain[:, part]) or np.array_equal(places[part], keys)):
            return "found by self-test"
    return "heads outside, keys with tokens innermost"


def _unreadable(problem: str, expected: str) -> InvalidInput:
    return InvalidInput(Finding("the attention backend's KV block", problem, expected))
