"""One request as it was observed, simulated or real: when things happened to it, in seconds; what follows from that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum


class Outcome(IntEnum):
    """How a request ended."""

    FINISHED = 0
    TOO_LONG = 1  # no worker could ever hold it
    REJECTED = 2  # refused early: it would have missed its objectives
    LOST = 3  # refused after too many losses, or nobody came back to run it
    CANCELLED = 4  # its client gave up


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Timestamps in seconds, NaN where nothing happened; workers by index, −1 for none.

    `first_token` is computed by prefill; `moved` is when the decode side owned the KV (committed); `decode_start` when it joined
    a decode batch there. Where one worker does both, `decode_start` equals `first_token` unless it had to wait.
    """

    id: int
    arrival: float
    prefill_start: float
    first_token: float
    moved: float
    decode_start: float
    finish: float
    isl: int
    osl: int
    retries: int
    outcome: Outcome
    prefill_worker: int
    decode_worker: int

    @property
    def ttft_prefill(self) -> float:
        """Arrival to the first token as prefill computes it: hides the handoff."""
        return self.first_token - self.arrival

    @property
    def ttft(self) -> float:
        """Arrival to the first token that the decode side can stream: transfer, conversion and the wait for a slot included."""
        return self.first_token - self.arrival if math.isnan(self.decode_start) else self.decode_start - self.arrival

    @property
    def tpot(self) -> float:
        """Seconds per output token after the first; NaN for answers of one token."""
        return (self.finish - self.arrival - self.ttft) / (self.osl - 1) if self.osl > 1 else math.nan

    @property
    def e2e(self) -> float:
        """Arrival to the last token: ttft + (osl − 1)·tpot, always."""
        return self.finish - self.arrival
