"""How far the times of a worker may be trusted, and what no worker of its kind can beat."""

from __future__ import annotations

import numpy as np

from diptych.design.axes import Worker
from diptych.perf.estimate import Array, Basis, Timing
from diptych.planner.ask import Ask
from diptych.planner.plan import Trust

_ORDER = (Basis.MEASURED, Basis.FITTED, Basis.ROOFLINE)


def trust_of(timing: Timing) -> Trust:
    return Trust(timing.basis, float(timing.band), bool(np.any(timing.outside)))


def worse(one: Trust, other: Trust) -> Trust:
    """The weaker basis, the wider band."""
    basis = max(one.basis, other.basis, key=_ORDER.index)
    return Trust(basis, max(one.band, other.band), one.outside_measured or other.outside_measured)


def prefill_trust(ask: Ask, worker: Worker) -> Trust:
    return trust_of(_prefill_timing(ask, worker))


def decode_trust(ask: Ask, worker: Worker) -> Trust:
    return trust_of(ask.perf.decode(worker, np.array([1.0, 64.0]), ask.lengths.mean_isl + ask.lengths.mean_osl / 2))


def ttft_floor(ask: Ask, worker: Worker) -> float:
    """Seconds that the median prompt takes at least."""
    floor: Array = np.asarray(_prefill_timing(ask, worker).floor)
    return ask.lengths.quantile(np.broadcast_to(floor, ask.lengths.isl.shape), 0.5)


def tpot_floor(ask: Ask, worker: Worker, context: float) -> float:
    """Seconds that a token of a lone sequence takes at least."""
    return float(np.min(ask.perf.decode(worker, 1.0, context).floor))


def _prefill_timing(ask: Ask, worker: Worker) -> Timing:
    new = np.maximum(ask.lengths.isl - ask.lengths.cached, 1.0)
    return ask.perf.prefill(worker, new, ask.lengths.cached)
