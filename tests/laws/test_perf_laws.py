"""Laws of step times: never below the floor, never falling as work grows, for every chip, engine and layout."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.perf.efficiency import Curve, shipped_curves
from diptych.perf.ops import OpKind, Work
from diptych.perf.roofline import default_perf

PERF = default_perf()
BF16 = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16)
FP8 = Precision(Dtype.FP8, Dtype.FP8, Dtype.FP8)
FP4 = Precision(Dtype.FP4, Dtype.FP4, Dtype.FP8)
INT4 = Precision(Dtype.INT4, Dtype.BF16, Dtype.BF16)
DENSE = ["Llama-3.1-8B", "Qwen3-32B", "Gemma-3-27B", "Nemotron-H-56B"]
SPARSE = ["Mixtral-8x7B", "gpt-oss-120b", "DeepSeek-V3", "DeepSeek-V3.2", "Qwen3-Next-80B-A3B", "Llama-4-Scout-17B-16E"]


@cache
def catalog() -> Catalog:
    return Catalog.load()


@st.composite
def workers(draw: st.DrawFn) -> Worker:
    moe = draw(st.booleans())
    model = catalog().model(draw(st.sampled_from(SPARSE if moe else DENSE)))
    accelerator = catalog().accelerators[draw(st.sampled_from(sorted(catalog().accelerators)))]
    tp, dp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 4])) if moe else 1
    ep = tp * dp if moe and draw(st.booleans()) else 1
    parallel = Parallelism(tp, draw(st.sampled_from([1, 2])), ep, dp)
    engine = draw(st.sampled_from(["vllm", "sglang", "trtllm", "trtllm-cpp", "another"]))
    return Worker(model, accelerator, draw(st.sampled_from([BF16, FP8, FP4, INT4])), parallel, engine)


sizes = st.floats(1, 2e5)
batches = st.floats(1, 4096)
growth = st.floats(1.0, 50.0)
GROWING = 1 - 1e-9


@settings(max_examples=150, deadline=None)
@given(workers(), batches, sizes, growth, growth)
def test_decode_never_falls_and_keeps_above_the_floor(
    worker: Worker, batch: float, context: float, a: float, b: float
) -> None:
    timing = PERF.decode(worker, np.array([batch, batch * a, batch]), np.array([context, context, context * b]))
    small, more, longer = timing.seconds
    assert more >= small * GROWING
    assert longer >= small * GROWING
    assert np.all(timing.seconds >= timing.floor * GROWING)


@settings(max_examples=150, deadline=None)
@given(workers(), sizes, st.floats(0, 1e5), st.integers(1, 64), growth, growth, st.integers(0, 64))
def test_prefill_never_falls_and_keeps_above_the_floor(
    worker: Worker, tokens: float, past: float, batch: int, a: float, b: float, more: int
) -> None:
    timing = PERF.prefill(
        worker,
        np.array([tokens, tokens * a, tokens, tokens]),
        np.array([past, past, past * b, past]),
        np.array([batch, batch, batch, batch + more]),
    )
    assert np.all(timing.seconds[1:] >= timing.seconds[0] * GROWING)
    assert np.all(timing.seconds >= timing.floor * GROWING)


@settings(max_examples=150, deadline=None)
@given(workers(), st.floats(0, 16384), st.floats(0, 1e5), batches, sizes, growth)
def test_mixed_never_falls_and_costs_no_less_than_its_decodes(
    worker: Worker, tokens: float, past: float, batch: float, context: float, a: float
) -> None:
    timing = PERF.mixed(
        worker,
        np.array([tokens, tokens * a, tokens, tokens]),
        past,
        np.array([batch, batch, batch * a, batch]),
        np.array([context, context, context, context * a]),
    )
    assert np.all(timing.seconds[1:] >= timing.seconds[0] * GROWING)
    assert np.all(timing.seconds >= timing.floor * GROWING)
    assert timing.seconds[0] >= float(PERF.decode(worker, batch, context).seconds) * GROWING


@settings(max_examples=60, deadline=None)
@given(workers(), batches, sizes)
def test_arrays_and_scalars_agree(worker: Worker, batch: float, context: float) -> None:
    many = PERF.decode(worker, np.full((3, 2), batch), context).seconds
    assert many.shape == (3, 2)
    assert many == pytest.approx(float(PERF.decode(worker, batch, context).seconds))


def test_every_shipped_curve_grows_with_work_and_stays_above_its_roofline() -> None:
    bytes_ = np.geomspace(1e2, 1e12, 200)
    flop = np.geomspace(1e3, 1e16, 200)
    for row in shipped_curves().rows:
        if row.curve is None:
            continue
        seconds = row.curve.seconds(Work(flop, bytes_), 1e15, 2e12)
        assert np.all(np.diff(seconds) >= 0), row
        assert np.all(seconds >= np.maximum(flop / 1e15, bytes_ / 2e12)), row


def test_decode_reads_at_least_the_weights() -> None:
    """L4 and Llama-3.1-8B in 16 bit: 16.06 GB over 300 GB/s is 53.5 ms, at any engine's best."""
    worker = Worker(catalog().model("Llama-3.1-8B"), catalog().accelerator("L4"), BF16, Parallelism(), "vllm")
    assert float(PERF.decode(worker, 1, 1).seconds) >= 53.5e-3


@settings(max_examples=100, deadline=None)
@given(
    st.floats(1e-7, 1e-4),
    st.floats(0.01, 1),
    st.floats(0.01, 1),
    st.floats(1, 8),
    st.floats(0, 1e13),
    st.floats(0, 1e17),
)
def test_no_curve_lies_below_its_roofline(o: float, mbu: float, mfu: float, p: float, size: float, flop: float) -> None:
    seconds = float(Curve(o, mbu, mfu, p).seconds(Work(flop, size), 1e15, 2e12))
    assert seconds >= max(size / 2e12, flop / 1e15)


def test_kinds_without_a_curve_have_a_default() -> None:
    accelerator = catalog().accelerator("H100")
    for kind in OpKind:
        assert shipped_curves().find(accelerator, "vllm", kind, "bf16").curve.overhead > 0
