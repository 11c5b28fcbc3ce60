"""Bytes on the wire, paths, exposure, conversions and the link as a queue, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from diptych.catalog.accelerator import Accelerator, ScaleUp
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link, LinkKind
from diptych.catalog.model import Attention, LayerGroup, Mlp, Model, StateSpace
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.design.boundary import Boundary, Codec, Overlap, Ownership, Placement, Representation, Side
from diptych.perf.handoff import handoff
from diptych.perf.transfer import (
    Granularity,
    Scales,
    break_even_bandwidth,
    conversion_seconds,
    exposed_seconds,
    fetch_bandwidth,
    link_load,
    path,
    pieces,
    pool_bandwidth,
    replication,
    required_bandwidth,
    staged_conversion_seconds,
    transfer_seconds,
    wire_bytes,
)

GQA = Attention(heads=32, kv_heads=4, head_dim=128, v_head_dim=128)
MLA = Attention(heads=16, kv_heads=16, head_dim=192, v_head_dim=128, latent_rank=512, rope_dim=64, nope_dim=128)
WINDOW = Attention(heads=8, kv_heads=8, head_dim=64, v_head_dim=64, window=1024)


def model_of(*mixers: Attention | StateSpace, count: int = 2) -> Model:
    groups = tuple(LayerGroup(count, mixer, Mlp(64)) for mixer in mixers)
    return Model(name="toy", hidden=64, vocab=100, layers=groups)


def accelerator(name: str = "chip", bandwidth: float = 2e12, nic: float = 50e9, **peaks: float) -> Accelerator:
    return Accelerator(
        name=name,
        vendor="v",
        memory_bytes=80e9,
        memory_bandwidth=bandwidth,
        peak_flops={Dtype(key): value for key, value in peaks.items()},
        scaleup=ScaleUp("link", 300e9, 8),
        pcie_bandwidth=25e9,
        nic_bandwidth=nic,
        tdp_w=400,
    )


def worker(
    model: Model, tp: int = 1, pp: int = 1, kv: Dtype = Dtype.BF16, chip: Accelerator | None = None, dp: int = 1
) -> Worker:
    return Worker(model, chip or accelerator(), Precision(Dtype.BF16, Dtype.BF16, kv), Parallelism(tp=tp, pp=pp, dp=dp))


def rdma(bandwidth: float = 50e9, kind: LinkKind = LinkKind.INFINIBAND, **more: float) -> Link:
    return Link("rdma", kind, bandwidth, alpha=1e-3, **more)


class TestWireBytes:
    def test_gqa_is_two_layers_of_k_and_v(self) -> None:
        assert wire_bytes(model_of(GQA), 1000, Dtype.BF16) == 1000 * 2 * (2 * 4 * 128) * 2

    @pytest.mark.parametrize(
        ("prefill_tp", "decode_tp", "copies"), [(1, 1, 1), (4, 2, 1), (8, 8, 2), (2, 16, 4), (8, 1, 2)]
    )
    def test_tp_above_the_kv_heads_sends_copies(self, prefill_tp: int, decode_tp: int, copies: int) -> None:
        alone = wire_bytes(model_of(GQA), 1000, Dtype.BF16)
        assert wire_bytes(model_of(GQA), 1000, Dtype.BF16, prefill_tp, decode_tp) == copies * alone

    def test_mla_latent_travels_once_unless_every_rank_pulls_its_own(self) -> None:
        model = model_of(MLA)
        once = 1000 * 2 * (512 + 64) * 2
        assert wire_bytes(model, 1000, Dtype.BF16, 8, 8) == once
        assert wire_bytes(model, 1000, Dtype.BF16, 8, 8, latent_copies=8) == 8 * once

    def test_only_kept_tokens_of_a_window_travel(self) -> None:
        model = model_of(WINDOW)
        per_token = 2 * (2 * 8 * 64) * 2
        assert wire_bytes(model, np.array([500, 1024, 9000]), Dtype.BF16) == pytest.approx(
            np.array([500, 1024, 1024]) * per_token
        )

    def test_tokens_that_decode_already_holds_stay_home(self) -> None:
        full, window = model_of(GQA), model_of(WINDOW)
        assert wire_bytes(full, 5000, Dtype.BF16, held=4000) == wire_bytes(full, 1000, Dtype.BF16)
        assert wire_bytes(window, 5000, Dtype.BF16, held=4900) == wire_bytes(window, 100, Dtype.BF16)
        assert wire_bytes(full, 5000, Dtype.BF16, held=6000) == 0

    def test_state_always_travels(self) -> None:
        model = model_of(GQA, StateSpace(state_elements=1e6, layer_parameters=1.0))
        cache = wire_bytes(model_of(GQA), 10, Dtype.FP8, scales=Scales())
        assert wire_bytes(model, 10, Dtype.FP8, scales=Scales()) == cache + 2 * 1e6 * 4
        assert wire_bytes(model, 10, Dtype.FP8, held=10) == 2 * 1e6 * 4

    @pytest.mark.parametrize(
        ("scales", "extra"),
        [
            (Scales(), 0),
            (Scales(Granularity.TENSOR), 2 * 2 * 4),  # layers × (K, V) × fp32
            (Scales(Granularity.TOKEN), 100 * 2 * 2 * 4 * 4),  # tokens × layers × (K, V) × heads × fp32
            (Scales(Granularity.GROUP, size=2, group=64), 100 * 2 * (2 * 4 * 128) / 64 * 2),
        ],
    )
    def test_scales(self, scales: Scales, extra: float) -> None:
        payload = 100 * 2 * (2 * 4 * 128) * 1
        assert wire_bytes(model_of(GQA), 100, Dtype.INT8, scales=scales) == payload + extra

    def test_default_scales_follow_the_format(self) -> None:
        model, payload = model_of(GQA), 100 * 2 * (2 * 4 * 128)
        assert wire_bytes(model, 100, Dtype.BF16) == payload * 2
        assert wire_bytes(model, 100, Dtype.FP8) == payload + 16
        assert wire_bytes(model, 100, Dtype.INT8) == payload + 100 * 2 * 2 * 4 * 4
        assert wire_bytes(model, 100, Dtype.INT4) == payload * (0.5 + 2 / 64)

    def test_replication_of_an_array_of_tp(self) -> None:
        assert replication(GQA, np.array([1, 4, 8, 32])) == pytest.approx([1, 1, 2, 8])


class TestPieces:
    def test_layers_times_blocks_times_k_and_v(self) -> None:
        assert pieces(model_of(GQA), np.array([1, 16, 17]), block=16) == pytest.approx([4, 4, 8])
        assert pieces(model_of(MLA), 17, block=16) == 4  # one latent instead of K and V

    def test_differing_tp_splits_each_block(self) -> None:
        assert pieces(model_of(GQA), 16, prefill_tp=2, decode_tp=8) == 16
        assert pieces(model_of(GQA), 16, prefill_tp=8, decode_tp=2) == 16
        assert pieces(model_of(MLA), 16, prefill_tp=2, decode_tp=8) == 2


class TestPath:
    def test_the_narrowest_of_egress_fabric_ingress(self) -> None:
        model = model_of(GQA)
        thin, fat = accelerator(nic=10e9), accelerator(nic=100e9)
        assert path(worker(model, 2, chip=thin), worker(model, 4, chip=fat), rdma()).bandwidth == 20e9
        assert path(worker(model, 4, chip=fat), worker(model, 2, chip=thin), rdma()).bandwidth == 20e9
        assert path(worker(model, 2, chip=fat), worker(model, 4, chip=fat), rdma(50e9)).bandwidth == 100e9

    def test_an_offer_s_nic_share_replaces_the_chip_s(self) -> None:
        model = model_of(GQA)
        pair = worker(model, 8), worker(model, 8)
        assert path(*pair, rdma(), prefill_nic=12.5e9).bandwidth == 8 * 12.5e9
        unknown = worker(model, 8, chip=accelerator(nic=0.0))
        assert path(unknown, unknown, rdma(50e9)).bandwidth == 400e9

    def test_attention_dp_keeps_a_request_on_one_group(self) -> None:
        model = model_of(MLA)
        assert path(worker(model, 1, dp=8), worker(model, 1, dp=8), rdma(50e9)).bandwidth == 50e9

    def test_scaleup_and_pcie_are_bounded_by_their_own_port(self) -> None:
        model = model_of(GQA)
        pair = worker(model, 2), worker(model, 2)
        assert path(*pair, rdma(450e9, LinkKind.SCALEUP)).bandwidth == 600e9
        assert path(*pair, rdma(64e9, LinkKind.PCIE)).bandwidth == 50e9

    def test_host_staging_adds_both_copies(self) -> None:
        model, size = model_of(GQA), 10e9
        direct = path(worker(model), worker(model), rdma(20e9))
        staged = path(worker(model), worker(model), rdma(20e9, LinkKind.HOST_STAGED))
        extra = transfer_seconds(staged, size) - transfer_seconds(direct, size)
        assert extra == pytest.approx(size / 25e9 * 2)  # D2H and H2D over PCIe

    def test_host_staging_through_a_buffer_is_as_quick_as_its_slowest_hop(self) -> None:
        model, size = model_of(GQA), 10e9
        slow_wire = path(worker(model), worker(model), rdma(20e9, LinkKind.HOST_STAGED), staging_buffer=25e6)
        assert transfer_seconds(slow_wire, size) == pytest.approx(1e-3 + 2e-3 + size / 20e9)
        slow_copy = path(worker(model), worker(model), rdma(50e9, LinkKind.HOST_STAGED), staging_buffer=25e6)
        assert transfer_seconds(slow_copy, size) == pytest.approx(1e-3 + 2e-3 + size / 25e9)

    def test_start_up_of_the_link_is_paid_once_not_per_lane(self) -> None:
        model = model_of(GQA)
        one = path(worker(model, 1), worker(model, 1), rdma(half_size=1e6))
        eight = path(worker(model, 8), worker(model, 8), rdma(half_size=1e6))
        assert transfer_seconds(eight, 8e6) == pytest.approx(float(transfer_seconds(one, 1e6)))

    def test_pools_add_their_workers_until_the_fabric_is_full(self) -> None:
        link = rdma(10e9)
        assert pool_bandwidth(link, 4, 2) == 20e9
        assert pool_bandwidth(link, 4, 8, fabric=25e9) == 25e9


class TestTransferAndExposure:
    def test_alpha_bytes_and_pieces(self) -> None:
        link = rdma(per_piece=2e-6)
        assert transfer_seconds(link, 50e9, 1000) == pytest.approx(1e-3 + 1.0 + 2e-3)
        assert transfer_seconds(link, 0, 1000) == 0

    def test_serial_shows_all(self) -> None:
        assert exposed_seconds(0.4, 1.0, 80) == 0.4

    def test_layerwise_behind_a_slow_prefill_shows_the_last_layer(self) -> None:
        assert exposed_seconds(0.4, 1.0, 80, Overlap.LAYERWISE) == pytest.approx(0.4 / 80)

    def test_layerwise_on_a_slow_link_shows_the_excess(self) -> None:
        assert exposed_seconds(2.0, 1.0, 10, Overlap.LAYERWISE) == pytest.approx(2.0 - 1.0 * 9 / 10)

    def test_chunks_overlap_even_when_serial_within_a_chunk(self) -> None:
        assert exposed_seconds(0.4, 1.0, 80, Overlap.SERIAL, chunks=4) == pytest.approx(0.1)

    @pytest.mark.parametrize(("transfer", "prefill"), [(0.4, 1.0), (2.0, 1.0), (1.0, 1.0), (3.0, 0.0)])
    def test_against_the_pipeline_stepped_by_hand(self, transfer: float, prefill: float) -> None:
        layers, computed, sent = 7, 0.0, 0.0
        for _ in range(layers):
            computed += prefill / layers
            sent = max(sent, computed) + transfer / layers
        assert exposed_seconds(transfer, prefill, layers, Overlap.LAYERWISE) == pytest.approx(sent - prefill)

    def test_the_handshake_is_not_paid_when_sending_at_the_end_is_quicker(self) -> None:
        assert exposed_seconds(0.004, 0.1, 80, Overlap.LAYERWISE, sync=0.006) == 0.004
        assert exposed_seconds(0.4, 1.0, 80, Overlap.LAYERWISE, sync=0.006) == pytest.approx(0.4 / 80 + 0.006)


class TestConversion:
    def test_reads_and_writes_each_element_once(self) -> None:
        model = model_of(GQA)
        elements = 1000 * 2 * 1024
        seconds = conversion_seconds(model, 1000, Dtype.FP8, Dtype.BF16, worker(model, 2), mbu=1.0)
        assert seconds == pytest.approx(elements * 3 / 2e12 / 2)

    @pytest.mark.parametrize(
        ("source", "target", "width"),
        [
            (Dtype.BF16, Dtype.FP8, 3),
            (Dtype.FP16, Dtype.INT8, 3),
            (Dtype.BF16, Dtype.INT4, 2.5),
            (Dtype.FP8, Dtype.FP8_FNUZ, 2),
            (Dtype.BF16, Dtype.FP16, 4),
        ],
    )
    def test_every_change_of_format_is_charged(self, source: Dtype, target: Dtype, width: float) -> None:
        model = model_of(GQA)
        there = conversion_seconds(model, 1000, source, target, worker(model), mbu=1.0)
        assert there == pytest.approx(1000 * 2 * 1024 * width / 2e12)
        assert there == conversion_seconds(model, 1000, target, source, worker(model), mbu=1.0)

    def test_the_same_format_costs_nothing(self) -> None:
        model = model_of(GQA)
        assert conversion_seconds(model, np.array([1, 1000]), Dtype.FP8, Dtype.FP8, worker(model)).tolist() == [0, 0]

    def test_replicated_heads_and_latents_are_converted_on_every_rank(self) -> None:
        for model, saturated in ((model_of(GQA), 4), (model_of(MLA), 1)):
            few = conversion_seconds(model, 1000, Dtype.FP8, Dtype.BF16, worker(model, saturated))
            many = conversion_seconds(model, 1000, Dtype.FP8, Dtype.BF16, worker(model, 8))
            assert many == pytest.approx(float(few))

    def test_slow_vector_units_bound_it(self) -> None:
        model = model_of(GQA)
        slow = worker(model, chip=accelerator(fp32=1e9))
        assert conversion_seconds(model, 1000, Dtype.FP8, Dtype.BF16, slow) == pytest.approx(2 * 1000 * 2 * 1024 / 1e9)

    def test_staged(self) -> None:
        model = model_of(GQA)
        assert staged_conversion_seconds(model, 1000, Dtype.FP8, Dtype.BF16, 25e9) == 1000 * 2 * 1024 * 3 / 25e9
        assert staged_conversion_seconds(model, 1000, Dtype.FP8, Dtype.FP8, 25e9) == 0


class TestQuantisationPays:
    def test_break_even(self) -> None:
        raw, reduced, cost = 2e9, 1e9, 0.01
        bandwidth = float(break_even_bandwidth(raw, reduced, cost))
        assert bandwidth == 1e11
        for factor, pays in ((0.9, True), (1.1, False)):
            narrow = bandwidth * factor
            assert (reduced / narrow + cost < raw / narrow) is pays

    def test_edges(self) -> None:
        assert break_even_bandwidth(2e9, 1e9, 0.0) == np.inf
        assert break_even_bandwidth(1e9, 1e9, 0.0) == 0
        assert break_even_bandwidth(1e9, 2e9, 1.0) == 0


class TestLinkLoad:
    def test_equal_transfers_wait_as_md1(self) -> None:
        load = link_load(rdma(50e9), rate=8.0, mean_bytes=4.95e9)
        assert load.utilisation == pytest.approx(0.8)
        assert load.wait.mean == pytest.approx(0.8 / 0.2 * 0.1 / 2)

    def test_only_the_part_that_grows_with_bytes_varies(self) -> None:
        link = Link("l", LinkKind.TCP, 50e9, alpha=0.05)
        even, uneven = link_load(link, 8.0, 2.5e9), link_load(link, 8.0, 2.5e9, cv2_bytes=2.0)
        assert uneven.wait.mean / even.wait.mean == pytest.approx(1 + 2.0 * 0.5**2)

    def test_an_overloaded_link_waits_for_ever(self) -> None:
        load = link_load(rdma(50e9), rate=np.array([1.0, 20.0]), mean_bytes=5e9)
        assert load.wait.mean[1] == np.inf
        assert load.utilisation[1] > 1


class TestBandwidths:
    def test_egress_falls_with_isl_and_ingress_with_osl(self) -> None:
        model = model_of(GQA)
        isl = np.array([1e3, 1e4, 1e5])
        egress = required_bandwidth(model.kv_bytes(isl, Dtype.BF16), 1, 1e-5 * isl + 1e-9 * isl**2, 8)
        ingress = required_bandwidth(model.kv_bytes(isl, Dtype.BF16), 64, 0.02 * np.array([100, 200, 400]), 8)
        assert np.all(np.diff(egress) < 0)
        assert ingress[0] == pytest.approx(4096 * 1e3 * 64 / 2 / 8)

    def test_fetch(self) -> None:
        assert fetch_bandwidth(1e9, 0.5) == 2e9


class TestHandoff:
    def boundary(self, **changes: object) -> Boundary:
        fields: dict[str, object] = {
            "placement": Placement.DISAGGREGATED,
            "link": rdma(),
            "representation": Representation(Codec.RAW, Dtype.BF16),
        }
        return Boundary(**(fields | changes))  # type: ignore[arg-type]

    def test_push_streams_and_pull_waits(self) -> None:
        model = model_of(GQA, count=10)
        pair = worker(model), worker(model)
        push = handoff(*pair, self.boundary(overlap=Overlap.LAYERWISE), 1e6, 1.0)
        pull = handoff(
            *pair, self.boundary(overlap=Overlap.LAYERWISE, ownership=Ownership.PULL), 1e6, 1.0, round_trip=2e-3
        )
        assert pull.delay == pytest.approx(float(pull.transfer) + 2e-3)
        assert push.delay == pytest.approx(float(push.transfer) / 10)

    def test_pull_pins_the_source_and_push_reserves_the_destination(self) -> None:
        model = model_of(GQA)
        pair = worker(model), worker(model)
        push = handoff(*pair, self.boundary(), 1e5, 1.0)
        pull = handoff(*pair, self.boundary(ownership=Ownership.PULL), 1e5, 1.0)
        assert push.destination_seconds > pull.destination_seconds
        assert pull.source_seconds(decode_wait=3.0) == pytest.approx(3.0 + float(pull.delay))
        assert pull.pinned_bytes(2.0) == pytest.approx(2.0 * float(pull.source_bytes) * float(pull.delay))

    def test_peak_counts_source_staging_and_destination(self) -> None:
        model = model_of(GQA)
        size = 1e5 * 4096
        direct = handoff(worker(model), worker(model), self.boundary(), 1e5, 1.0)
        staged = handoff(worker(model), worker(model), self.boundary(link=rdma(kind=LinkKind.HOST_STAGED)), 1e5, 1.0)
        assert direct.transient_peak == 2 * size
        assert staged.transient_peak == 4 * size

    def test_every_decode_rank_receives_its_own_latent_unless_attention_is_data_parallel(self) -> None:
        model = model_of(MLA)
        alone = handoff(worker(model), worker(model), self.boundary(), 1e5, 1.0)
        tensor = handoff(worker(model, tp=8), worker(model, tp=8), self.boundary(), 1e5, 1.0)
        data = handoff(worker(model, dp=8), worker(model, dp=8), self.boundary(), 1e5, 1.0)
        assert tensor.wire_bytes == 8 * alone.wire_bytes
        assert data.wire_bytes == alone.wire_bytes
        assert tensor.transfer == pytest.approx(float(data.transfer))  # eight ports carry eight copies

    def test_conversion_is_charged_to_the_side_that_does_it(self) -> None:
        model = model_of(GQA)
        fp8, bf16 = worker(model, kv=Dtype.FP8), worker(model)
        raw = handoff(fp8, bf16, self.boundary(representation=Representation(Codec.RAW, Dtype.FP8)), 1e5, 1.0)
        early = handoff(fp8, bf16, self.boundary(representation=Representation(Codec.CAST, Dtype.BF16)), 1e5, 1.0)
        beside = self.boundary(representation=Representation(Codec.CAST, Dtype.FP8, Side.TRANSFER))
        mid = handoff(fp8, bf16, beside, 1e5, 1.0)
        assert raw.decode_conversion > 0 == raw.prefill_conversion
        assert early.prefill_conversion > 0 == early.decode_conversion
        assert mid.staged_conversion > 0 == mid.prefill_conversion + mid.decode_conversion
        assert early.wire_bytes > 1.9 * raw.wire_bytes

    def test_a_narrower_wire_is_paid_for_in_staging_too(self) -> None:
        model = model_of(GQA)
        beside = self.boundary(representation=Representation(Codec.QUANTISED, Dtype.FP8, Side.TRANSFER))
        cost = handoff(worker(model), worker(model), beside, 1e5, 1.0, host_bandwidth=25e9)
        assert cost.staged_conversion == pytest.approx(2 * 1e5 * 2 * 1024 * 3 / 25e9)  # quantised, and back

    def test_prompts_that_stay_local_cost_and_hold_nothing(self) -> None:
        model = model_of(GQA)
        pair = worker(model), worker(model, kv=Dtype.FP8)
        split = self.boundary(placement=Placement.CONDITIONAL, local_below=1000, ownership=Ownership.PULL)
        some = handoff(*pair, split, np.array([999.0, 1000.0]), 1.0)
        assert some.delay[0] == some.transient_peak[0] == some.destination_seconds[0] == 0
        assert some.delay[1] > 0
        assert handoff(*pair, self.boundary(placement=Placement.COLOCATED), 1e5, 1.0).delay == 0
