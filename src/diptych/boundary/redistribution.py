"""Where KV lies on both sides, and what takes it from one place to the other without changing what a byte means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from diptych.boundary.conversion import Op, same_meaning
from diptych.boundary.descriptor import KVState, Layout, order_in_memory
from diptych.boundary.difference import Difference, Weight, pair, shown
from diptych.boundary.element import Element, ScaleGranularity
from diptych.boundary.format import Format
from diptych.boundary.layers import LayerKind

HEAD_MAJOR = frozenset((Layout.LBHNC, Layout.LHBNC, Layout.BLHNC, Layout.BHLNC))
"""Layouts in which the tokens of one head lie together in a block, so that a rank's heads are one piece of it."""
Formats = tuple[Format, ...]
_WHOLE = (ScaleGranularity.NONE, ScaleGranularity.TENSOR)


def storage_differences(produced: KVState, consumed: KVState, wire: Format) -> Iterator[Difference]:
    """Every difference of storage and shard: those a step makes good, those that none does, and what nobody can tell.

    `wire` is the format that crosses: blocks that cannot be taken apart can be converted only element by element, or not at all.
    """
    yield from _obstacles(produced, consumed, (produced.format, wire, consumed.format))
    mine, theirs = produced.storage, consumed.storage
    for name, op in (("block_tokens", Op.REGROUP), ("page_stride", Op.REPAGE)):
        if getattr(mine, name) != getattr(theirs, name):
            yield _transformable(f"storage.{name}", getattr(mine, name), getattr(theirs, name), op)
    if not same_order(produced, consumed) and Layout.UNKNOWN not in (mine.layout, theirs.layout):
        yield _transformable("storage.layout", mine.layout, theirs.layout, Op.PERMUTE)
    for name in resharded(produced, consumed):
        values = (getattr(produced.shard, name), getattr(consumed.shard, name))
        yield _transformable(f"shard.{name}", *values, Op.RESHARD)


def same_order(produced: KVState, consumed: KVState) -> bool:
    """Whether a transfer, which places each head on its own, needs no permutation: one name, or two that differ in the place of H
    where a rank has one head."""
    mine, theirs = produced.storage.layout, consumed.storage.layout
    one_head = produced.has_one_head or consumed.has_one_head
    return mine is theirs or (one_head and mine.without_heads == theirs.without_heads)


def resharded(produced: KVState, consumed: KVState) -> list[str]:
    """The fields of the shard in which the two deal out heads or layers differently."""
    names = ("tp", "pp", "stage_layers") if produced.is_split else ("pp", "stage_layers")
    return [name for name in names if getattr(produced.shard, name) != getattr(consumed.shard, name)]


def redistributed(op: Op, state: KVState, goal: KVState) -> KVState:
    """The state after one step of redistribution towards `goal`."""
    match op:
        case Op.REGROUP:
            return replace(state, storage=replace(state.storage, block_tokens=goal.storage.block_tokens))
        case Op.PERMUTE:
            return replace(state, storage=replace(state.storage, layout=goal.storage.layout))
        case Op.REPAGE:
            return replace(state, storage=replace(state.storage, page_stride=goal.storage.page_stride))
        case _:
            return replace(state, shard=goal.shard)


def _transformable(where: str, produced: object, consumed: object, op: Op) -> Difference:
    return Difference(where, shown(produced), shown(consumed), Weight.TRANSFORMABLE, str(op))


def _obstacles(produced: KVState, consumed: KVState, formats: Formats) -> Iterator[Difference]:
    yield from _packing(produced, consumed, formats)
    yield from _unknown_layout(produced, consumed, formats)
    if produced.shard.cp != consumed.shard.cp:
        values = (str(produced.shard.cp), str(consumed.shard.cp))
        yield _blocked("shard.cp", *values, "no step deals tokens anew over context-parallel ranks")
    mine, theirs = (_state_formats(state) for state in (produced, consumed))
    if mine != theirs:
        yield _blocked("layers.state_format", mine, theirs, "no step casts the state of linear-attention layers")
    if produced.shard.tp != consumed.shard.tp:
        yield from _unsplittable(produced, consumed)
    yield from _other_ranks(produced, consumed)
    if _moved(produced, consumed) and any(each.element is Element.NVFP4 for each in formats):
        yield _blocked(
            "storage", *pair(_place, produced, consumed), "nvfp4 keeps its scales in the order of its kernel's blocks"
        )


