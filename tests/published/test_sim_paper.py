"""Tables 6 and 7 of arXiv:2606.29708 in shape: a shared path of 0.75 GB/s, not compute, is what saturates."""

from __future__ import annotations

import numpy as np
import pytest
import truth_paper as truth


@pytest.mark.parametrize("case", truth.CASES, ids=lambda case: case.name)
def test_16_bit_kv_saturates_alike(compare, case: truth.Case) -> None:
    rate = truth.served(truth.run(case, 1.0))
    compare(f"Table 7 {case.name}, requests/s at 1.0 offered", case.served, rate, 0.12)
    assert 0.65 <= rate <= 0.75


def test_fp8_kv_lifts_the_ceiling(compare) -> None:
    bf16, fp8 = truth.CASES[0], truth.FP8_KV
    compare("Table 6 FP8 KV, requests/s at 1.0 offered", fp8.served, truth.served(truth.run(fp8, 1.0)), 0.10)
    gain = truth.served(truth.run(fp8, 2.0)) / truth.served(truth.run(bf16, 2.0))
    assert 1.3 <= gain <= 2.0


@pytest.mark.parametrize("case", truth.CASES, ids=lambda case: case.name)
def test_tpot_where_nothing_queues(compare, case: truth.Case) -> None:
    """Weights decide TPOT. The paper's is taken under load, where the path keeps decode nearly empty."""
    tpot = float(np.quantile(truth.run(case, 0.1).requests.tpot, 0.99))
    compare(f"Table 7 {case.name}, TPOT p99, s", case.tpot_p99, tpot, 0.25)


def test_weights_do_not_shorten_the_queue() -> None:
    """Quantised weights lower TPOT and leave TTFT p99 where it was: the path is full either way."""
    waits = [float(np.quantile(truth.run(case, 1.0).requests.ttft, 0.99)) for case in truth.CASES]
    assert max(waits) < 1.25 * min(waits)


def test_a_wide_path_moves_the_limit_elsewhere() -> None:
    """With NVLink's own bandwidth the same node serves twice as much: prefill binds."""
    found = truth.run(truth.CASES[0], 3.0, path=400e9)
    assert truth.served(found) > 1.6 * truth.CASES[0].served


def test_low_rate_ttft(compare) -> None:
    """Table 6, 4P4D BF16 at 0.1 requests/s: prefill and one transfer. Its tails (p90 6.3 s) are not explained by queueing."""
    ttft = float(np.quantile(truth.run(truth.CASES[0], 0.1).requests.ttft, 0.5))
    compare("Table 6 BF16 KV at 0.1 requests/s, TTFT p50, s", 3.35, ttft, 0.15)
