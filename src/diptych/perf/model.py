"""The question everything else asks: how long does one step of one worker take?"""

from __future__ import annotations

from typing import Any, Protocol

from diptych.design.axes import Worker
from diptych.perf.estimate import Timing


class PerfModel(Protocol):
    """Seconds of one forward step. Every argument may be a scalar or an array; arrays broadcast.

    No method may return less than the physical floor (weights and KV over bandwidth, FLOP over peak), and
    no time may fall when batch, tokens or context grow.
    """

    def prefill(self, worker: Worker, tokens: Any, past: Any = 0, batch: Any = 1) -> Timing:
        """`batch` prompts, each with `tokens` new tokens after `past` cached ones, in one step."""
        ...

    def decode(self, worker: Worker, batch: Any, context: Any) -> Timing:
        """One token for each of `batch` sequences (whole worker, all DP ranks) with mean `context` tokens."""
        ...

    def mixed(self, worker: Worker, tokens: Any, past: Any, batch: Any, context: Any) -> Timing:
        """A chunked-prefill step: `tokens` prefill tokens after `past`, beside `batch` decoding sequences."""
        ...
