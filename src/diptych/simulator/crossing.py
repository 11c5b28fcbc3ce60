"""What handing a prompt from one kind of worker to another takes: bytes on the wire, fixed time, conversions, by its tokens."""

from __future__ import annotations

import numpy as np

from diptych.catalog.interconnect import Link, LinkKind
from diptych.design.axes import Worker
from diptych.design.boundary import Boundary, Side
from diptych.perf.transfer import conversion_seconds, path, pieces, staged_conversion_seconds, wire_bytes
from diptych.simulator.clock import PS


class Crossing:
    """Tables over prompt tokens, grown as longer prompts come.

    `bytes` cross the path, `fixed` ps pass before the first of them does (latency, the link's inertia, descriptors, a staged
    conversion), `before` and `after` are ps of conversion that the prefill and the decode engine spend.
    """

    __slots__ = ("after", "before", "block", "boundary", "bytes", "converts", "decode", "fixed", "link", "prefill")

    def __init__(
        self, prefill: Worker, decode: Worker, boundary: Boundary, block: int, nics: tuple[float, ...]
    ) -> None:
        self.prefill, self.decode, self.boundary, self.block = prefill, decode, boundary, block
        out, into = nics
        self.link: Link = path(prefill, decode, boundary.link, out, into)
        self.converts = False  # the decode engine does
        self.bytes: list[int] = []
        self.fixed: list[int] = []
        self.before: list[int] = []
        self.after: list[int] = []
        self.grow(4096)

    def grow(self, tokens: int) -> None:
        """Tabulate prompts of up to `tokens` tokens, and some beyond."""
        count = np.arange(1 << max(tokens, 4096).bit_length(), dtype=float)
        model, link, form = self.prefill.model, self.link, self.boundary.representation
        tp = self.prefill.parallelism.tp, self.decode.parallelism.tp
        size = np.where(count > 0, wire_bytes(model, count, form.wire, *tp), 0.0)
        posted = pieces(model, count, self.block, *tp)
        fixed = link.alpha + link.half_size / link.achievable + link.per_piece * posted
        made, used = self.prefill.precision.kv, self.decode.precision.kv
        before = conversion_seconds(model, count, made, form.wire, self.prefill)
        after = conversion_seconds(model, count, form.wire, used, self.decode)
        if form.converts_at is Side.TRANSFER:
            bandwidth = self.prefill.accelerator.pcie_bandwidth
            fixed = fixed + staged_conversion_seconds(model, count, made, used, bandwidth)
            before = after = np.zeros_like(count)
        self.converts = bool(after.any())
        self.bytes = np.ceil(size).astype(np.int64).tolist()
        self.fixed, self.before, self.after = (
            [*np.rint(t * PS).astype(np.int64).tolist()] for t in (fixed, before, after)
        )


def port_bandwidth(worker: Worker, link: Link, nic: float) -> int:
    """Bytes/s of one direction of all ports of a worker that handoffs over `link` share."""
    accelerator, parallel = worker.accelerator, worker.parallelism
    if link.kind is LinkKind.SCALEUP:
        port = accelerator.scaleup.bandwidth
    elif link.kind is LinkKind.PCIE:
        port = accelerator.pcie_bandwidth
    else:
        port = nic or accelerator.nic_bandwidth
    lane = min(link.bandwidth, port) if port > 0 else link.bandwidth
    return max(1, int(lane * parallel.accelerators * link.efficiency))
