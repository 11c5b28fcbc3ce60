"""What a worker says of itself: its queues, memory, progress and ledger."""

from __future__ import annotations

from diptych.runtime.messages import Load
from diptych.runtime.worker.blocks import LowerTiers
from diptych.runtime.worker.handoffs import Handoffs
from diptych.runtime.worker.stepper import Stepper


def load(stepper: Stepper, handoffs: Handoffs, tiers: LowerTiers | None, draining: bool) -> Load:
    """All of it, now."""
    batch = stepper.batch
    return Load(
        queued=batch.queued + handoffs.waiting,
        running=batch.batch + len(batch.partial),
        handing=handoffs.open,
        blocks_free=max(stepper.spare, 0),
        blocks=stepper.pool.capacity,
        steps=stepper.steps,
        prompt_tokens=stepper.prompt_tokens,
        output_tokens=stepper.output_tokens,
        reservations=handoffs.reservations,
        pins=handoffs.pins,
        leases=handoffs.leases,
        transfers=handoffs.transfers,
        prefix_asked=stepper.asked,
        prefix_found=stepper.found,
        tiers=tiers.report() if tiers is not None else (),
        draining=draining,
    )
