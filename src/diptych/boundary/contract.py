"""What a prefill/decode pair can do with KV: nothing, take it as it is, or take steps that make one side's form the other's.

The identity gate comes first and no plan passes it. Differences of representation become steps, each with the side it runs on,
the states before and after it, and what it loses. Bytes are here; seconds are `perf.boundary_cost`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from diptych.boundary.conversion import Conversion, Loss, Op, conversion, operation, same_meaning
from diptych.boundary.descriptor import KVState
from diptych.boundary.difference import Difference, Weight, shown
from diptych.boundary.element import ScaleSource
from diptych.boundary.format import Format
from diptych.boundary.gate import identity_differences
from diptych.boundary.layers import LayerKind, Layers
from diptych.boundary.redistribution import HEAD_MAJOR, redistributed, storage_differences
from diptych.design.boundary import Side
from diptych.errors import Finding, InvalidInput


class Verdict(StrEnum):
    """What happens to KV at the boundary."""

    CONSUME = "consume"
    REDISTRIBUTE = "redistribute"
    CONVERT = "convert"
    BOTH = "redistribute and convert"
    RECOMPUTE = "recompute"  # decode prefills for itself
    REROUTE = "reroute"  # another worker may take it
    REJECT = "reject"

    @property
    def is_usable(self) -> bool:
        """Whether decode gets KV that it may read."""
        return self in (Verdict.CONSUME, Verdict.REDISTRIBUTE, Verdict.CONVERT, Verdict.BOTH)


@dataclass(frozen=True, slots=True)
class Policy:
    """The answer to a state that decode must not read, by cause: reject, reroute or recompute. Of several the hardest holds.

    By default a pair that can never work is rejected where it is seen, an adapter that another worker may have is rerouted, and
    tokens that were not all prefilled are recomputed.
    """

    identity: Verdict = Verdict.REJECT
    adapter: Verdict = Verdict.REROUTE
    tokens: Verdict = Verdict.RECOMPUTE
    untransformable: Verdict = Verdict.REJECT

    def __post_init__(self) -> None:
        findings = [
            Finding(f"policy.{name}", f"is {getattr(self, name)}", "recompute, reroute or reject")
            for name in self.__slots__
            if getattr(self, name).is_usable
        ]
        if findings:
            raise InvalidInput(findings)

    def answer(self, difference: Difference) -> Verdict:
        """What one difference calls for."""
        if difference.weight is Weight.UNTRANSFORMABLE:
            return self.untransformable
        if difference.where == "identity.adapter":
            return self.adapter
        return self.tokens if difference.where.startswith(("identity.tokens", "identity.blocks")) else self.identity


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
class Contract:
    """The verdict on a pair, the plan that carries it out, and every difference that led to it."""

    produced: KVState
    consumed: KVState
    verdict: Verdict
    plan: tuple[Step, ...]
    differences: tuple[Difference, ...]

    @property
    def is_usable(self) -> bool:
        return self.verdict.is_usable

    @property
    def reasons(self) -> tuple[Difference, ...]:
        """Why decode must not read it."""
        return self._weighing(Weight.IDENTITY, Weight.UNTRANSFORMABLE)

    @property
    def unverified(self) -> tuple[Difference, ...]:
        """What was taken as equal because somebody did not say."""
        return self._weighing(Weight.UNVERIFIED)

    @property
    def loss(self) -> Loss:
        """The worst of its steps."""
        return max((step.loss for step in self.plan), key=lambda loss: loss.order, default=Loss.EXACT)

    def moved_bytes(self, tokens: float, side: Side) -> float:
        """Bytes read and written by the steps of one side."""
        return sum(step.moved_bytes(tokens) for step in self.plan if step.side is side)

    def wire_bytes(self, tokens: float) -> float:
        """Bytes that cross the link for a request of `tokens` tokens; 0 when nothing may cross.

        The side with more ranks than heads sets the copies; every decode rank receives a shared latent of its own.
        """
        hop = next((step.before for step in self.plan if step.op is Op.TRANSFER), None)
        if hop is None:
            return 0.0
        caches = (each for each in hop.layers if each.kind is not LayerKind.STATE)
        return hop.state_bytes + sum(hop.layer_bytes(each, tokens, self._crossings(each)) for each in caches)

    def _crossings(self, layers: Layers) -> float:
        tp = (self.produced.shard.tp, self.consumed.shard.tp)
        return max(1.0, tp[1]) if layers.is_shared else max(1.0, max(tp) / layers.heads)

    @property
    def pieces_per_block(self) -> int:
        """Pieces in which a block of one head group crosses: its tokens, when TP splits a layout that is not head by head."""
        hop = next((step.before.storage for step in self.plan if step.op is Op.TRANSFER), None)
        splits = self.produced.shard.tp != self.consumed.shard.tp and any(
            not each.is_shared for each in self.produced.layers
        )
        return hop.block_tokens if hop and splits and hop.layout not in HEAD_MAJOR else 1

    def __str__(self) -> str:
        """The verdict, the plan and the differences, one a line."""
        return "\n".join([str(self.verdict), *(f"  {line}" for line in (*self.plan, *self.differences))])

    def _weighing(self, *weights: Weight) -> tuple[Difference, ...]:
        return tuple(each for each in self.differences if each.weight in weights)


DEFAULT_POLICY = Policy()


def contract(
    produced: KVState,
    consumed: KVState,
    *,
    wire: Format | None = None,
    at: Side | None = None,
    have: Collection[str] = (),
    policy: Policy = DEFAULT_POLICY,
) -> Contract:
    """What decode can do with what prefill produced.

    `wire` is the format that crosses (by default the narrower of the two), `at` the side that converts and rearranges (by default
    the one that keeps the wire narrow, and decode when it makes no difference). `have`: digests of checkpoint scales that both
    sides were given besides their own.
    """
    hops = _hops(produced.format, consumed.format, wire, at, have)
    differences = (
        *identity_differences(produced, consumed),
        *storage_differences(produced, consumed, hops.wire),
        *_format_differences(produced, consumed, hops),
    )
    against = [policy.answer(each) for each in differences if each.weight in (Weight.IDENTITY, Weight.UNTRANSFORMABLE)]
    if against:
        hardest = max(against, key=list(Verdict).index)
        return Contract(produced, consumed, hardest, (), differences)
    plan = tuple(_plan(produced, consumed, hops, at))
    return Contract(produced, consumed, _verdict(plan), plan, differences)


@dataclass(frozen=True, slots=True)
class _Hops:
    """The format on the wire and the conversions before and after it, each with its side; an obstacle where one cannot be."""

    wire: Format
    before: tuple[Side, Conversion] | None = None
    after: tuple[Side, Conversion] | None = None
    obstacle: str = ""


def _hops(source: Format, target: Format, wire: Format | None, at: Side | None, have: Collection[str]) -> _Hops:
    if wire is not None:
        return _through(source, target, wire, at, have)
    if same_meaning(source, target) is not False:
        return _Hops(source)
    made = conversion(source, target, have)
    side = _side(made, at)
    if side is None:
        return _Hops(source, obstacle=made.obstacle or f"the {at} side does not have the scales")
    is_narrower = target.element.bits < source.element.bits
    if side is Side.PREFILL or (side is Side.TRANSFER and is_narrower):
        return _Hops(target, before=(side, made))
    return _Hops(source, after=(side, made))


def _through(source: Format, target: Format, wire: Format, at: Side | None, have: Collection[str]) -> _Hops:
    """Both conversions of a chosen wire format: at the two ends, or both in the staging buffer."""
    ends = (Side.TRANSFER, Side.TRANSFER) if at is Side.TRANSFER else (Side.PREFILL, Side.DECODE)
    before = _needed(source, wire, have)
    after = _needed(wire, target, have)
    for side, made in zip(ends, (before, after), strict=True):
        if made is not None and side not in made.sides:
            lacking = f"{made.source} → {made.target} needs scales that the {side} side lacks"
            return _Hops(wire, obstacle=made.obstacle or lacking)
    return _Hops(wire, (ends[0], before) if before else None, (ends[1], after) if after else None)


def _needed(source: Format, target: Format, have: Collection[str]) -> Conversion | None:
    return conversion(source, target, have) if same_meaning(source, target) is False else None


def _side(made: Conversion, at: Side | None) -> Side | None:
    """The side asked for, or the one that keeps the wire narrow; None when it has not the scales."""
    if at is not None:
        return at if at in made.sides else None
    narrows = made.target.element.bits < made.source.element.bits
    order = (Side.PREFILL, Side.DECODE) if narrows else (Side.DECODE, Side.PREFILL)
    return next((side for side in (*order, Side.TRANSFER) if side in made.sides), None)


def _format_differences(produced: KVState, consumed: KVState, hops: _Hops) -> Iterator[Difference]:
    source, target = produced.format, consumed.format
    same = same_meaning(source, target)
    if hops.obstacle:
        yield Difference("format", str(source), str(target), Weight.UNTRANSFORMABLE, hops.obstacle)
    elif same is False:
        yield Difference("format", str(source), str(target), Weight.TRANSFORMABLE, str(operation(source, target)))
    scales = (source.scaling, target.scaling)
    if not hops.obstacle and {each.source for each in scales} == {ScaleSource.CHECKPOINT}:
        said = (shown(source.scaling.digest, ""), shown(target.scaling.digest, ""))
        if "unknown" in said:
            unsaid = "the scales of a checkpoint do not travel"
            yield Difference("format.scaling.digest", *said, Weight.UNVERIFIED, unsaid)


def _plan(produced: KVState, consumed: KVState, hops: _Hops, at: Side | None) -> Iterator[Step]:
    """The steps in order; each starts where the one before ended."""
    state = produced
    for op, side, made in _order(produced, consumed, hops, at):
        if made is not None:
            after, loss, bound = replace(state, format=made.target), made.loss, made.bound
        else:
            after, loss, bound = _rearranged(op, state, consumed), Loss.EXACT, ""
        yield Step(op, side, state, after, loss, bound)
        state = after


def _order(
    produced: KVState, consumed: KVState, hops: _Hops, at: Side | None
) -> Iterator[tuple[Op, Side, Conversion | None]]:
    """What happens where. On one side the narrower format is rearranged, as it has fewer bytes to move."""
    here = [op for op in (Op.REGROUP, Op.PERMUTE, Op.REPAGE) if redistributed(op, produced, consumed) != produced]
    early = at is Side.PREFILL
    yield from _on_one_side(hops.before, here if early else [], Side.PREFILL)
    yield from ((op, Side.TRANSFER, None) for op in (*_resharding(produced, consumed), Op.TRANSFER))
    yield from _on_one_side(hops.after, [] if early else here, at or Side.DECODE)


def _on_one_side(
    step: tuple[Side, Conversion] | None, ops: list[Op], side: Side
) -> Iterator[tuple[Op, Side, Conversion | None]]:
    conversions = [(step[1].op, step[0], step[1])] if step else []
    moves = [(op, side, None) for op in ops]
    widens = step is not None and step[1].target.element.bits > step[1].source.element.bits
    yield from (*moves, *conversions) if widens else (*conversions, *moves)


def _rearranged(op: Op, state: KVState, consumed: KVState) -> KVState:
    """After a transfer the consumer's ranks hold it."""
    if op is Op.TRANSFER:
        return replace(state, shard=consumed.shard, holding=consumed.holding)
    return redistributed(op, state, consumed)


def _resharding(produced: KVState, consumed: KVState) -> list[Op]:
    names = ("tp", "pp", "stage_layers")
    return [Op.RESHARD] * any(getattr(produced.shard, name) != getattr(consumed.shard, name) for name in names)


def _verdict(plan: tuple[Step, ...]) -> Verdict:
    match (any(step.op.redistributes for step in plan), any(step.op.converts for step in plan)):
        case (True, True):
            return Verdict.BOTH
        case (True, False):
            return Verdict.REDISTRIBUTE
        case (False, True):
            return Verdict.CONVERT
        case _:
            return Verdict.CONSUME


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
