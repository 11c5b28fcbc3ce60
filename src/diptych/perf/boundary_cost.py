"""The price of a contract: seconds on each side and on the link, by the arithmetic of `transfer` and `handoff`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from diptych.boundary.contract import DEFAULT_POLICY, Contract, Policy, contract
from diptych.boundary.descriptor import KVState
from diptych.boundary.format import Format
from diptych.boundary.steps import Step
from diptych.catalog.interconnect import Link
from diptych.design.axes import Worker
from diptych.design.boundary import Side
from diptych.perf.handoff import staging_bandwidth
from diptych.perf.transfer import CONVERSION_OPERATIONS, path, pieces, rewrite_seconds, transfer_seconds


@dataclass(frozen=True, slots=True)
class BoundaryCost:
    """What a plan costs a request: bytes on the wire, and seconds of each part.

    `prefill` is time the prefill worker cannot prefill, `decode` time the decode worker cannot decode; `staged` burdens neither.
    """

    wire_bytes: float
    prefill: float
    transfer: float
    staged: float
    decode: float

    @property
    def seconds(self) -> float:
        """Between the end of prefill and the first decode step, when nothing overlaps."""
        return self.prefill + self.transfer + self.staged + self.decode


@dataclass(frozen=True, slots=True)
class Priced:
    """A contract and its price; None when there is no plan to price."""

    contract: Contract
    cost: BoundaryCost | None


def boundary_cost(
    agreed: Contract,
    prefill: Worker,
    decode: Worker,
    link: Link,
    tokens: float,
    *,
    host_bandwidth: float | None = None,
) -> BoundaryCost:
    """Price the plan of a contract between two workers for a prompt of `tokens` tokens over `link`, the boundary's.

    Each step reads and writes what it says in the memory of its side's ranks. `host_bandwidth` (bytes/s) is where a staged step
    runs; the prefill side's PCIe by default. The contract must have a plan.
    """
    assert agreed.is_usable, f"a contract to {agreed.verdict} has no plan to price"
    size = agreed.wire_bytes(tokens)
    block = agreed.produced.storage.block_tokens
    posted = pieces(prefill.model, tokens, block, prefill.parallelism.tp, decode.parallelism.tp)
    staging = host_bandwidth or staging_bandwidth(prefill)
    return BoundaryCost(
        size,
        sum(_seconds(step, tokens, prefill) for step in agreed.plan if step.side is Side.PREFILL),
        float(transfer_seconds(path(prefill, decode, link), size, posted * agreed.pieces_per_block)),
        agreed.moved_bytes(tokens, Side.TRANSFER) / staging,
        sum(_seconds(step, tokens, decode) for step in agreed.plan if step.side is Side.DECODE),
    )


def cheapest_contract(
    produced: KVState,
    consumed: KVState,
    prefill: Worker,
    decode: Worker,
    link: Link,
    tokens: float,
    *,
    wires: Sequence[Format] = (),
    sides: Sequence[Side] = (Side.PREFILL, Side.DECODE),
    have: Collection[str] = (),
    policy: Policy = DEFAULT_POLICY,
) -> Priced:
    """The contract whose plan takes the fewest seconds among the sides, and among `wires` where those are given.

    Of equal ones the first, the contract's own choice before all. Without any plan the refusal, unpriced.
    """
    agreed = [
        contract(produced, consumed, wire=wire, at=side, have=have, policy=policy)
        for wire in (None, *wires)
        for side in (None, *sides)
    ]
    priced = [Priced(each, boundary_cost(each, prefill, decode, link, tokens)) for each in agreed if each.is_usable]
    return min(priced, key=_total, default=Priced(agreed[0], None))


def _total(priced: Priced) -> float:
    assert priced.cost is not None
    return priced.cost.seconds


def _seconds(step: Step, tokens: float, worker: Worker) -> float:
    converted = step.before.held_elements(tokens) if step.op.converts else 0.0
    return float(rewrite_seconds(step.moved_bytes(tokens), worker, CONVERSION_OPERATIONS * converted))
