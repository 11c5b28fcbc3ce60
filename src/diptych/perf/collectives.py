"""Collectives and point-to-point inside a worker: α + bytes/bus bandwidth, by world size.

Inside a scale-up domain the measured curve of the nearest world size is used (its launch cost grows with log2 of the world:
the steps of a tree); beyond the domain a collective runs at the speed of the accelerator's NIC.
"""

from __future__ import annotations

import math
from dataclasses import replace

from diptych.design.axes import Worker
from diptych.perf.efficiency import DEFAULTS, Curve, Curves
from diptych.perf.ops import Collective, Op, OpKind

NETWORK_LATENCY = 12e-6  # seconds per step of a tree over RDMA: NIC, switch and proxy thread
WORLDS = (2, 4, 8, 16)
SLOWEST_LINK = 1e9  # bytes/s where the data sheet names no link at all


def _world(op: Op) -> int:
    return op.world if isinstance(op, Collective) else 1


def inside_domain(worker: Worker, op: Op) -> bool:
    """Whether all ranks of the collective share the scale-up domain."""
    return _world(op) <= max(worker.accelerator.scaleup.world, 1)


def link_bandwidth(worker: Worker, op: Op) -> float:
    """Bytes/s of one accelerator and direction that the collective has to cross."""
    accelerator = worker.accelerator
    fast, slow = accelerator.scaleup.bandwidth, accelerator.nic_bandwidth
    if inside_domain(worker, op) and fast > 0:
        return fast
    return slow or accelerator.pcie_bandwidth or SLOWEST_LINK


def collective_curve(curves: Curves, worker: Worker, op: Op) -> Curve:
    """The curve of the nearest measured world size, its launch cost scaled by log2 of the world."""
    world = _world(op)
    steps = math.log2(max(world, 2))
    if op.kind is OpKind.POINT_TO_POINT:
        return DEFAULTS[op.kind]
    if not inside_domain(worker, op):
        return replace(DEFAULTS[op.kind], overhead=NETWORK_LATENCY * steps)
    for near in sorted(WORLDS, key=lambda size: (abs(math.log2(size) - steps), size)):
        found = curves.find(worker.accelerator, worker.engine, op.kind, str(near))
        if found.donor:
            return replace(found.curve, overhead=found.curve.overhead * max(1.0, steps / math.log2(near)))
    return DEFAULTS[op.kind]
