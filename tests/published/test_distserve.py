"""DistServe (OSDI'24): its sizing example and its queueing forms (section 3.1)."""

from __future__ import annotations

import pytest

from diptych.perf.queueing import md1_response, two_stage_response
from diptych.planner.balance import Budget, StageWorker, balance, balanced_ratio

# OPT-13B on A100-80G, 512 in, 64 out, p90 SLO: one GPU holds 5.6 requests/s of prefill or 10 of decode; colocated 1.6
PREFILL, DECODE, COLOCATED = StageWorker(5.6), StageWorker(10.0), 1.6


def test_two_prefill_and_one_decode(compare) -> None:
    pair = balance(PREFILL, DECODE, Budget(accelerators=3))
    assert pair is not None
    assert (pair.prefill_workers, pair.decode_workers) == (2, 1)
    compare("DistServe 2P1D rate, requests/s", 10.0, pair.rate, 0)
    compare("DistServe 2P1D rate per GPU, requests/s", 3.3, round(pair.rate_per_accelerator, 1), 0)
    compare("DistServe gain over colocated", 2.1, round(pair.rate_per_accelerator / COLOCATED, 1), 0)
    assert pair.decode_idle() == 0
    assert pair.prefill_idle() == pytest.approx(1 - 10 / 11.2)
    assert balanced_ratio(PREFILL, DECODE) == pytest.approx(10 / 5.6)


@pytest.mark.parametrize(
    ("what", "stepped", "ours"),
    # a step-by-step simulation of the same queues gave these
    [
        ("M/D/1 response at 0.7", 2.157, md1_response(1.0, 0.7)),
        ("two stages at 1.4", 1.579, two_stage_response(1.0, 1.4)),
    ],
)
def test_queueing_forms(compare, what: str, stepped: float, ours: float) -> None:
    compare(f"DistServe {what}", stepped, ours, 0.01)
