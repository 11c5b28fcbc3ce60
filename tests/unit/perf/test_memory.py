"""Memory by hand, and the sentence when a model does not fit."""

from __future__ import annotations

import pytest
from timed_workers import CATALOG, FP4, FP8, worker

from diptych.perf.memory import (
    device_bytes,
    fit_problem,
    kv_capacity,
    kv_capacity_bytes,
    kv_replication,
    max_sequences,
    memory_plan,
    weight_bytes,
)


def test_weights_per_accelerator() -> None:
    """Llama-3.1-8B in 16 bit is 16.06 GB, half of it per rank at TP 2; FP8 halves the layers but not the embeddings."""
    assert weight_bytes(worker("Llama-3.1-8B", "H100")) == pytest.approx(16.06e9, rel=2e-3)
    assert weight_bytes(worker("Llama-3.1-8B", "H100", tp=2)) == pytest.approx(8.03e9, rel=2e-3)
    assert weight_bytes(worker("Llama-3.1-8B", "H100", FP8)) == pytest.approx(9.08e9, rel=5e-3)


def test_moe_weights_split_over_all_ranks_and_attention_is_copied_by_dp() -> None:
    tp, dp = (weight_bytes(worker("DeepSeek-V3", "H200", FP8, **p)) for p in ({"tp": 8, "ep": 8}, {"dp": 8, "ep": 8}))
    assert tp == pytest.approx(671e9 / 8, rel=0.02)
    assert 1.1 * tp < dp < 1.3 * tp


def test_4bit_moe_keeps_attention_wide() -> None:
    """gpt-oss-120b: 117e9 parameters, MXFP4 experts: the published checkpoint has 65 GB."""
    assert weight_bytes(worker("gpt-oss-120b", "B200", FP4)) == pytest.approx(65e9, rel=0.03)


@pytest.mark.parametrize(("name", "mib"), [("H100", 81559), ("H200", 143771), ("B200", 183359), ("L40S", 46068)])
def test_devices_show_what_the_driver_shows(name: str, mib: float) -> None:
    assert device_bytes(CATALOG.accelerator(name)) == pytest.approx(mib * 2**20, rel=0.01)


def test_kv_capacity_counts_logical_bytes() -> None:
    """8 KV heads: TP 8 replicates nothing, TP 16 holds each head twice; a latent is copied by every TP rank, not by DP."""
    assert kv_replication(worker("Llama-3.1-70B", "H100", tp=8)) == 1.0
    assert kv_replication(worker("Llama-3.1-70B", "H100", tp=16)) == 2.0
    latent = worker("DeepSeek-V3", "H200", FP8, tp=8, ep=8)
    assert kv_replication(latent) == 8.0
    assert kv_capacity(latent) == pytest.approx(kv_capacity_bytes(latent))
    split = worker("DeepSeek-V3", "H200", FP8, dp=8, ep=8)
    assert kv_capacity(split) == pytest.approx(8 * kv_capacity_bytes(split))


def test_sequences_at_a_context() -> None:
    one = worker("Llama-3.1-8B", "H100")
    assert float(max_sequences(one, 8192)) == pytest.approx(kv_capacity(one) / (131072 * 8192))


def test_a_model_that_does_not_fit_says_which_memory_and_how_much() -> None:
    problem = fit_problem(worker("Llama-3.1-70B", "L4"))
    assert "device memory" in problem
    assert "short by" in problem
    assert memory_plan(worker("Llama-3.1-70B", "L4")).shortfall > 100e9
    assert kv_capacity(worker("Llama-3.1-70B", "L4")) == 0.0


def test_one_long_sequence_may_not_fit_where_the_weights_do() -> None:
    """Llama-3.1-70B in FP8 on one H100: 70 GB of weights leave no room for 131,072 tokens of KV (43 GB in 16 bit)."""
    tight = worker("Llama-3.1-70B", "H100", FP8, tp=1)
    assert fit_problem(tight, 131072)
    assert fit_problem(worker("Llama-3.1-70B", "H100", FP8, tp=4), 131072) == ""
