"""Pools under an open stream of requests: prefill, decode, and both in one. One import for the planner."""

from __future__ import annotations

from diptych.perf.colocated_pool import ColocatedPool, ColocatedState
from diptych.perf.decode_pool import DecodePool, DecodeState
from diptych.perf.latency import Latency
from diptych.perf.prefill_pool import PrefillPool

__all__ = ["ColocatedPool", "ColocatedState", "DecodePool", "DecodeState", "Latency", "PrefillPool"]
