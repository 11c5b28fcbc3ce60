"""The ways a request may go through a fleet, and the latencies and parts that all of them together come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.perf.estimate import Array
from diptych.planner.delay import Delay
from diptych.planner.meeting import Meeting
from diptych.planner.plan import Latency, Trust

PERCENTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, eq=False)
class Way:
    """One way, with its `share` of the requests: the delay to decode's start, then its first step and the answer (s).

    `converting` and `moving` are the mean seconds of the handoff inside `delay`; `first_step` is None where no other side makes
    it. `first_step` and `answer` are by step of the rate, shape (R, 1) and (R, K).
    """

    share: float
    delay: Delay
    answer: Array
    first_step: Array | None = None
    converting: float = 0.0
    moving: float = 0.0

    @classmethod
    def handed(cls, share: float, delay: Delay, meeting: Meeting, step: Any, answer: Array) -> Way:
        """A way through a handoff; `step` is decode's first one, shape (R,)."""
        lengths, handing = meeting.first.load.lengths, meeting.handoff
        converting = handing.prefill_conversion + handing.staged_conversion + handing.decode_conversion
        return cls(
            share, delay, answer, np.asarray(step)[..., None], lengths.mean(converting),
            lengths.mean(handing.dispatch + handing.exposed),
        )  # fmt: skip

    @property
    def decoded(self) -> Delay:
        """The delay to the end of decode's first step."""
        return self.delay if self.first_step is None else self.delay.after(self.first_step)

    @property
    def whole(self) -> Delay:
        """The delay to the last token."""
        return self.delay.after(self.answer)

    def parts(self) -> dict[str, float]:
        """Mean seconds of the delay to decode's first token, by name."""
        before, link = (float(np.squeeze(wait)) for wait in self.delay.waits)
        mean = float(np.squeeze(self.delay.mean))
        told = {"wait": before, "prefill": mean - before - link - self.converting - self.moving}
        if self.first_step is None:
            return told
        more = float(np.squeeze(self.decoded.mean)) - mean
        return told | {"conversion": self.converting, "transfer": self.moving + link, "first step": more}


@dataclass(frozen=True, slots=True)
class Blend:
    """A delay over several ways, each with its share of the requests."""

    parts: tuple[tuple[float, Delay], ...]

    @property
    def mean(self) -> float:
        return sum(share * float(np.squeeze(delay.mean)) for share, delay in self.parts)

    def quantile(self, q: float) -> float:
        """Seconds that a share `q` of all requests does not exceed, by halving between the ways' own quantiles."""
        own = [float(np.squeeze(delay.quantile(q))) for _, delay in self.parts]
        low, high = min(own), max(own)
        for _ in range(40 if low < high < np.inf else 0):
            middle = (low + high) / 2
            met = sum(share * float(np.squeeze(delay.attainment(middle))) for share, delay in self.parts)
            low, high = (low, middle) if met >= q - 1e-12 else (middle, high)
        return high

    def latency(self, floor: float, trust: Trust) -> Latency:
        p50, p90, p99 = (self.quantile(q) for q in PERCENTILES)
        return Latency(self.mean, p50, p90, p99, floor, trust)


@dataclass(frozen=True, slots=True)
class Seen:
    """What requests see of a fleet: latencies, and the mean of `ttft_decode` in parts that add up to it."""

    ttft: Latency
    ttft_decode: Latency
    e2e: Latency
    parts: dict[str, float]


def seen(ways: Sequence[Way], floor: float, step_floor: float, first: Trust, both: Trust) -> Seen:
    """The latencies over all `ways`. `floor` and `step_floor` are physical bounds on prefill with handoff and on a token."""
    parts: dict[str, float] = {}
    for way in ways:
        for name, seconds in way.parts().items():
            parts[name] = parts.get(name, 0.0) + way.share * seconds
    apart = any(way.first_step is not None for way in ways)
    ttft = Blend(tuple((way.share, way.delay) for way in ways)).latency(floor, first)
    decoded = Blend(tuple((way.share, way.decoded) for way in ways))
    return Seen(
        ttft,
        decoded.latency(floor + step_floor, both) if apart else ttft,
        Blend(tuple((way.share, way.whole) for way in ways)).latency(floor, both),
        parts,
    )
