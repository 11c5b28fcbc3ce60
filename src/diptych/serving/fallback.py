"""What to do with a request whose KV or whose pool is gone: run it whole on one side, compute it again, hold it, or refuse it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Way(StrEnum):
    """A way on for one request."""

    APART = "apart"  # prefill and decode as designed, computing again what was lost
    ON_DECODE = "on decode"  # colocated on a decode worker: no prefill worker is up
    ON_PREFILL = "on prefill"  # colocated on a prefill worker: no decode worker is up
    HOLD = "hold"  # wait at the gateway for a worker
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Fallback:
    """`colocate` lets one pool do both jobs while the other is gone; `hold` keeps requests waiting when nothing can run them;
    after `retries` losses a request is refused. KV that validation refused is sent again `resends` times while its source still
    holds it, then computed again, which counts as a loss."""

    colocate: bool = True
    hold: bool = True
    retries: int = 3
    resends: int = 1

    def sends_again(self, attempts: int) -> bool:
        """Whether KV whose transfers, `attempts` so far, all arrived damaged is sent once more."""
        return attempts <= self.resends

    def way(self, prefill: bool, decode: bool, losses: int) -> Way:
        """The way for a request lost `losses` times, when a prefill and a decode worker are up or not.

        >>> Fallback().way(prefill=False, decode=True, losses=0)
        <Way.ON_DECODE: 'on decode'>
        """
        if losses > self.retries:
            return Way.REFUSE
        if prefill and decode:
            return Way.APART
        if self.colocate and (prefill or decode):
            return Way.ON_DECODE if decode else Way.ON_PREFILL
        return Way.HOLD if self.hold else Way.REFUSE
