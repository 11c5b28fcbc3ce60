"""What a prefill/decode pair can do with KV: nothing, take it as it is, or take steps that make one side's form the other's.

The identity gate comes first and no plan passes it. Differences of representation become steps, each with the side it runs on,
the states before and after it, and what it loses. Bytes are here; seconds are `perf.boundary_cost`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from diptych.boundary.conversion import Loss, Op, operation, same_meaning
from diptych.boundary.descriptor import KVState, order_in_memory
from diptych.boundary.difference import Difference, Weight, shown
from diptych.boundary.element import ScaleSource
from diptych.boundary.format import Format
from diptych.boundary.gate import identity_differences
from diptych.boundary.layers import Layers
from diptych.boundary.redistribution import HEAD_MAJOR, resharded, storage_differences
from diptych.boundary.steps import Hops, Step, hops_between, steps
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
        return hop.state_bytes + sum(hop.layer_bytes(each, tokens, self._crossings(each)) for each in hop.caches)

    def _crossings(self, layers: Layers) -> float:
        tp = (self.produced.shard.tp, self.consumed.shard.tp)
        return max(1.0, tp[1]) if layers.is_shared else max(1.0, max(tp) / layers.heads)

    @property
    def pieces_per_block(self) -> int:
        """Pieces in which a block of one head group crosses: its tokens, when TP deals heads anew and they do not lie apart."""
        hop = next((step for step in self.plan if step.op is Op.TRANSFER), None)
        if hop is None or "tp" not in resharded(self.produced, self.consumed):
            return 1
        ends = (replace(hop.before, shard=self.produced.shard), hop.after)
        lies_apart = all(order_in_memory(end) in HEAD_MAJOR for end in ends)
        return 1 if lies_apart else hop.before.storage.block_tokens

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
    hops = hops_between(produced.format, consumed.format, wire, at, have)
    differences = (
        *identity_differences(produced, consumed),
        *storage_differences(produced, consumed, hops.wire),
        *_format_differences(produced, consumed, hops),
    )
    against = [policy.answer(each) for each in differences if each.weight in (Weight.IDENTITY, Weight.UNTRANSFORMABLE)]
    if against:
        hardest = max(against, key=list(Verdict).index)
        return Contract(produced, consumed, hardest, (), differences)
    plan = tuple(steps(produced, consumed, hops, at))
    return Contract(produced, consumed, _verdict(plan), plan, differences)


def _format_differences(produced: KVState, consumed: KVState, hops: Hops) -> Iterator[Difference]:
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
