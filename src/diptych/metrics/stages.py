"""Where a request's time went: the stages between its timestamps, which add up to its end-to-end latency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diptych.metrics.measurements import Floats, RequestColumns

STAGES = ("queue", "prefill", "convert", "transfer", "wait", "decode")
"""queue: until its first chunk is computed; prefill; convert: rewriting KV, on whichever side; transfer: room on the decode
side, the link's queue and the bytes; wait: until it joins a decode batch; decode."""


@dataclass(frozen=True, slots=True)
class Conversions:
    """Seconds of conversion per request, shape (n,), by where they happen: on the prefill engine, beside the transfer, on the
    decode engine."""

    prefill: Floats
    transfer: Floats
    decode: Floats


def stages(requests: RequestColumns, conversions: Conversions | None = None) -> Mapping[str, Floats]:
    """Seconds of each stage of the requests that finished, shape (finished,) each; their sum is `e2e`.

    What was computed again after a loss counts where it ended up: between the timestamps that were kept.
    """
    done = requests.finished
    start, first, moved, joined, finish = (
        getattr(requests, name)[done] for name in ("prefill_start", "first_token", "moved", "decode_start", "finish")
    )
    arrival = requests.arrival[done]
    start = np.where(np.isnan(start), first, start)
    moved = np.fmax(np.where(np.isnan(moved), first, moved), first)
    joined = np.fmax(np.where(np.isnan(joined), moved, joined), moved)
    queue, prefill, transfer, wait = start - arrival, first - start, moved - first, joined - moved
    convert = np.zeros(len(arrival))
    if conversions is not None:
        at = [np.minimum(part[done], whole) for part, whole in zip(
            (conversions.prefill, conversions.transfer, conversions.decode), (prefill, transfer, wait), strict=True)]  # fmt: skip
        prefill, transfer, wait = prefill - at[0], transfer - at[1], wait - at[2]
        convert = at[0] + at[1] + at[2]
    parts = (queue, prefill, convert, transfer, wait, finish - joined)
    return dict(zip(STAGES, parts, strict=True))
