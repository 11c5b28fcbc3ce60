"""The plan of a contract: which format crosses, what is done on which side, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from diptych.boundary.conversion import Conversion, Loss, Op, conversion, same_meaning
from diptych.boundary.descriptor import KVState
from diptych.boundary.format import Format
from diptych.boundary.redistribution import redistributed, resharded, same_order
from diptych.design.boundary import Side


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan, on one side, between two states. A re-shard moves nothing itself: it is how a transfer is addressed."""

    op: Op
    side: Side
    before: KVState
    after: KVState
    loss: Loss = Loss.EXACT
    bound: str = ""

    def moved_bytes(self, tokens: float) -> float:
        """Bytes that the step reads and writes in the memory of its side, for a request of `tokens` tokens; 0 for a transfer."""
        if self.op in (Op.TRANSFER, Op.RESHARD):
            return 0.0
        once = self.side is Side.TRANSFER  # a staging buffer holds one copy
        return self.before.cache_bytes(tokens, once=once) + self.after.cache_bytes(tokens, once=once)

    def __str__(self) -> str:
        change = f"{_aspect(self.op, self.before)} → {_aspect(self.op, self.after)}"
        where = "" if self.op in (Op.TRANSFER, Op.RESHARD) else f" at {self.side}"
        said = f"{self.op}{where}: {change}, {self.loss}"
        return f"{said} ({self.bound})" if self.bound else said


@dataclass(frozen=True, slots=True)
class Hops:
    """The format on the wire and the conversions before and after it, each with its side; an obstacle where one cannot be."""

    wire: Format
    before: tuple[Side, Conversion] | None = None
    after: tuple[Side, Conversion] | None = None
    obstacle: str = ""


def hops_between(source: Format, target: Format, wire: Format | None, at: Side | None, have: Collection[str]) -> Hops:
    """What crosses between two formats, and what is done to it on the way; see `contract` for the arguments."""
    if wire is not None:
        return _through(source, target, wire, at, have)
    if same_meaning(source, target) is not False:
        return Hops(source)
    made = conversion(source, target, have)
    side = _side(made, at)
    if side is None:
        return Hops(source, obstacle=made.obstacle or f"the {at} side does not have the scales")
    is_narrower = target.element.bits < source.element.bits
    if side is Side.PREFILL or (side is Side.TRANSFER and is_narrower):
        return Hops(target, before=(side, made))
    return Hops(source, after=(side, made))


def _through(source: Format, target: Format, wire: Format, at: Side | None, have: Collection[str]) -> Hops:
    """Both conversions of a chosen wire format: at the two ends, or both in the staging buffer."""
    ends = (Side.TRANSFER, Side.TRANSFER) if at is Side.TRANSFER else (Side.PREFILL, Side.DECODE)
    before = _needed(source, wire, have)
    after = _needed(wire, target, have)
    for side, made in zip(ends, (before, after), strict=True):
        if made is not None and side not in made.sides:
            lacking = f"{made.source} → {made.target} needs scales that the {side} side lacks"
            return Hops(wire, obstacle=made.obstacle or lacking)
    return Hops(wire, (ends[0], before) if before else None, (ends[1], after) if after else None)


def _needed(source: Format, target: Format, have: Collection[str]) -> Conversion | None:
    return conversion(source, target, have) if same_meaning(source, target) is False else None


def _side(made: Conversion, at: Side | None) -> Side | None:
    """The side asked for, or the one that keeps the wire narrow; None when it has not the scales."""
    if at is not None:
        return at if at in made.sides else None
    narrows = made.target.element.bits < made.source.element.bits
    order = (Side.PREFILL, Side.DECODE) if narrows else (Side.DECODE, Side.PREFILL)
    return next((side for side in (*order, Side.TRANSFER) if side in made.sides), None)


def steps(produced: KVState, consumed: KVState, hops: Hops, at: Side | None) -> Iterator[Step]:
    """The steps of a pair that nothing stands against, in order; each starts where the one before ended."""
    state, placed = produced, same_order(produced, consumed)
    for op, side, made in _order(produced, consumed, hops, at):
        if made is not None:
            after, loss, bound = replace(state, format=made.target), made.loss, made.bound
        else:
            after, loss, bound = _rearranged(op, state, consumed, placed), Loss.EXACT, ""
        yield Step(op, side, state, after, loss, bound)
        state = after


def _order(
    produced: KVState, consumed: KVState, hops: Hops, at: Side | None
) -> Iterator[tuple[Op, Side, Conversion | None]]:
    """What happens where. On one side the narrower format is rearranged, as it has fewer bytes to move."""
    here = [op for op in (Op.REGROUP, Op.PERMUTE, Op.REPAGE) if redistributed(op, produced, consumed) != produced]
    if same_order(produced, consumed):
        here = [op for op in here if op is not Op.PERMUTE]
    early = at is Side.PREFILL
    yield from _on_one_side(hops.before, here if early else [], Side.PREFILL)
    yield from ((op, Side.TRANSFER, None) for op in (*[Op.RESHARD] * any(resharded(produced, consumed)), Op.TRANSFER))
    yield from _on_one_side(hops.after, [] if early else here, at or Side.DECODE)


def _on_one_side(
    step: tuple[Side, Conversion] | None, ops: list[Op], side: Side
) -> Iterator[tuple[Op, Side, Conversion | None]]:
    conversions = [(step[1].op, step[0], step[1])] if step else []
    moves = [(op, side, None) for op in ops]
    widens = step is not None and step[1].target.element.bits > step[1].source.element.bits
    yield from (*moves, *conversions) if widens else (*conversions, *moves)


def _rearranged(op: Op, state: KVState, consumed: KVState, placed: bool) -> KVState:
    """After a transfer the consumer's ranks hold it; in the consumer's layout if each head is `placed` as it arrives."""
    if op is not Op.TRANSFER:
        return redistributed(op, state, consumed)
    layout = consumed.storage.layout if placed else state.storage.layout
    return replace(state, storage=replace(state.storage, layout=layout), shard=consumed.shard, holding=consumed.holding)


def _aspect(op: Op, state: KVState) -> str:
    match op:
        case Op.REGROUP:
            return f"{state.storage.block_tokens} tokens"
        case Op.PERMUTE:
            return str(state.storage.layout)
        case Op.REPAGE:
            return f"stride {state.storage.page_stride or 'dense'}"
        case Op.RESHARD:
            return f"tp {state.shard.tp} pp {state.shard.pp}"
        case Op.TRANSFER:
            return " ".join(filter(None, (str(state.holding.tier), state.holding.owner)))
        case _:
            return str(state.format)
