"""How many prefill workers for how many decode workers: exact integer sizing from the capacity of one worker of each.

A stage holds N·C requests/s, the pair min(N_P·C_P, N_D·C_D). The C are the stages' knees at the SLO, found elsewhere and inputs
here. Replicas of a fixed P:D shape are never multiplied: the two pools are sized apart, so nothing idles that need not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class StageWorker:
    """One worker of a stage: requests/s it holds, what it occupies and costs. An inventory counts accelerators by `kind`."""

    capacity: float
    accelerators: int = 1
    usd_per_hour: float = 0.0
    kind: str = ""

    def needed(self, rate: float) -> int:
        """The fewest workers that hold `rate` requests/s."""
        return max(1, math.ceil(rate / self.capacity - _ROUNDING))


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent: accelerators in all, USD per hour in all, accelerators of each kind."""

    accelerators: float = math.inf
    usd_per_hour: float = math.inf
    inventory: Mapping[str, int] = field(default_factory=dict)

    def most(self, worker: StageWorker, beside: StageWorker | None = None, count: int = 0) -> int:
        """The most workers that fit, with `count` workers of `beside` already bought."""
        used, spent = (count * beside.accelerators, count * beside.usd_per_hour) if beside else (0, 0.0)
        limits = [(self.accelerators - used) / worker.accelerators]
        if worker.usd_per_hour > 0:
            limits.append((self.usd_per_hour - spent) / worker.usd_per_hour)
        if worker.kind in self.inventory:
            taken = used if beside and beside.kind == worker.kind else 0
            limits.append((self.inventory[worker.kind] - taken) / worker.accelerators)
        if math.isinf(least := min(limits)):
            raise ValueError("the budget bounds neither accelerators nor their price")
        return max(0, math.floor(least + _ROUNDING))


@dataclass(frozen=True, slots=True)
class Balance:
    """A sized pair of pools, and what it holds, occupies, costs and leaves idle."""

    prefill: StageWorker
    decode: StageWorker
    prefill_workers: int
    decode_workers: int

    @property
    def rate(self) -> float:
        """Requests/s that both stages hold."""
        return min(self.prefill_workers * self.prefill.capacity, self.decode_workers * self.decode.capacity)

    @property
    def accelerators(self) -> int:
        return self.prefill_workers * self.prefill.accelerators + self.decode_workers * self.decode.accelerators

    @property
    def usd_per_hour(self) -> float:
        return self.prefill_workers * self.prefill.usd_per_hour + self.decode_workers * self.decode.usd_per_hour

    @property
    def rate_per_accelerator(self) -> float:
        return self.rate / self.accelerators

    def prefill_idle(self, rate: float | None = None) -> float:
        """Share of prefill capacity left over at `rate`, by default at the pair's own."""
        return 1 - (self.rate if rate is None else rate) / (self.prefill_workers * self.prefill.capacity)

    def decode_idle(self, rate: float | None = None) -> float:
        """Share of decode capacity left over at `rate`, by default at the pair's own."""
        return 1 - (self.rate if rate is None else rate) / (self.decode_workers * self.decode.capacity)

    def usd_per_million(self, tokens_per_request: float, rate: float | None = None) -> float:
        """USD per million tokens at `rate` requests/s (the pair's own by default), each request counting so many tokens."""
        tokens_per_hour = (self.rate if rate is None else rate) * tokens_per_request * 3600
        return self.usd_per_hour / tokens_per_hour * 1e6


MIXED_POOL_SHARE = (0.91, 0.95)
"""What a pool of unlike workers reached of the sum of its parts, least and most: MLPerf Inference v5.1 and v6.0, Llama-2-70B on
8 to 32 MI300X beside 8 or 16 MI325X and 8 MI355X, offline and server. Two like nodes reach 0.95 to 0.97: spreading costs most."""


def mixed_pool_rate(parts: Iterable[tuple[int, StageWorker]]) -> tuple[float, float]:
    """Requests/s that a pool of (count, worker) parts holds, least and most, from what audited mixed fleets reached."""
    whole = sum(count * worker.capacity for count, worker in parts)
    low, high = MIXED_POOL_SHARE
    return whole * low, whole * high


def balanced_ratio(prefill: StageWorker, decode: StageWorker) -> float:
    """N_P/N_D at which neither stage idles: C_D/C_P."""
    return decode.capacity / prefill.capacity


def balance(prefill: StageWorker, decode: StageWorker, budget: Budget) -> Balance | None:
    """The pair that holds the most requests/s within the budget; None when not even one of each fits.

    Every count of prefill workers is tried with all the decode workers that still fit, then both pools are cut to what the rate
    needs: exact, and among equals the one with the fewest accelerators.
    """
    best: Balance | None = None
    for count in range(1, budget.most(prefill) + 1):
        beside = budget.most(decode, prefill, count)
        if beside < 1:
            break
        pair = _trimmed(Balance(prefill, decode, count, beside))
        best = pair if best is None or _better(pair, best) else best
    return best


