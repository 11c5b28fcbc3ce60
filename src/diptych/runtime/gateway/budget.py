"""How many further attempts the gateway may make: retries must not multiply the load that made them necessary."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RetryBudget:
    """A share of new requests, and a floor per second, over a window of `window` seconds (Linkerd: 20 %, 10/s, 10 s)."""

    share: float = 0.2
    floor: float = 10.0
    window: float = 10.0
    tokens: float = 0.0
    at: float | None = None
    refused: int = 0

    def asked(self, now: float) -> None:
        """A new request."""
        self._refill(now)
        self.tokens = min(self.tokens + self.share, self._most)

    def take(self, now: float) -> bool:
        """Whether another attempt may begin now."""
        self._refill(now)
        if self.tokens < 1 - 1e-9:
            self.refused += 1
            return False
        self.tokens -= 1
        return True

    @property
    def _most(self) -> float:
        return self.floor * self.window * 10

    def _refill(self, now: float) -> None:
        if self.at is None:
            self.tokens, self.at = self.floor * self.window, now
        gained = max(0.0, now - self.at) * self.floor
        self.at = now
        if self.tokens < self.floor * self.window:
            self.tokens = min(self.tokens + gained, self.floor * self.window)
