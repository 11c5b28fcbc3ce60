"""Work counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from timed_workers import BF16, CATALOG, FP4, FP8, worker

from diptych.catalog.dtype import Dtype
from diptych.design.axes import Precision
from diptych.perf.layout import attention_formats, matrix_format, mixer_format, operations
from diptych.perf.ops import (
    Collective,
    DecodeAttention,
    Linear,
    OpKind,
    PrefillAttention,
    RoutedExperts,
    Step,
    read_area,
)


def step(tokens: float = 0, past: float = 0, prompts: float = 0, batch: float = 0, context: float = 0) -> Step:
    values = (tokens, past, prompts, batch, context, tokens * prompts + batch)
    return Step(*(np.asarray(value, dtype=float) for value in values))


def flop(model: str, accelerator: str, at: Step, kinds: tuple[OpKind, ...], **parallel: int) -> float:
    ops = operations(worker(model, accelerator, **parallel))
    return float(sum(op.count * np.asarray(op.work(at).flop) for op in ops if op.kind in kinds))


def test_a_gated_mlp_has_three_matrices() -> None:
    """Llama-3.1-8B: 2 FLOP per active parameter and token; 7.50e9 of them (8.03e9 less the input embedding)."""
    model = CATALOG.model("Llama-3.1-8B")
    assert flop("Llama-3.1-8B", "H100", step(batch=1), (OpKind.LINEAR,)) == pytest.approx(2 * model.active_parameters)
    mlp = [
        op
        for op in operations(worker("Llama-3.1-8B", "H100"))
        if isinstance(op, Linear) and op.name in ("gate_up", "down")
    ]
    assert sum(op.inputs * op.outputs for op in mlp) == 3 * 4096 * 14336


def test_only_the_last_token_passes_the_output_head() -> None:
    head = next(
        op for op in operations(worker("Llama-3.1-8B", "H100")) if isinstance(op, Linear) and op.name == "lm_head"
    )
    assert float(head.work(step(tokens=1000, prompts=2)).flop) == 2 * 2 * 4096 * 128256


def test_tp_divides_weights_and_replicates_kv_heads_beyond_their_count() -> None:
    """Llama-3.1-70B: 8 KV heads of 128, K and V: 2,048 elements per token and layer in all, 256 per rank at TP 8 and at TP 16."""
    widths = {
        tp: next(
            op.kv_width for op in operations(worker("Llama-3.1-70B", "H100", tp=tp)) if isinstance(op, DecodeAttention)
        )
        for tp in (1, 8, 16)
    }
    assert widths == {1: 2048, 8: 256, 16: 256}


def test_causal_pairs_windows_and_past() -> None:
    assert float(read_area(4, 0, None)) == 8  # half of 4²
    assert float(read_area(2, 4, None)) == 10  # (6² - 4²)/2
    assert float(read_area(10, 0, 4)) == 32  # 8 while the window fills, then 6·4
    assert float(read_area(10, 100, 4)) == 40


def test_experts_touched_and_rows() -> None:
    """8 experts, 2 per token: one token touches 2; many touch all, and each row costs three matrices."""
    op = next(op for op in operations(worker("Mixtral-8x7B", "H100")) if isinstance(op, RoutedExperts))
    each = 3 * 4096 * 14336
    assert float(op.work(step(batch=1)).padding) == pytest.approx(2 * 2 * each)
    many = op.work(step(batch=1000))
    assert float(many.padding) == pytest.approx(2 * 8 * each)
    assert float(many.flop) == pytest.approx(2 * 2000 * each)


def test_expert_parallelism_keeps_whole_experts_and_moe_tp_cuts_them() -> None:
    def local(**parallel: int) -> tuple[float, float]:
        op = next(
            op for op in operations(worker("Qwen3-235B-A22B", "H200", **parallel)) if isinstance(op, RoutedExperts)
        )
        return op.local, op.columns

    assert local(tp=8) == (128, 192)
    assert local(tp=8, ep=8) == (16, 1536)
    assert local(tp=1, dp=8, ep=8) == (16, 1536)


def test_latent_attention_counts_alike_naive_and_absorbed() -> None:
    """kv_b once per token either way; prefill scores are 192 + 128 wide, decode ones 576 + 512."""
    ops = operations(worker("DeepSeek-V3", "H200", FP8, tp=8))
    prefill = next(op for op in ops if isinstance(op, PrefillAttention))
    decode = next(op for op in ops if isinstance(op, DecodeAttention))
    assert (prefill.width, decode.width, decode.kv_width) == (320, 1088, 576)
    assert prefill.mla
    assert decode.heads == 16


def test_collectives_follow_the_layout() -> None:
    def kinds(**parallel: int) -> list[tuple[OpKind, int]]:
        ops = operations(worker("Qwen3-235B-A22B", "H200", **parallel))
        return sorted({(op.kind, op.world) for op in ops if isinstance(op, Collective)})

    assert kinds() == []
    assert kinds(tp=4) == [(OpKind.ALL_REDUCE, 4)]
    assert kinds(dp=8, ep=8) == [(OpKind.ALL_TO_ALL, 8)]
    assert kinds(tp=2, pp=2) == [(OpKind.ALL_REDUCE, 2), (OpKind.POINT_TO_POINT, 2)]


def test_formats_are_what_the_chip_multiplies() -> None:
    def name(accelerator: str, precision: Precision, native: Dtype = Dtype.BF16) -> str:
        return matrix_format(CATALOG.accelerator(accelerator), precision, native).name

    assert name("H100", FP8) == "fp8"
    assert name("H100", FP8, Dtype.FP8) == "fp8_block"
    assert name("A100-SXM4-80GB", FP8) == "w8a16"
    assert name("B200", FP4) == "fp4"
    assert name("B200", FP4, Dtype.FP4) == "mxfp4_mxfp8"
    assert name("H100", FP4) == "mxfp4"
    assert name("A100-SXM4-80GB", Precision(Dtype.INT4, Dtype.BF16, Dtype.BF16)) == "int4"
    assert mixer_format(CATALOG.accelerator("B200"), FP4, CATALOG.model("gpt-oss-120b")).name == "bf16"
    assert [form.name for form in attention_formats(CATALOG.accelerator("H100"), FP8, mla=True)] == ["bf16", "fp8"]
    assert [form.name for form in attention_formats(CATALOG.accelerator("H100"), BF16, mla=True)] == ["bf16", "bf16"]
