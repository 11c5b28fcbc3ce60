"""What the live page shows: percentiles over the last minutes, one point a second, counts by reason, cost."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from diptych.runtime.gateway.meters import Meters
from diptych.runtime.gateway.roster import Roster
from diptych.runtime.messages import Handed

if TYPE_CHECKING:
    from diptych.runtime.gateway.answer import Answer

POINTS = 300
WINDOW = 120.0
COST_WINDOW = 60
ROLES = ("prefill", "decode", "colocated")
SHARES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Finished:
    """One complete answer, seconds."""

    at: float
    ttft: float
    tpot: float | None
    e2e: float


class Watched(Protocol):
    """What is watched: a gateway over our own workers, or over another engine's."""

    roster: Roster
    meters: Meters

    def ledger(self) -> dict[str, int]: ...


class History:
    """Filled by the service, read by `snapshot`. `told` counts the tokens given to clients."""

    def __init__(self, service: Watched) -> None:
        self._service = service
        self._finished: deque[Finished] = deque(maxlen=20_000)
        self.points: deque[dict[str, Any]] = deque(maxlen=POINTS)
        self.counts: Counter[str] = Counter()
        self.routes: Counter[tuple[str, str]] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.conversions: Counter[str] = Counter()
        self.pairs: dict[tuple[str, str], list[float]] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=50)
        self.told, self._bytes = 0, 0.0
        self._next = 0.0
        self._last = (0.0, 0.0, 0)

    def finished(self, answer: Answer, now: float) -> None:
        tpot = answer.tpot if answer.count > 1 else None
        self.lasted(Finished(now, answer.first - answer.began, tpot, now - answer.began))

    def lasted(self, answer: Finished) -> None:
        """One more; those that no percentile looks at any more are forgotten."""
        self.counts["finished"] += 1
        self._finished.append(answer)
        while self._finished[0].at < answer.at - WINDOW:
            self._finished.popleft()

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def refused(self, code: str) -> None:
        self.counts["refused"] += 1
        self.refusals[code] += 1

    def routed(self, path: str, reason: str) -> None:
        self.routes[path, reason] += 1

    def fell_back(self, reason: str) -> None:
        self.fallbacks[reason] += 1
        self._event("fallback", reason)

    def lost_worker(self, name: str, why: str) -> None:
        self._event("worker lost", f"{name}: {why}")

    def handed(self, source: str, target: str, said: Handed) -> None:
        self.moved(source, target, 1, said.bytes, said.seconds)
        if said.converted:
            self.conversions[said.converted] += 1

    def moved(self, source: str, target: str, count: float, size: float, seconds: float) -> None:
        """So many handoffs more, of so many bytes together."""
        pair = self.pairs.setdefault((source, target), [0, 0.0, 0.0])
        pair[0] += count
        pair[1] += size
        pair[2] += seconds
        self._bytes += size

    def _event(self, kind: str, text: str) -> None:
        self.events.append({"at": time.time(), "kind": kind, "text": text[:200]})

    # --- a point a second -------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        if now < self._next:
            return
        then, moved, said = self._last
        age = now - then if then else 1.0
        latencies = self.latencies(now, 10.0)
        self.points.append(
            {
                "at": time.time(),
                "queued": self._queued(),
                "open": self._service.ledger()["answers"],
                "tokens_per_second": (self.told - said) / age if then else 0.0,
                "transfer_bytes_per_second": (self._bytes - moved) / age if then else 0.0,
                "ttft_p50": latencies["ttft"]["p50"],
                "ttft_p99": latencies["ttft"]["p99"],
                "tpot_p50": latencies["tpot"]["p50"],
                "e2e_p50": latencies["e2e"]["p50"],
            }
        )
        self._last, self._next = (now, self._bytes, self.told), now + 1.0
        cost = self.cost()
        if cost is not None:
            self._service.meters.cost.set(cost)

    def _queued(self) -> dict[str, int]:
        """Requests queued per role; only roles that exist."""
        roster = self._service.roster
        return {
            role: sum(each.last.queued for each in roster if each.role == role and each.last)
            for role in ROLES
            if any(each.role == role for each in roster)
        }

    def latencies(self, now: float, window: float = WINDOW) -> dict[str, dict[str, float | None]]:
        """Percentiles of answers that were finished within the window, seconds."""
        recent = [each for each in self._finished if each.at >= now - window]
        return {
            "ttft": percentiles([each.ttft for each in recent]),
            "tpot": percentiles([each.tpot for each in recent if each.tpot is not None]),
            "e2e": percentiles([each.e2e for each in recent]),
        }

    def cost(self) -> float | None:
        """USD per million tokens over the last minute; None when a price is unknown or nothing was said."""
        prices = [each.endpoint.usd_per_hour for each in self._service.roster]
        rates = [each["tokens_per_second"] for each in list(self.points)[-COST_WINDOW:]]
        mean = sum(rates) / len(rates) if rates else 0.0
        known = [price for price in prices if price is not None]
        if len(known) < len(prices) or mean <= 0:
            return None
        return sum(known) / 3600 / mean * 1e6


def percentiles(values: list[float]) -> dict[str, float | None]:
    """Nearest-rank percentiles.

    >>> percentiles([3.0, 1.0, 2.0])
    {'p50': 2.0, 'p90': 3.0, 'p99': 3.0}
    """
    ordered = sorted(values)
    return {f"p{share}": ordered[-(-share * len(ordered) // 100) - 1] if ordered else None for share in SHARES}
