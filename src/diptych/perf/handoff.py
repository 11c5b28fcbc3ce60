"""One handoff priced whole: conversions, dispatch, the exposed part of the transfer, and the memory held at once on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.catalog.interconnect import Link, LinkKind
from diptych.design.axes import Worker
from diptych.design.boundary import Boundary, Overlap, Ownership, Placement, Side
from diptych.perf.estimate import Array
from diptych.perf.transfer import (
    conversion_seconds,
    exposed_seconds,
    path,
    pieces,
    staged_conversion_seconds,
    transfer_seconds,
    wire_bytes,
)

ROUND_TRIP = 1e-3
"""Seconds that a pull spends from the prefill worker through the proxy to the decode worker: one hop each way inside a site."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """What a handoff costs one request after its prefill (s), and what it holds (bytes). Arrays follow the token counts.

    `prefill_conversion` is also time the prefill worker cannot prefill, `decode_conversion` time the decode worker cannot decode.
    `source_bytes` stay pinned in prefill memory and `destination_bytes` reserved in decode memory until commit, beside the
    `staging_bytes` between them.
    """

    wire_bytes: Array
    transfer: Array
    exposed: Array
    dispatch: Array
    prefill_conversion: Array
    staged_conversion: Array
    decode_conversion: Array
    source_bytes: Array
    staging_bytes: Array
    destination_bytes: Array
    prefill: Array
    ownership: Ownership

    @property
    def delay(self) -> Array:
        """Seconds between the end of prefill and the moment decode may start: the handoff's share of TTFT."""
        return self.dispatch + self.prefill_conversion + self.exposed + self.staged_conversion + self.decode_conversion

    @property
    def transient_peak(self) -> Array:
        """Bytes held at once before commit: pinned source, staging and reserved destination."""
        return self.source_bytes + self.staging_bytes + self.destination_bytes

    def source_seconds(self, decode_wait: Any = 0.0) -> Array:
        """How long the source stays pinned after prefill when decode has no room for `decode_wait` seconds."""
        return np.asarray(decode_wait, dtype=float) + self.delay - self.decode_conversion

    @property
    def destination_seconds(self) -> Array:
        """How long the destination is reserved before decode starts: a push registers it before prefill, a pull when it reads."""
        return self.delay - self.dispatch + (self.prefill if self.ownership is Ownership.PUSH else 0.0)

    def pinned_bytes(self, rate: Any, decode_wait: Any = 0.0) -> Array:
        """Mean bytes of prefill memory that finished prompts occupy at `rate` requests/s (Little's law)."""
        pinned: Array = rate * self.source_bytes * self.source_seconds(decode_wait)
        return pinned


def handoff(
    prefill_worker: Worker,
    decode_worker: Worker,
    boundary: Boundary,
    tokens: Any,
    prefill: Any,
    *,
    link: Link | None = None,
    held: Any = 0,
    block: int = 16,
    chunks: Any = 1,
    sync: float = 0.0,
    round_trip: float = ROUND_TRIP,
    host_bandwidth: float | None = None,
) -> Handoff:
    """Price handing off prompts of `tokens` tokens whose prefill took `prefill` seconds, `held` tokens of which decode has.

    `link` is the path when NIC shares are known (`path(...)`), else the boundary's link over the workers' own NICs. Push streams
    during prefill when the boundary says so; pull waits for the whole prefill and a `round_trip`, then transfers. Prompts that
    stay local (colocated, or below a conditional boundary's length) cost and hold nothing. Each decode rank receives its own copy
    of a shared latent (MLA), as engines do it. `host_bandwidth` (bytes/s) is where a transfer-adjacent conversion runs; the
    prefill side's PCIe by default, its memory where that is shared with the host.
    """
    tokens, prefill = np.broadcast_arrays(np.asarray(tokens, dtype=float), np.asarray(prefill, dtype=float))
    away = _handed_off(boundary, tokens)
    sent = np.where(away, np.maximum(tokens - held, 0.0), 0.0)
    model, wire = prefill_worker.model, boundary.representation.wire
    tp = (prefill_worker.parallelism.tp, decode_worker.parallelism.tp)
    route = link or path(prefill_worker, decode_worker, boundary.link)
    size = np.where(away, wire_bytes(model, tokens, wire, *tp, held=held, latent_copies=tp[1]), 0.0)
    transfer = transfer_seconds(route, size, pieces(model, sent, block, *tp))
    push = boundary.ownership is Ownership.PUSH
    overlap, steps = (boundary.overlap, chunks) if push else (Overlap.SERIAL, 1)
    before, staged, after = _conversions(prefill_worker, decode_worker, boundary, sent, host_bandwidth)
    host_copies = 2 if boundary.link.kind is LinkKind.HOST_STAGED else 0
    copies = host_copies + (before > 0).astype(float) + (staged > 0) + (after > 0)
    return Handoff(
        wire_bytes=size,
        transfer=transfer,
        exposed=exposed_seconds(transfer, prefill, model.num_layers, overlap, steps, sync),
        dispatch=np.where(away & (not push), round_trip, 0.0),
        prefill_conversion=before,
        staged_conversion=staged,
        decode_conversion=after,
        source_bytes=np.where(away, _resident(prefill_worker, tokens), 0.0),
        staging_bytes=copies * size,
        destination_bytes=np.where(away, _resident(decode_worker, tokens), 0.0),
        prefill=np.where(away, prefill, 0.0),
        ownership=boundary.ownership,
    )


def _handed_off(boundary: Boundary, tokens: Array) -> NDArray[np.bool_]:
    if boundary.placement is Placement.COLOCATED:
        return np.zeros(tokens.shape, dtype=bool)
    if boundary.placement is Placement.CONDITIONAL:
        return tokens >= boundary.local_below
    return np.ones(tokens.shape, dtype=bool)


def _conversions(
    prefill_worker: Worker, decode_worker: Worker, boundary: Boundary, tokens: Array, host_bandwidth: float | None
) -> tuple[Array, Array, Array]:
    """Seconds on the prefill side, in staging and on the decode side: producer's format → wire → consumer's."""
    model, wire = prefill_worker.model, boundary.representation.wire
    made, used = prefill_worker.precision.kv, decode_worker.precision.kv
    if boundary.representation.converts_at is not Side.TRANSFER:
        before = conversion_seconds(model, tokens, made, wire, prefill_worker)
        return before, np.zeros_like(before), conversion_seconds(model, tokens, wire, used, decode_worker)
    bandwidth = host_bandwidth or staging_bandwidth(prefill_worker)
    staged = sum(
        (staged_conversion_seconds(model, tokens, *hop, bandwidth) for hop in ((made, wire), (wire, used))),
        start=np.zeros(tokens.shape),
    )
    return np.zeros_like(staged), staged, np.zeros_like(staged)


def staging_bandwidth(worker: Worker) -> float:
    """Bytes/s of a staging buffer beside the prefill side: its PCIe, or its memory where that is shared with the host."""
    return worker.accelerator.pcie_bandwidth or worker.accelerator.memory_bandwidth


def _resident(worker: Worker, tokens: Array) -> Array:
    """Bytes of KV and state that the ranks of `worker` hold for one request, copies included."""
    tp = worker.parallelism.tp
    return wire_bytes(worker.model, tokens, worker.precision.kv, tp, tp, latent_copies=tp)
