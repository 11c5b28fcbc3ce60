"""Laws of transfer: never free, never below bytes over bandwidth, never shown more than all of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diptych.catalog.accelerator import Accelerator, ScaleUp
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link, LinkKind
from diptych.catalog.model import Attention, LayerGroup, Model, StateSpace
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.design.boundary import Boundary, Codec, Overlap, Ownership, Placement, Representation, Side
from diptych.perf.handoff import handoff
from diptych.perf.transfer import (
    break_even_bandwidth,
    exposed_seconds,
    link_load,
    replication,
    transfer_seconds,
    wire_bytes,
)

SIZES = st.floats(0, 1e13)
SECONDS = st.floats(0, 1e3)
TP = st.sampled_from([1, 2, 4, 8, 16, 32])
DTYPES = st.sampled_from([Dtype.BF16, Dtype.FP16, Dtype.FP8, Dtype.FP8_FNUZ, Dtype.INT8, Dtype.FP4, Dtype.INT4])

LINKS = st.builds(
    Link,
    name=st.just("link"),
    kind=st.sampled_from(LinkKind),
    bandwidth=st.floats(1e6, 1e12),
    alpha=st.floats(0, 0.1),
    efficiency=st.floats(0.1, 1),
    half_size=st.floats(0, 1e8),
    per_piece=st.floats(0, 1e-3),
)


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    heads = draw(st.sampled_from([1, 2, 4, 8, 16]))
    latent = draw(st.sampled_from([0, 512]))
    window = draw(st.one_of(st.none(), st.integers(16, 8192)))
    return Attention(16, heads, 128, 128, window=window, latent_rank=latent, rope_dim=64 if latent else 0)


@st.composite
def models(draw: st.DrawFn) -> Model:
    mixers = draw(st.lists(attentions(), min_size=1, max_size=3))
    state = draw(st.lists(st.builds(StateSpace, st.floats(1, 1e6), st.just(1.0)), max_size=1))
    return Model("m", 64, 100, tuple(LayerGroup(draw(st.integers(1, 40)), mixer, None) for mixer in [*mixers, *state]))


@given(LINKS, SIZES, SIZES, st.integers(0, 10000))
def test_time_grows_with_bytes_and_stays_above_the_wire(link: Link, one: float, other: float, posted: int) -> None:
    low, high = sorted((one, other))
    assert transfer_seconds(link, low, posted) <= transfer_seconds(link, high, posted)
    assert transfer_seconds(link, high, posted) >= high / link.bandwidth
    assert transfer_seconds(link, high, posted) <= transfer_seconds(link, high, posted + 1)


@given(SECONDS, SECONDS, st.integers(1, 200), st.sampled_from(Overlap), st.integers(1, 32), st.floats(0, 0.05))
def test_exposed_is_at_most_serial_and_at_least_the_last_share(
    transfer: float, prefill: float, layers: int, overlap: Overlap, chunks: int, sync: float
) -> None:
    shown = exposed_seconds(transfer, prefill, layers, overlap, chunks, sync)
    assert shown <= transfer
    assert shown >= transfer / (layers * chunks) * (1 - 1e-12)
    assert shown + prefill >= max(transfer, prefill) * (1 - 1e-12)


@given(SECONDS, SECONDS, SECONDS, st.integers(1, 200))
def test_exposed_grows_with_the_transfer_and_shrinks_with_the_prefill(
    one: float, other: float, prefill: float, layers: int
) -> None:
    low, high = sorted((one, other))
    slack = 1e-9
    assert (
        exposed_seconds(low, prefill, layers, Overlap.LAYERWISE)
        <= exposed_seconds(high, prefill, layers, Overlap.LAYERWISE) + slack
    )
    assert (
        exposed_seconds(prefill, high, layers, Overlap.LAYERWISE)
        <= exposed_seconds(prefill, low, layers, Overlap.LAYERWISE) + slack
    )


@given(attentions(), TP, TP)
def test_replication_is_never_below_one_and_grows_with_tp(attention: Attention, one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert 1 <= replication(attention, low) <= replication(attention, high)


@given(models(), st.integers(0, 200_000), st.integers(0, 200_000), DTYPES, TP, TP)
def test_wire_bytes_grow_with_tokens_and_are_never_below_the_logical_cache(
    model: Model, one: int, other: int, wire: Dtype, prefill_tp: int, decode_tp: int
) -> None:
    low, high = sorted((one, other))
    few, many = wire_bytes(model, np.array([low, high]), wire, prefill_tp, decode_tp)
    assert few <= many
    assert many >= float(model.kv_bytes(high, wire)) * (1 - 1e-12)
    assert wire_bytes(model, high, wire, prefill_tp, decode_tp, held=low) <= many


@given(models(), st.integers(1, 200_000), TP)
def test_narrower_formats_send_less_even_with_their_scales(model: Model, tokens: int, tp: int) -> None:
    sizes = [float(wire_bytes(model, tokens, wire, tp, tp)) for wire in (Dtype.INT4, Dtype.INT8, Dtype.BF16)]
    assert sizes == sorted(sizes)


@given(SIZES, st.floats(0, 1), st.floats(1e-6, 10))
def test_below_the_break_even_bandwidth_quantising_is_quicker(raw: float, ratio: float, conversion: float) -> None:
    bandwidth = float(break_even_bandwidth(raw, raw * ratio, conversion))
    if bandwidth > 1e-3:
        assert raw * ratio / (bandwidth * 0.99) + conversion <= raw / (bandwidth * 0.99) * (1 + 1e-9)
        assert raw * ratio / (bandwidth * 1.01) + conversion >= raw / (bandwidth * 1.01) * (1 - 1e-9)


@given(LINKS, st.floats(0, 100), st.floats(0, 100), st.floats(0, 1e12), st.floats(0, 4))
def test_a_busier_link_waits_longer(link: Link, one: float, other: float, size: float, cv2: float) -> None:
    low, high = (link_load(link, rate, size, cv2) for rate in sorted((one, other)))
    assert low.utilisation <= high.utilisation
    assert low.wait.mean <= high.wait.mean * (1 + 1e-9)


CHIPS = st.builds(
    Accelerator,
    name=st.just("chip"),
    vendor=st.just(""),
    memory_bytes=st.just(80e9),
    memory_bandwidth=st.floats(1e11, 1e13),
    peak_flops=st.sampled_from([{}, {Dtype.FP32: 2e13}]),
    scaleup=st.just(ScaleUp("", 3e11, 8)),
    pcie_bandwidth=st.sampled_from([0.0, 3e10, 6e10]),
    nic_bandwidth=st.one_of(st.just(0.0), st.floats(1e6, 1e11)),
    tdp_w=st.just(400.0),
)
BOUNDARIES = st.builds(
    Boundary,
    placement=st.just(Placement.DISAGGREGATED),
    link=LINKS,
    representation=st.builds(
        Representation, st.sampled_from(Codec), DTYPES, st.one_of(st.none(), st.sampled_from(Side))
    ),
    ownership=st.sampled_from(Ownership),
    overlap=st.sampled_from(Overlap),
)


@given(models(), CHIPS, CHIPS, BOUNDARIES, DTYPES, DTYPES, TP, TP, st.integers(1, 10**6), st.floats(0, 100))
def test_a_handoff_is_never_free(
    model: Model, left: Accelerator, right: Accelerator, boundary: Boundary, made: Dtype, used: Dtype, one: int, other: int,
    tokens: int, prefill: float,
) -> None:  # fmt: skip
    workers = [
        Worker(model, chip, Precision(Dtype.BF16, Dtype.BF16, kv), Parallelism(tp=tp))
        for chip, kv, tp in ((left, made, one), (right, used, other))
    ]
    cost = handoff(*workers, boundary, tokens, prefill)
    assert 0 < cost.exposed <= cost.transfer
    assert cost.delay >= cost.exposed
    assert cost.delay >= cost.transfer or boundary.overlap is Overlap.LAYERWISE
    assert cost.source_seconds(1.0) >= 1.0
    assert cost.transient_peak >= cost.source_bytes + cost.destination_bytes > 0
    conversions = cost.prefill_conversion + cost.staged_conversion + cost.decode_conversion
    assert (conversions > 0) == (not made is boundary.representation.wire is used)
