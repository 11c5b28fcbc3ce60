"""How long a request waits for a worker: M/D/1 with its pipelined and tensor-parallel forms, and M/G/N.

Rates are requests/s, times seconds. Arguments are scalars or arrays and broadcast; a queue at or above its capacity waits ∞,
it never raises, so that a search can price every point of a grid. The M/D/1 family is that of DistServe (OSDI'24, section 3.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.perf.estimate import Array


def md1_response(service: Any, rate: Any) -> Array:
    """Mean wait plus service of one worker: D + R·D²/(2(1−R·D)).

    >>> round(float(md1_response(1.0, 0.7)), 3)
    2.167
    """
    service, rate = _floats(service, rate)
    response: Array = service + _grow(rate * service**2, 2 * (1 - rate * service))
    return response


def two_stage_response(service: Any, rate: Any) -> Array:
    """Mean response of a worker whose `service` is a pipeline of two equal stages: D + R·D²/(4(2−R·D)).

    The stages wait once, at the first: it takes D/2, so the pair holds twice the rate at the same service time.

    >>> round(float(two_stage_response(1.0, 1.4)), 3)
    1.583
    """
    service, rate = _floats(service, rate)
    response: Array = service + _grow(rate * service**2, 4 * (2 - rate * service))
    return response


def tensor_parallel_response(service: Any, rate: Any, speedup: Any) -> Array:
    """Mean response of a worker sped up K times (1 < K ≤ 2 for two ranks): D/K + R·D²/(2K(K−R·D))."""
    service, rate, speedup = _floats(service, rate, speedup)
    response: Array = service / speedup + _grow(rate * service**2, 2 * speedup * (speedup - rate * service))
    return response


def tensor_parallel_crossover(service: Any, speedup: Any) -> Array:
    """The rate above which two pipeline stages answer sooner than two tensor-parallel ranks with this speedup.

    Below it execution time dominates and tensor parallelism wins, above it queueing does; ∞ when the pipeline never wins.
    The responses meet where D(1−1/K) + R·D²·(1/(4(2−RD)) − 1/(2K(K−RD))) = 0, a quadratic in x = R·D.
    """
    service, k = _floats(service, speedup)
    gain = 1 - 1 / k
    a, b, c = gain - 0.25 + 0.5 / k, k / 4 - 1 / k - gain * (k + 2), 2 * gain * k
    with np.errstate(divide="ignore", invalid="ignore"):
        load = (-b - np.sqrt(b**2 - 4 * a * c)) / (2 * a)
    rate: Array = np.where(k < 2, load, np.inf) / service
    return rate


def mg1_wait(rate: Any, mean_service: Any, cv2_service: Any) -> Array:
    """Mean wait before one server (Pollaczek-Khinchine): ρ/(1−ρ) · s · (1+c²)/2, c² the squared variation of the service."""
    rate, mean_service, cv2_service = _floats(rate, mean_service, cv2_service)
    return _grow(rate * mean_service**2 * (1 + cv2_service), 2 * (1 - rate * mean_service))


NEVER = 1e-30
"""A probability below which nothing is worth computing: it counts as 0."""


_BLOCK = 256
"""Terms of Erlang's sum that are taken at once."""


def erlang_b(load: Any, servers: Any) -> Array:
    """Share of arrivals that find all of `servers` busy when none may wait; `load` = rate · mean service.

    1/B = Σ_k Π_{j<k} (n − j)/a: only positive terms, so exact to rounding for thousands of servers. The sum ends where the rest
    no longer counts, or where B falls below `NEVER`.
    """
    load, servers = np.broadcast_arrays(*_floats(load, servers))
    count, offered = np.floor(servers).reshape(-1, 1), np.maximum(load.reshape(-1, 1), 1e-300)
    inverse, term = np.ones(len(count)), np.ones((len(count), 1))
    most = int(count.max(initial=0))
    for first in range(0, most, _BLOCK):
        falling = count - np.arange(first, min(first + _BLOCK, most))
        with np.errstate(over="ignore", invalid="ignore"):
            terms = term * np.cumprod(np.maximum(falling, 0.0) / offered, axis=1)
            terms = np.where(falling > 0, terms, 0.0)
            inverse, term = inverse + terms.sum(axis=1), terms[:, -1:]
        over = (inverse > 1 / NEVER) | ((falling[:, -1] < 0.9 * offered[:, 0]) & (term[:, 0] < 1e-18 * inverse))
        if over.all():
            break  # a pool of thousands under a small load is not worth thousands of terms
    result: Array = np.where(inverse > 1 / NEVER, 0.0, 1.0 / inverse).reshape(load.shape)
    return result


