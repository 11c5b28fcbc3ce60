"""KV heads from the TP ranks of prefill to those of decode, replicated heads included: who sends what, and is anything missing.

Above as many ranks as KV heads, neighbours hold copies of one head. A decode rank takes each of its heads once, from one of the
ranks that hold it; takers of one head spread over its copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.boundary.codecs.refusals import NotRepresentable, WrongLength
from diptych.boundary.codecs.stored import KvShape, StoredKV, scale_dims
from diptych.boundary.descriptor import Shard
from diptych.boundary.element import Element, ScaleGranularity
from diptych.errors import Finding, InvalidInput

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of `heads` (of the model) that one prefill rank hands to one decode rank.

    `source_at` and `target_at`: where the run starts among the heads that each of the two holds.
    """

    source: int
    target: int
    heads: range
    source_at: int
    target_at: int


def reshard_plan(prefill: Shard, decode: Shard, kv_heads: int) -> tuple[Piece, ...]:
    """Every piece that decode's ranks need, by rank and head.

    >>> [(piece.source, piece.target, list(piece.heads)) for piece in reshard_plan(Shard(tp=2), Shard(tp=4), 4)]
    [(0, 0, [0]), (0, 1, [1]), (1, 2, [2]), (1, 3, [3])]

    Raises:
        InvalidInput: ranks that do not share the heads evenly.
    """
    findings = [
        Finding(where, f"{shard.tp} ranks cannot share {kv_heads} KV heads evenly", "a divisor or a multiple")
        for where, shard in (("prefill.tp", prefill), ("decode.tp", decode))
        if kv_heads < 1 or (kv_heads % shard.tp and shard.tp % kv_heads)
    ]
    if findings:
        raise InvalidInput(findings)
    taken: Counter[int] = Counter()
    return tuple(
        piece
        for rank in range(decode.tp)
        for piece in _pieces(prefill, decode.heads(rank, kv_heads), rank, kv_heads, taken)
    )


def _pieces(prefill: Shard, wanted: range, target: int, kv_heads: int, taken: Counter[int]) -> Iterator[Piece]:
    head = wanted.start
    while head < wanted.stop:
        source = _holder(prefill, head, kv_heads, taken)
        held = prefill.heads(source, kv_heads)
        run = range(head, min(held.stop, wanted.stop))
        yield Piece(source, target, run, head - held.start, head - wanted.start)
        head = run.stop


def _holder(prefill: Shard, head: int, kv_heads: int, taken: Counter[int]) -> int:
    """The next of the ranks that hold a head."""
    copies = prefill.replication(kv_heads)
    first = head * copies if prefill.tp >= kv_heads else head // (kv_heads // prefill.tp)
    chosen = first + taken[head] % copies
    taken[head] += 1
    return chosen


def rank_map(pieces: Sequence[Piece]) -> dict[int, tuple[int, ...]]:
    """The prefill ranks that each decode rank reads."""
    found: dict[int, tuple[int, ...]] = {}
    for piece in pieces:
        found[piece.target] = tuple(dict.fromkeys((*found.get(piece.target, ()), piece.source)))
    return found


def shortfall(pieces: Sequence[Piece], decode: Shard, kv_heads: int) -> tuple[Finding, ...]:
    """What decode would still lack, or get twice: none means that every rank gets each of its distinct heads once.

    A request is ready only when this is empty for the pieces that have arrived. Bytes alone do not show it: eight ranks that
    hold four heads send twice what there is.
    """
    arrived = Counter((piece.target, head) for piece in pieces for head in piece.heads)
    wanted = Counter((rank, head) for rank in range(decode.tp) for head in decode.heads(rank, kv_heads))
    return tuple(
        Finding(f"decode rank {rank}", f"head {head} arrives {arrived[rank, head]} times", f"{wanted[rank, head]}")
        for rank, head in sorted(wanted | arrived)
        if arrived[rank, head] != wanted[rank, head]
    )


def received_bytes(pieces: Sequence[Piece], head_bytes: int) -> dict[int, int]:
    """Bytes of distinct heads that each decode rank receives, at `head_bytes` for one head of the request."""
    heads: dict[int, set[int]] = {}
    for piece in pieces:
        heads.setdefault(piece.target, set()).update(piece.heads)
    return {rank: len(found) * head_bytes for rank, found in heads.items()}


def reshard(held: Sequence[Array], pieces: Sequence[Piece], decode: Shard, kv_heads: int, axis: int = 3) -> list[Array]:
    """The arrays of decode's ranks from those of prefill's (by rank), heads along `axis`.

    Raises:
        WrongLength: a rank's array has not the heads that the plan reads, or the pieces do not fill decode's ranks.
    """
    missing = shortfall(pieces, decode, kv_heads)
    if missing:
        raise WrongLength(missing)
    made = [_room(held[0], len(decode.heads(rank, kv_heads)), axis) for rank in range(decode.tp)]
    for piece in pieces:
        if piece.source >= len(held) or held[piece.source].shape[axis] < piece.source_at + len(piece.heads):
            raise WrongLength(Finding(f"prefill rank {piece.source}", "lacks heads", f"{list(piece.heads)}"))
        source = np.moveaxis(held[piece.source], axis, 0)[piece.source_at : piece.source_at + len(piece.heads)]
        np.moveaxis(made[piece.target], axis, 0)[piece.target_at : piece.target_at + len(piece.heads)] = source
    return made


def _room(like: Array, heads: int, axis: int) -> Array:
    shape = list(like.shape)
    shape[axis] = heads
    return np.empty(shape, like.dtype)


def reshard_stored(held: Sequence[StoredKV], pieces: Sequence[Piece], decode: Shard, kv_heads: int) -> list[StoredKV]:
    """The same for stored tensors, their scales with them.

    Raises:
        NotRepresentable: scales that ranks share over all their heads; a conversion to per-head scales keeps the bytes.
        WrongLength: see `reshard`; or tensors that differ in more than heads.
    """
    first = held[0]
    alike = {(kv.form, kv.shape.layers, kv.shape.parts, kv.shape.tokens, kv.shape.dim) for kv in held}
    if len(alike) != 1:
        raise WrongLength(Finding("prefill ranks", "differ in format or shape", "one format, layers, tokens and width"))
    if first.scales.size and (
        first.form.scaling.granularity is ScaleGranularity.TENSOR or first.form.element is Element.NVFP4
    ):
        raise NotRepresentable(
            Finding("scales", f"{first.form} of one rank", "per-head scales, which move with their heads")
        )
    codes = reshard([kv.array for kv in held], pieces, decode, kv_heads)
    scales = [np.empty(0, np.uint8)] * decode.tp
    if first.scales.size:
        scales = reshard([_scale_array(kv) for kv in held], pieces, decode, kv_heads)
    return [
        StoredKV(_shape(first, part), first.form, part.reshape(-1).view(np.uint8), scale.reshape(-1).view(np.uint8))
        for part, scale in zip(codes, scales, strict=True)
    ]


def _scale_array(kv: StoredKV) -> Array:
    """The stored scales, bytes last, in the dimensions of `scale_dims`."""
    dims = scale_dims(kv.shape, kv.form)
    return kv.scales.reshape(*dims[:4], -1)


def _shape(like: StoredKV, part: Array) -> KvShape:
    return replace(like.shape, heads=part.shape[3])