def _packing(produced: KVState, consumed: KVState, formats: Formats) -> Iterator[Difference]:
    mine, theirs = produced.storage.packing, consumed.storage.packing
    if mine != theirs:
        yield _blocked(
            "storage.packing", shown(mine), shown(theirs), "only the kernel that packs a block can unpack it"
        )
    elif mine and (_moved(produced, consumed) or _converted(formats)):
        yield _blocked(
            "storage.packing", *pair(_place, produced, consumed), f"{mine} blocks can only be passed on as they are"
        )


def _unknown_layout(produced: KVState, consumed: KVState, formats: Formats) -> Iterator[Difference]:
    """An unknown layout equals nothing. Two of them may be passed on as they are, which is told; and cast, element by element."""
    mine, theirs = produced.storage.layout, consumed.storage.layout
    if Layout.UNKNOWN not in (mine, theirs):
        return
    by_element = not _converted(formats) or all(each.scaling.granularity in _WHOLE for each in formats)
    if by_element and not _moved(produced, consumed):
        yield Difference("storage.layout", shown(mine), shown(theirs), Weight.UNVERIFIED, "neither side says")
    else:
        yield _blocked(
            "storage.layout", shown(mine), shown(theirs), "nobody can say how to rearrange an unknown layout"
        )


def _unsplittable(produced: KVState, consumed: KVState) -> Iterator[Difference]:
    values = (f"tp {produced.shard.tp}", f"tp {consumed.shard.tp}")
    if any(layers.kind is LayerKind.STATE for layers in produced.layers):
        yield _blocked("shard.tp", *values, "how ranks split the state of linear-attention layers is not described")


def _other_ranks(produced: KVState, consumed: KVState) -> Iterator[Difference]:
    """Two ranks must have a head and a layer in common. A rank beside a whole worker is told: it holds a part."""
    for name, held, what in (("tp_rank", _heads, "head"), ("pp_rank", _stage, "layer")):
        mine, theirs = getattr(produced.shard, name), getattr(consumed.shard, name)
        runs = list(zip(held(produced), held(consumed), strict=False))  # of one model, else the gate has refused
        if (mine is None) != (theirs is None):
            whole = "one side is a rank, the other a whole worker"
            yield Difference(f"shard.{name}", shown(mine), shown(theirs), Weight.UNVERIFIED, whole)
        elif runs and not any(one == other or _overlap(one, other) for one, other in runs):
            yield _blocked(f"shard.{name}", shown(mine), shown(theirs), f"the ranks have no {what} in common")


def _heads(state: KVState) -> list[range]:
    """The heads that a rank, or a worker, holds of each kind of layer whose heads are split."""
    rank, counts = state.shard.tp_rank, sorted({each.heads for each in state.caches if not each.is_shared})
    return [range(count) if rank is None else state.shard.heads(rank, count) for count in counts]


def _stage(state: KVState) -> list[range]:
    """The layers that a stage, or a worker, holds."""
    count = max(state.num_layers, sum(state.shard.stage_layers))
    stage = state.shard.pp_rank
    return [range(count) if stage is None else state.shard.layers(stage, count)]


def _overlap(one: range, other: range) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


def _moved(produced: KVState, consumed: KVState) -> bool:
    """Whether anything but the packing lies elsewhere."""
    return _place(produced) != _place(consumed)


def _converted(formats: Formats) -> bool:
    return any(same_meaning(one, other) is False for one, other in pairwise(formats))


def _place(state: KVState) -> str:
    storage, shard = state.storage, state.shard
    ranks = f"tp {shard.tp} pp {shard.pp}" if state.is_split else f"pp {shard.pp}"
    return f"{order_in_memory(state)} blocks of {storage.block_tokens} stride {storage.page_stride} {ranks}"


def _state_formats(state: KVState) -> str:
    return shown(", ".join(sorted({str(each.state_format) for each in state.layers if each.kind is LayerKind.STATE})))


def _blocked(where: str, produced: str, consumed: str, why: str) -> Difference:
    return Difference(where, produced, consumed, Weight.UNTRANSFORMABLE, why)