def best_rate(
    prefill_options: Iterable[StageWorker], decode_options: Iterable[StageWorker], budget: Budget
) -> Balance | None:
    """The best `balance` over all pairs of options: never worse when options or budget are added."""
    decode_options = tuple(decode_options)
    best: Balance | None = None
    for prefill in prefill_options:
        for decode in decode_options:
            pair = balance(prefill, decode, budget)
            if pair is not None and (best is None or _better(pair, best)):
                best = pair
    return best


def fewest(rate: float, prefill_options: Iterable[StageWorker], decode_options: Iterable[StageWorker]) -> Balance:
    """The pair with the fewest accelerators that holds `rate`: each stage is minimised alone, as nothing couples them."""
    return _least(rate, prefill_options, decode_options, lambda worker: (worker.accelerators, worker.usd_per_hour))


def cheapest(rate: float, prefill_options: Iterable[StageWorker], decode_options: Iterable[StageWorker]) -> Balance:
    """The cheapest pair that holds `rate`."""
    return _least(rate, prefill_options, decode_options, lambda worker: (worker.usd_per_hour, worker.accelerators))


@dataclass(frozen=True, slots=True)
class Split:
    """A length threshold with remote prefill above it: the share sent away, the pools, and what each stage holds (requests/s)."""

    threshold: float
    share: float
    prefill_workers: int
    decode_workers: int
    remote_rate: float
    local_rate: float
    decode_rate: float

    @property
    def rate(self) -> float:
        """Λ = min(Θ_remote/p, Θ_local/(1−p), Θ_D)."""
        return float(split_rate(self.share, self.remote_rate, self.local_rate, self.decode_rate))


def split_rate(share: Any, remote_rate: Any, local_rate: Any, decode_rate: Any) -> Array:
    """Requests/s of a fleet that prefills a `share` p of requests remotely: Λ = min(Θ_remote/p, Θ_local/(1−p), Θ_D).

    (Prefill-as-a-Service, arXiv:2604.15039.) A stage that nothing reaches does not bound.
    """
    share = np.asarray(share, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        remote = np.where(share > 0, np.asarray(remote_rate, dtype=float) / share, np.inf)
        local = np.where(share < 1, np.asarray(local_rate, dtype=float) / (1 - share), np.inf)
    rate: Array = np.minimum(np.minimum(remote, local), decode_rate)
    return rate


def above_and_below(isl: Array, weight: Array, thresholds: Array) -> tuple[Array, Array, Array]:
    """(share of requests above, mean length above, mean length below) each threshold, from weighted lengths.

    Lengths of shape (n,), thresholds of shape (m,); all results have shape (m,). An empty side has the threshold as its mean.
    """
    order = np.argsort(isl, kind="stable")
    sorted_isl = isl[order]
    mass = np.concatenate([[0.0], np.cumsum(weight[order])])
    moment = np.concatenate([[0.0], np.cumsum(weight[order] * sorted_isl)])
    cut = np.searchsorted(sorted_isl, thresholds, side="right")
    below, above = mass[cut], mass[-1] - mass[cut]
    mean_above = np.divide(moment[-1] - moment[cut], above, out=thresholds.astype(float), where=above > _ROUNDING)
    mean_below = np.divide(moment[cut], below, out=thresholds.astype(float), where=below > _ROUNDING)
    return above / mass[-1], mean_above, mean_below


def best_split(
    thresholds: Array, share: Array, remote_rate: Array, local_seconds: Array, decode_capacity: float, workers: int
) -> Split:
    """The threshold and the division of `workers` into prefill and decode that hold the most requests/s.

    Arrays run over thresholds: the share above, what the remote pool holds, seconds of one local prefill below. The grid
    thresholds × divisions is searched whole; among equals the lowest threshold and the fewest prefill workers.
    """
    prefill = np.arange(0, workers)[:, None]
    local = prefill / local_seconds[None, :]
    decode = (workers - prefill) * decode_capacity
    rates = split_rate(share[None, :], remote_rate[None, :], local, decode)
    row, column = np.unravel_index(int(np.argmax(rates)), rates.shape)
    return Split(
        threshold=float(thresholds[column]),
        share=float(share[column]),
        prefill_workers=int(row),
        decode_workers=workers - int(row),
        remote_rate=float(remote_rate[column]),
        local_rate=float(local[row, column]),
        decode_rate=float(decode[row, 0]),
    )


def _trimmed(pair: Balance) -> Balance:
    rate = pair.rate
    return Balance(pair.prefill, pair.decode, pair.prefill.needed(rate), pair.decode.needed(rate))


def _better(one: Balance, other: Balance) -> bool:
    """More requests/s, then fewer accelerators, then cheaper."""
    if not math.isclose(one.rate, other.rate, rel_tol=_ROUNDING):
        return one.rate > other.rate
    return (one.accelerators, one.usd_per_hour) < (other.accelerators, other.usd_per_hour)


def _least(rate: float, prefill_options: Any, decode_options: Any, cost: Any) -> Balance:
    def least(options: Iterable[StageWorker]) -> StageWorker:
        return min(options, key=lambda worker: tuple(worker.needed(rate) * part for part in cost(worker)))

    prefill, decode = least(prefill_options), least(decode_options)
    return Balance(prefill, decode, prefill.needed(rate), decode.needed(rate))
