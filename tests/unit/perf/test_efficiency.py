"""Curves: found for any chip, refused where the measurement is not believed."""

from __future__ import annotations

import pytest
from timed_workers import CATALOG, FP8, worker

from diptych.catalog.dtype import Dtype
from diptych.perf.collectives import collective_curve, inside_domain, link_bandwidth
from diptych.perf.efficiency import Curve, blend, shipped_curves, similar
from diptych.perf.estimate import Basis
from diptych.perf.layout import operations
from diptych.perf.ops import OpKind, Work
from diptych.perf.roofline import default_perf, memory_bandwidth, peak_flops

CURVES = shipped_curves()


def test_the_curve_by_hand() -> None:
    """1 GB at 0.8 of 2 TB/s is 625 µs; 1 TFLOP at half of 1 PFLOP/s is 2 ms; together 10 + √(0.625² + 2²) ms + overhead."""
    curve = Curve(overhead=10e-3, mbu=0.8, mfu=0.5, sharpness=2.0)
    assert float(curve.seconds(Work(1e12, 1e9), 1e15, 2e12)) == pytest.approx(10e-3 + (0.625e-3**2 + 2e-3**2) ** 0.5)
    assert float(blend(3.0, 4.0, 1.0)) == 7.0
    assert float(blend(0.0, 0.0, 2.0)) == 0.0


def test_eager_tables_are_refused() -> None:
    """vLLM's fp8_block GEMM was timed outside CUDA graphs: flat in m on Blackwell, a launch floor of 70 µs on Hopper."""
    for name in ("B200", "GB200", "H100", "H200"):
        accelerator = CATALOG.accelerator(name)
        found = CURVES.find(accelerator, "vllm", OpKind.LINEAR, "fp8_block")
        assert "timed eagerly" in found.refused
        assert found.curve.overhead < 20e-6
        assert found.basis is Basis.FITTED


def test_faster_than_memory_is_not_kept() -> None:
    """A100's TensorRT-LLM decode attention reads 1.69 times faster than HBM in 302 rows: no curve is above the data sheet."""
    found = CURVES.of("A100-SXM4-80GB", OpKind.DECODE_ATTENTION, "bf16")
    assert set(found) == {"trtllm", "vllm", "sglang"}
    assert all(curve.mbu <= 1.0 for curve in found.values())


def test_one_chassis_is_not_l40s() -> None:
    """L40S's collectives beyond two ranks take the curve of another PCIe chip, not that of a box without peer access."""
    four = worker("Llama-3.1-8B", "L40S", tp=4)
    op = next(op for op in operations(four) if op.kind is OpKind.ALL_REDUCE)
    assert collective_curve(CURVES, four, op).mbu > 0.3
    assert link_bandwidth(four, op) == 32e9


def test_beyond_the_domain_a_collective_runs_over_the_nic() -> None:
    wide = worker("DeepSeek-V3", "H100", FP8, tp=16)
    op = next(op for op in operations(wide) if op.kind is OpKind.ALL_REDUCE)
    assert not inside_domain(wide, op)
    assert link_bandwidth(wide, op) == 50e9
    assert inside_domain(worker("DeepSeek-V3", "GB200", FP8, tp=16), op)


@pytest.mark.parametrize(
    ("name", "donor"),
    [
        ("L4", "L40S"),
        ("A10", "L40S"),
        ("H20", "H100-SXM-80GB"),
        ("MI300X", "H100-SXM-80GB"),
        ("MI355X", "B200-SXM"),
        ("RTX-5090", "RTX-PRO-6000-SE"),
        ("Ascend-910B2", "A100-SXM4-80GB"),
        ("TPU-v5p", "A100-SXM4-80GB"),
        ("V100-SXM2-32GB", "L40S"),
    ],
)
def test_curves_transfer_to_what_was_not_measured(name: str, donor: str) -> None:
    accelerator = CATALOG.accelerator(name)
    assert similar(accelerator) == donor
    timing = default_perf().decode(worker("Llama-3.1-8B", name), 1, 1024)
    assert timing.basis is Basis.ROOFLINE
    assert timing.band > default_perf().decode(worker("Llama-3.1-8B", "H100"), 1, 1024).band


def test_no_accelerator_crashes_even_with_holes_in_its_sheet() -> None:
    for accelerator in CATALOG.accelerators.values():
        assert peak_flops(accelerator, Dtype.BF16) > 0
        assert memory_bandwidth(accelerator) > 0
        timing = default_perf().prefill(worker("Llama-3.1-8B", accelerator.name), 1024)
        assert 0 < float(timing.floor) <= float(timing.seconds) < 1e4


def test_backends_that_disagree_threefold_are_named() -> None:
    notes = default_perf().warnings(worker("Llama-3.1-8B", "B200", FP8, "vllm"))
    assert not any("times slower" in note for note in notes)
    refused = default_perf().warnings(worker("DeepSeek-V3", "B200", FP8, "vllm", tp=8))
    assert any("measured table refused" in note for note in refused)
