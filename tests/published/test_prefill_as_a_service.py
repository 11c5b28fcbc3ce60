"""Prefill-as-a-Service (arXiv:2604.15039): 32 H200 prefill remotely for 64 H20, against 96 H20 alone.

The profile of 8xH200 is the paper's and read at mean lengths, as the paper reads it. Lengths are binary (1K = 1024), as its
KV sizes are. The paper gives no profile of 8xH20; two of its rates fix a straight line, so the local rate is in sample, the
remote rate, Λ, the threshold and the 3P/5D division are predicted.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from diptych.planner.balance import above_and_below, best_split, split_rate
from diptych.units import MIB

K = 1024
PROFILE_TOKENS = np.array([1, 8, 32, 128]) * K
PROFILE_SECONDS = np.array([0.44, 0.72, 1.84, 7.40])
PROFILE_KV_MIB = np.array([190.8, 308.9, 701.3, 2316.3])
MU, SIGMA, SHORTEST, LONGEST = 9.90, 1.00, 128, 128 * K
LINK = 100e9 / 8
DECODE = 20 / (0.025 * 1024)  # one 8xH20 instance: 20 requests at 40 tokens/s, 1024 tokens each
REMOTE_INSTANCES, LOCAL_INSTANCES = 4, 8


def cumulative(length: float) -> float:
    return 0.5 * (1 + math.erf((math.log(length) - MU) / (SIGMA * math.sqrt(2))))


@pytest.fixture(scope="module")
def lengths() -> tuple[np.ndarray, np.ndarray]:
    """The truncated log-normal as 20,000 weighted points."""
    edges = np.geomspace(SHORTEST, LONGEST, 20_001)
    weight = np.diff([cumulative(edge) for edge in edges])
    return np.sqrt(edges[1:] * edges[:-1]), weight / weight.sum()


def h200_seconds(tokens: np.ndarray) -> np.ndarray:
    return np.interp(tokens, PROFILE_TOKENS, PROFILE_SECONDS)


def kv_bytes(tokens: np.ndarray) -> np.ndarray:
    return np.interp(tokens, PROFILE_TOKENS, PROFILE_KV_MIB) * MIB


def h20_seconds(tokens: np.ndarray, mean: float, mean_below: float) -> np.ndarray:
    """The line through the homogeneous fleet (9 instances, 2.11 requests/s) and the local pool (3, 1.64)."""
    slope = (9 / 2.11 - 3 / 1.64) / (mean - mean_below)
    return 3 / 1.64 + slope * (tokens - mean_below)


@pytest.fixture(scope="module")
def split(lengths):
    isl, weight = lengths
    thresholds = np.arange(1_000, 120_000, 100)
    share, above, below = above_and_below(isl, weight, thresholds)
    mean = float(np.dot(isl, weight))
    _, _, at_paper = above_and_below(isl, weight, np.array([19_400]))
    remote = np.minimum(REMOTE_INSTANCES / h200_seconds(above), LINK / kv_bytes(above))
    local = h20_seconds(below, mean, float(at_paper[0]))
    return best_split(thresholds, share, remote, local, DECODE, LOCAL_INSTANCES)


def test_length_statistics(compare, lengths) -> None:
    isl, weight = lengths
    share, above, below = above_and_below(isl, weight, np.array([19_400]))
    compare("PrfaaS mean prompt, Ki tokens", 27, float(np.dot(isl, weight)) / K, 0.03)
    compare("PrfaaS share above 19.4K", 0.496, float(share[0]), 0.03)
    compare("PrfaaS mean prompt above 19.4K, Ki tokens", 44, float(above[0]) / K, 0.03)
    assert share[0] * above[0] + (1 - share[0]) * below[0] == pytest.approx(float(np.dot(isl, weight)))


def test_kv_rates(compare) -> None:
    for tokens, published in zip((1, 8, 32, 128), (3.61, 3.59, 3.19, 2.62), strict=True):
        at = np.array(tokens * K)
        compare(
            f"PrfaaS KV rate of 8xH200 at {tokens}K, Gb/s", published, kv_bytes(at) / h200_seconds(at) * 8 / 1e9, 0.03
        )


def test_stage_rates_at_the_published_design(compare, lengths) -> None:
    isl, weight = lengths
    share, above, below = above_and_below(isl, weight, np.array([19_400]))
    mean = float(np.dot(isl, weight))
    remote = 4 / float(h200_seconds(above[0]))
    local = 3 / float(h20_seconds(below[0], mean, float(below[0])))
    compare("PrfaaS remote prefill, requests/s", 1.61, remote, 0.03)
    compare("PrfaaS local prefill, requests/s", 1.64, local, 0.03, in_sample=True)
    for instances, published in ((5, 3.91), (3, 2.35), (8, 6.25)):
        compare(
            f"PrfaaS decode of {instances} instances, requests/s", published, instances * DECODE, 0.005, in_sample=True
        )
    compare(
        "PrfaaS rate at the published design, requests/s",
        3.24,
        float(split_rate(share[0], remote, local, 5 * DECODE)),
        0.03,
    )
    egress = remote * float(kv_bytes(above[0])) * 8 / 1e9
    compare("PrfaaS egress, Gb/s", 13, egress, 0.10)
    assert egress * 1e9 / 8 < LINK


def test_the_search_finds_the_published_design(compare, split) -> None:
    assert (split.prefill_workers, split.decode_workers) == (3, 5)
    assert 18_000 <= split.threshold <= 21_000
    compare("PrfaaS best threshold, tokens", 19_400, split.threshold, 0.08)
    compare("PrfaaS best rate, requests/s", 3.24, split.rate, 0.03)
    assert split.remote_rate / split.share == pytest.approx(split.local_rate / (1 - split.share), rel=0.01)


def test_gains_over_homogeneous(compare, lengths, split) -> None:
    isl, weight = lengths
    homogeneous = min(9 / (9 / 2.11), 3 * DECODE)
    naive = min(4 / float(h200_seconds(np.dot(isl, weight))), 8 * DECODE)
    compare("PrfaaS naive heterogeneous rate, requests/s", 2.45, naive, 0.03)
    compare("PrfaaS naive heterogeneous gain", 1.16, naive / homogeneous, 0.03)
    compare("PrfaaS rebalanced gain", 1.54, split.rate / homogeneous, 0.03)
    assert 1 - naive / (8 * DECODE) > 0.5  # naive wiring strands more than half of decode
