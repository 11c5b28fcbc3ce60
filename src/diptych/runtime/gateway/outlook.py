"""What the gateway expects of a worker, from what it has seen of it: seconds per prompt token ahead, seconds per decode step."""

from __future__ import annotations

from dataclasses import dataclass, field

WEIGHT = 0.1
"""Of a new observation; older ones fade."""


@dataclass(slots=True)
class Mean:
    """A fading mean; `value` is 0 until something was seen."""

    value: float = 0.0
    seen: int = 0

    def add(self, value: float) -> None:
        self.seen += 1
        self.value += max(WEIGHT, 1 / self.seen) * (value - self.value)


@dataclass(slots=True)
class Line:
    """A fading least-squares line through (x, y), never falling: a larger batch is not taken to be faster."""

    x: Mean = field(default_factory=Mean)
    y: Mean = field(default_factory=Mean)
    xx: Mean = field(default_factory=Mean)
    xy: Mean = field(default_factory=Mean)

    def add(self, x: float, y: float) -> None:
        for mean, value in ((self.x, x), (self.y, y), (self.xx, x * x), (self.xy, x * y)):
            mean.add(value)

    def at(self, x: float) -> float:
        spread = self.xx.value - self.x.value**2
        slope = (self.xy.value - self.x.value * self.y.value) / spread if spread > 1e-9 else 0.0
        return max(0.0, self.y.value + max(0.0, slope) * (x - self.x.value))


@dataclass(slots=True)
class Speed:
    """What was observed of one worker, both in seconds."""

    per_token: Mean = field(default_factory=Mean)  # to the first token, per prompt token before it and its own
    step: Line = field(default_factory=Line)  # between two tokens of a stream, over the streams on the worker


@dataclass(frozen=True, slots=True)
class Expected:
    """`serving.admission.Outlook` for one request: `ahead` prompt tokens are to be computed before its first token."""

    prefill: Speed
    decode: Speed
    ahead: int

    def ttft(self) -> float:
        return self.ahead * self.prefill.per_token.value

    def tpot(self, batch: float) -> float:
        return self.decode.step.at(batch)
