"""What a driver is free to choose beyond the design: how to route, batch, admit, retain and fall back. Defaults are engines' own."""

from __future__ import annotations

from dataclasses import dataclass

from diptych.serving.router import Routing


@dataclass(frozen=True, slots=True)
class Policy:
    """How a fleet is run.

    `reserve` holds prompt and answer blocks from admission on; without it decodes grow and may be preempted (vLLM).
    `round_trip` is what a pull spends between prefill's answer and decode's read, in seconds.
    """

    prefill_routing: Routing = Routing.LEAST_LOADED
    decode_routing: Routing = Routing.LEAST_LOADED
    shortest_first: bool = False
    chunked: bool = True
    reserve: bool = False
    block: int = 16
    prefix_cache: bool = True
    round_trip: float = 1e-3
    per_chunk: bool = False