def erlang_c(load: Any, servers: Any) -> Array:
    """Share of arrivals that must wait for one of `servers`; 1 at or above capacity, 0 without load.

    >>> round(float(erlang_c(8.0, 10)), 4)
    0.4092
    """
    load, servers = np.broadcast_arrays(*_floats(load, servers))
    stable = load < servers
    blocked = erlang_b(load, np.where(stable, servers, 0.0))
    utilisation = np.divide(load, servers, out=np.ones_like(blocked), where=stable)
    return np.where(stable, blocked / (1 - np.where(stable, utilisation, 0.0) * (1 - blocked)), 1.0)


@dataclass(frozen=True, slots=True)
class Wait:
    """A waiting time that is 0 with probability 1−`prob` and exponential with mean `mean_if_waiting` (s) otherwise."""

    prob: Array
    mean_if_waiting: Array

    @property
    def mean(self) -> Array:
        """Mean wait of all requests (s)."""
        with np.errstate(invalid="ignore"):
            return np.where(self.prob > 0, self.prob * self.mean_if_waiting, 0.0)

    def exceeds(self, t: Any) -> Array:
        """P(wait > t); 1 for t < 0, since a limit that is already missed is missed by everyone."""
        (t,) = _floats(t)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            decay = np.where(self.mean_if_waiting > 0, np.exp(-np.maximum(t, 0.0) / self.mean_if_waiting), 0.0)
        return np.where(t < 0, 1.0, self.prob * decay)

    def quantile(self, q: Any) -> Array:
        """The wait that a share `q` of requests does not exceed (s)."""
        (q,) = _floats(q)
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = self.mean_if_waiting * np.log(self.prob / (1 - q))
        return np.where(self.prob <= 1 - q, 0.0, beyond)


def wait(
    rate: Any, workers: Any, mean_service: Any, cv2_service: Any, cv2_arrivals: Any = 1.0, lasting: float = math.inf
) -> Wait:
    """Wait before a pool of `workers` that take the next request as they fall free (M/G/N, Allen-Cunneen).

    P(wait > 0) is Erlang's C; the mean of those who wait is s/(N(1−ρ)) · (c_a² + c_s²)/2. Exact for M/M/N and, in the mean,
    for M/G/1; `cv2_arrivals` is 1 for Poisson arrivals, above for bursty ones. A load that is `lasting` seconds only leaves a
    finite wait, also above capacity (`wait_while`).
    """
    rate, workers, mean_service, variation = _floats(
        rate, workers, mean_service, (np.asarray(cv2_service, dtype=float) + np.asarray(cv2_arrivals, dtype=float)) / 2
    )
    load = rate * mean_service
    if math.isfinite(lasting):
        return Wait(erlang_c(load, workers), wait_while(load / workers, mean_service * variation / workers, lasting))
    drain = _grow(mean_service * variation, workers - load)
    return Wait(erlang_c(load, workers), np.where((load >= workers) & (load > 0), np.inf, drain))


def wait_while(utilisation: Any, drain: Any, lasting: Any) -> Array:
    """Mean wait of those who wait, over the `lasting` seconds T of a load ρ that began at an empty queue.

    T/4 · (ρ−1 + √((ρ−1)² + 8d/T)), the time-dependent delay of road traffic (Akçelik 1980; Highway Capacity Manual 2000,
    equation 16-11), `drain` d being the wait at no load. It tends to d/(1−ρ), the queue in balance, as T grows, and far above
    capacity to T(ρ−1)/2, the backlog of a fluid. Falls as capacity is added, rises with the load, finite throughout.

    >>> round(float(wait_while(0.5, 1.0, 1e9)), 3), round(float(wait_while(1.5, 1e-6, 100.0)), 1)
    (2.0, 25.0)
    """
    utilisation, drain, lasting = _floats(utilisation, drain, lasting)
    excess, spread = utilisation - 1.0, 8.0 * drain / lasting
    root = np.sqrt(excess**2 + spread)
    # Below capacity the difference of two near numbers: the other root of the same square.
    mean: Array = lasting / 4 * np.where(excess < 0, spread / np.maximum(root - excess, 1e-300), root + excess)
    return mean


def _floats(*values: Any) -> tuple[Array, ...]:
    return tuple(np.asarray(value, dtype=float) for value in values)


def _grow(numerator: Array, slack: Array) -> Array:
    """numerator/slack, ∞ where the slack is used up (0 where there is no load at all)."""
    numerator, slack = np.broadcast_arrays(numerator, slack)
    full = np.where(numerator > 0, np.inf, 0.0)
    return np.divide(numerator, slack, out=full, where=slack > 0)
