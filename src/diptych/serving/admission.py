"""Whether to take a request at all: refuse early what would miss its objectives, before any work is spent on it.

A decode pool judged by its load now is full of requests that will be gone, and empty of those that prefill will send, when this
one gets there; rejecting on it makes both pools swing in opposite phase (Mooncake, FAST'25, 7.3). So decode is judged by the load
predicted for the moment of the handoff.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Outlook(Protocol):
    """What a driver must be able to predict for one request, in seconds."""

    def ttft(self) -> float: ...
    def tpot(self, batch: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Admission:
    """Limits in seconds; ∞ leaves a latency unjudged. `decode_seconds` is how long an answer takes, for the prediction."""

    ttft: float = float("inf")
    tpot: float = float("inf")
    at_handoff: bool = True
    decode_seconds: float = 10.0

    def admits(self, outlook: Outlook, decoding: int, ahead: int, until_handoff: float) -> bool:
        """Whether a request would keep both limits.

        `decoding` requests run on its decode worker, `ahead` are on their way to it, the handoff is `until_handoff` s away.
        """
        if outlook.ttft() > self.ttft:
            return False
        batch = self.load_at(decoding, ahead, until_handoff) if self.at_handoff else float(decoding)
        return outlook.tpot(batch + 1) <= self.tpot

    def load_at(self, decoding: int, ahead: int, seconds: float) -> float:
        """Requests decoding `seconds` from now: each ends after `decode_seconds`, so a share of them is gone by then.

        >>> Admission(decode_seconds=10).load_at(decoding=8, ahead=2, seconds=5)
        6.0
        """
        return decoding * max(0.0, 1.0 - seconds / self.decode_seconds) + ahead
