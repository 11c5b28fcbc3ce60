"""A request's tokens from blocks of one size into blocks of another, in any two layouts, partial last blocks included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.boundary.codecs.refusals import WrongLength
from diptych.boundary.codecs.stored import Bytes
from diptych.boundary.descriptor import Layout
from diptych.boundary.layout import logical
from diptych.errors import Finding, InvalidInput

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Paged:
    """A request's `tokens` in a pool: the blocks of its `table`, in order, the last one perhaps in part.

    Raises:
        WrongLength: the table holds more or fewer blocks than the tokens fill.
        InvalidInput: a block outside the pool, or named twice.
    """

    pool: Array
    layout: Layout
    table: tuple[int, ...]
    tokens: int

    def __post_init__(self) -> None:
        _, blocks, size, *_ = self.view.shape
        wanted = -(-self.tokens // size)
        if self.tokens < 0 or len(self.table) != wanted:
            raise WrongLength(
                Finding(
                    "table", f"names {len(self.table)} blocks of {size} tokens", f"{wanted} for {self.tokens} tokens"
                )
            )
        check_ids(self.table, blocks, "table")

    @property
    def view(self) -> Array:
        """The pool as (layers, blocks, tokens, heads, elements)."""
        return logical(self.pool, self.layout)


def check_ids(ids: tuple[int, ...], count: int, where: str) -> None:
    """Refuse a block or page outside 0 to `count`, or named twice."""
    outside = sorted({number for number in ids if not 0 <= number < count})
    findings = [Finding(where, f"names {outside[:5]}", f"0 to {count - 1}")] if outside else []
    if len(set(ids)) != len(ids):
        findings.append(Finding(where, "names one twice", "each once"))
    if findings:
        raise InvalidInput(findings)


def regroup(source: Paged, target: Paged) -> None:
    """Copy the request into the target's blocks; what lies behind its last token there is not touched.

    Raises:
        WrongLength: the two differ in tokens, layers, heads, width or element.
    """
    have, room = source.view, target.view
    kept = [
        (side.tokens, *view.shape[:1], *view.shape[3:], view.dtype) for side, view in ((source, have), (target, room))
    ]
    if kept[0] != kept[1]:
        raise WrongLength(Finding("target", f"(tokens, layers, heads, width, element) {kept[1]}", f"{kept[0]}"))
    for start, end in _runs(source.tokens, have.shape[2], room.shape[2]):
        block, at = divmod(start, have.shape[2])
        into, to = divmod(start, room.shape[2])
        length = end - start
        piece = have[:, source.table[block], at : at + length]
        room[:, target.table[into], to : to + length] = piece


def gathered(parts: Sequence[Paged]) -> Array:
    """A request out of its pools, one per part: (layers, parts, tokens, heads, width), as codecs take it."""
    layers, _, _, *rest = parts[0].view.shape
    values = np.empty((layers, len(parts), parts[0].tokens, *rest), parts[0].pool.dtype)
    for index, part in enumerate(parts):
        regroup(part, _one_block(values, index))
    return values


def scattered(values: Array, parts: Sequence[Paged]) -> None:
    """A request into its pools, one per part: the way back of `gathered`.

    Raises:
        WrongLength: as many pools as parts are needed, each for what it gets.
    """
    if values.ndim != 5 or values.shape[1] != len(parts):
        raise WrongLength(
            Finding("values", f"of shape {values.shape}", f"(layers, {len(parts)}, tokens, heads, width)")
        )
    for index, part in enumerate(parts):
        regroup(_one_block(values, index), part)


def _one_block(values: Array, part: int) -> Paged:
    """One part of a contiguous request as a pool of one block as long as it is."""
    return Paged(values[:, part][:, None], Layout.LBNHC, (0,), values.shape[2])


def _runs(tokens: int, size: int, other: int) -> Iterator[tuple[int, int]]:
    """The longest runs of tokens that cross no block's edge on either side."""
    edges = sorted({*range(0, tokens, size), *range(0, tokens, other), tokens})
    yield from pairwise(edges)


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """`count` pages in a buffer, `stride` bytes from one to the next: as one side keeps them, padding included.

    Raises:
        WrongLength: the buffer does not hold so many.
    """

    buffer: Bytes
    stride: int
    count: int

    def __post_init__(self) -> None:
        if self.stride < 1 or self.count < 0 or self.buffer.nbytes < self.stride * self.count:
            raise WrongLength(
                Finding("buffer", f"{self.buffer.nbytes} bytes", f"{self.count} pages of {self.stride}, one or more")
            )


def copy_pages(
    source: Pages, source_ids: tuple[int, ...], target: Pages, target_ids: tuple[int, ...], payload: int
) -> None:
    """Copy the first `payload` bytes of pages, each side at its own stride: nothing is read or written outside a page.

    Raises:
        WrongLength: the payload does not fit a page of either side, or the two name different numbers of pages.
        InvalidInput: a page outside a buffer, or written twice.
    """
    if not 0 < payload <= min(source.stride, target.stride):
        raise WrongLength(
            Finding("payload", f"{payload} bytes", f"1 to {min(source.stride, target.stride)}, the smaller page")
        )
    if len(source_ids) != len(target_ids):
        raise WrongLength(Finding("pages", f"{len(source_ids)} read, {len(target_ids)} written", "as many"))
    check_ids(source_ids, source.count, "source pages")
    check_ids(target_ids, target.count, "target pages")
    read, write = _rows(source), _rows(target)
    for origin, place in zip(source_ids, target_ids, strict=True):
        np.copyto(write[place, :payload], read[origin, :payload])


def _rows(pages: Pages) -> Bytes:
    return pages.buffer.reshape(-1)[: pages.stride * pages.count].reshape(pages.count, pages.stride)
