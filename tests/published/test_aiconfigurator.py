"""AIConfigurator 0.12.0 taken at its own numbers: what an exact sizing does with the same workers and factors.

Workload a: 4000 tokens in, 500 out. Its degradation factors 0.90 and 0.92 are inputs here, not constants of ours.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.catalog.accelerator import Accelerator, ScaleUp
from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link, LinkKind
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.design.boundary import Boundary, Codec, Placement, Representation
from diptych.perf.handoff import handoff
from diptych.perf.transfer import conversion_seconds, link_load, pool_bandwidth, transfer_seconds, wire_bytes
from diptych.planner.balance import Budget, StageWorker, best_rate, cheapest, fewest

CATALOG = Catalog.load()
PREFILL_FACTOR, DECODE_FACTOR, OSL = 0.90, 0.92, 500
H100_USD, H200_USD, B200_USD = 2.5, 3.5, 5.5  # illustrative, per GPU and hour

H200_P = StageWorker(PREFILL_FACTOR * 3.391, 1, H200_USD, "H200")
H100_P = StageWorker(PREFILL_FACTOR * 1.8 / 0.546, 1, H100_USD, "H100")  # its TTFT of 546 ms is 1.8 prefills
H200_D = StageWorker(DECODE_FACTOR * 12.98, 2, 2 * H200_USD, "H200")
H200_D60 = StageWorker(54.93 / 7, 2, 2 * H200_USD, "H200")  # its own pick: TP2, batch 60
GPUS = Budget(accelerators=32)


class TestExactOptimum:
    def test_one_accelerator(self, compare) -> None:
        pair = best_rate([H200_P], [H200_D60, H200_D], GPUS)
        assert pair is not None
        assert (pair.prefill_workers, pair.decode_workers, pair.accelerators) == (20, 6, 32)
        compare("20P:6D on 32 H200, requests/s", 61.04, pair.rate, 0.0005)
        compare("20P:6D on 32 H200, tokens/s per GPU", 953.7, pair.rate * OSL / 32, 0.0005)
        assert pair.rate > 54.93 * 1.11

    def test_two_accelerators(self) -> None:
        pair = best_rate([H100_P], [H200_D], GPUS)
        assert pair is not None
        assert (pair.prefill_workers, pair.decode_workers, pair.accelerators) == (21, 5, 31)
        assert pair.rate >= 59.69 > 56.61

    def test_fewest_accelerators_for_a_rate(self) -> None:
        pair = fewest(50.0, [H200_P], [H200_D])
        assert (pair.prefill_workers, pair.decode_workers, pair.accelerators) == (17, 5, 27)
        assert pair.rate >= 50


STAGES = st.builds(
    StageWorker,
    capacity=st.floats(0.1, 50),
    accelerators=st.sampled_from([1, 2, 4, 8]),
    usd_per_hour=st.floats(0.5, 80),
    kind=st.sampled_from(["A", "B"]),
)
OPTIONS = st.lists(STAGES, min_size=1, max_size=4)
BUDGETS = st.builds(
    Budget,
    accelerators=st.integers(1, 40),
    usd_per_hour=st.floats(1, 500),
    inventory=st.fixed_dictionaries({}, optional={"A": st.integers(0, 24), "B": st.integers(0, 24)}),
)


class TestMonotone:
    @given(OPTIONS, OPTIONS, OPTIONS, OPTIONS, BUDGETS)
    def test_more_options_never_hurt(self, prefill, more_prefill, decode, more_decode, budget) -> None:
        few = best_rate(prefill, decode, budget)
        many = best_rate(prefill + more_prefill, decode + more_decode, budget)
        assert few is None or (many is not None and many.rate >= few.rate * (1 - 1e-9))

    @given(OPTIONS, OPTIONS, BUDGETS, st.integers(0, 20), st.floats(0, 200))
    def test_more_budget_never_hurts(self, prefill, decode, budget, accelerators, usd) -> None:
        more = Budget(
            budget.accelerators + accelerators,
            budget.usd_per_hour + usd,
            {kind: count + accelerators for kind, count in budget.inventory.items()},
        )
        few, many = best_rate(prefill, decode, budget), best_rate(prefill, decode, more)
        assert few is None or (many is not None and many.rate >= few.rate * (1 - 1e-9))

    @given(STAGES, STAGES, st.integers(2, 24), st.floats(5, 200))
    def test_equals_brute_force(self, prefill, decode, accelerators, usd) -> None:
        budget = Budget(accelerators, usd)
        best = 0.0
        for p in range(1, accelerators + 1):
            for d in range(1, accelerators + 1):
                fits = p * prefill.accelerators + d * decode.accelerators <= accelerators
                if fits and p * prefill.usd_per_hour + d * decode.usd_per_hour <= usd:
                    best = max(best, min(p * prefill.capacity, d * decode.capacity))
        pair = best_rate([prefill], [decode], budget)
        assert (0.0 if pair is None else pair.rate) == pytest.approx(best)

    @given(OPTIONS, OPTIONS, st.floats(0.1, 300))
    def test_cheapest_and_fewest_are_what_they_say(self, prefill, decode, rate) -> None:
        low_cost, low_count = cheapest(rate, prefill, decode), fewest(rate, prefill, decode)
        assert min(low_cost.rate, low_count.rate) >= rate * (1 - 1e-6)
        assert low_cost.usd_per_hour <= low_count.usd_per_hour * (1 + 1e-9)
        assert low_count.accelerators <= low_cost.accelerators


class TestNoIdleExpensiveAccelerator:
    """Llama-3.1-8B: one H100 prefills 41/4·0.90 requests/s."""

    H100 = StageWorker(PREFILL_FACTOR * 41 / 4, 1, H100_USD, "H100")

    def test_one_h100_feeds_33_weak_decoders(self) -> None:
        b60 = StageWorker(0.28, 4, 2.0, "B60")
        pair = best_rate([self.H100], [b60], Budget(accelerators=8))
        assert pair is not None
        assert (pair.prefill_workers, pair.decode_workers) == (1, 1)  # never four H100 for one decoder
        pool = best_rate([self.H100], [b60], Budget(inventory={"H100": 1, "B60": 4 * 33}))
        assert pool is not None
        assert pool.decode_workers == pytest.approx(33, abs=1)
        assert pool.prefill_workers == 1

    def test_one_h100_for_three_l40s_pairs(self) -> None:
        l40s = StageWorker(262.5 * 8 / OSL / 3, 2, 1.8, "L40S")
        pair = best_rate([self.H100], [l40s], Budget(accelerators=8))
        assert pair is not None
        assert (pair.prefill_workers, pair.decode_workers, pair.accelerators) == (1, 3, 7)


class TestLinkSaturation:
    """Four prefill workers of two ranks, 0.5 GB/s each; 131,072 bytes per token and rank, 4000 tokens."""

    LINK = Link("slow", LinkKind.TCP, bandwidth=2 * 0.5e9, alpha=0.0)
    SIZE = 2 * 131_072 * 4000

    def test_sustained_rate(self, compare) -> None:
        rate = float(pool_bandwidth(self.LINK, 4, 4)) / self.SIZE
        compare("saturated link, requests/s", 3.81, rate, 0.002)
        compare("saturated link, tokens/s", 1907, rate * OSL, 0.002)

    def test_beyond_it_the_wait_grows_without_bound(self) -> None:
        per_worker = np.array([3.0, 3.7, 3.81, 3.82, 15.08]) / 4  # 7,541 tokens/s would be 15.08 requests/s
        load = link_load(self.LINK, per_worker, self.SIZE)
        assert np.all(np.diff(load.wait.mean[:3]) > 0)
        assert np.isfinite(load.wait.mean[:3]).all()
        assert np.isinf(load.wait.mean[3:]).all()


def worker(model, tp: int = 1, kv: Dtype = Dtype.BF16, bandwidth: float = 4.8e12) -> Worker:
    chip = Accelerator("chip", "", 141e9, bandwidth, {}, ScaleUp("", 0, 1), 0, 50e9, 700)
    return Worker(model, chip, Precision(Dtype.BF16, Dtype.BF16, kv), Parallelism(tp=tp))


WIRE = Link("50 GB/s", LinkKind.INFINIBAND, 50e9, alpha=0.0)


class TestTransferInTtft:
    @pytest.mark.parametrize(("name", "published"), [("Qwen3-32B", 0.168), ("DeepSeek-V3", 0.045)])
    def test_the_handoff_is_in_ttft(self, compare, name: str, published: float) -> None:
        model = CATALOG.model(name)
        away = Boundary(Placement.DISAGGREGATED, WIRE, Representation(Codec.RAW, Dtype.BF16))
        cost = handoff(worker(model), worker(model), away, 32_000, prefill=1.0)
        compare(f"{name} handoff of 32,000 tokens at 50 GB/s, s", published, cost.delay, 0.005)

    def test_colocated_hands_nothing_off(self) -> None:
        model = CATALOG.model("Qwen3-32B")
        together = Boundary(Placement.COLOCATED, WIRE, Representation(Codec.RAW, Dtype.BF16))
        assert handoff(worker(model), worker(model), together, 32_000, prefill=1.0).delay == 0


class TestKvFormatMismatch:
    def test_conversion_is_charged_to_decode(self, compare) -> None:
        model = CATALOG.model("Qwen3-32B")
        floor = conversion_seconds(model, 4000, Dtype.FP8, Dtype.BF16, worker(model), mbu=1.0)
        compare("fp8 to bf16 KV traffic of 4000 tokens, bytes", 1.57e9, floor * 4.8e12, 0.005)
        compare("fp8 to bf16 KV at 4.8 TB/s, s", 0.33e-3, floor, 0.01)
        assert conversion_seconds(model, 4000, Dtype.FP8, Dtype.BF16, worker(model)) > floor
        halves = conversion_seconds(model, 4000, Dtype.FP8, Dtype.BF16, worker(model, tp=2), mbu=1.0)
        assert halves == pytest.approx(float(floor) / 2)

    def test_the_wire_carries_the_prefill_format(self) -> None:
        model = CATALOG.model("Qwen3-32B")
        raw = Boundary(Placement.DISAGGREGATED, WIRE, Representation(Codec.RAW, Dtype.FP8))
        cost = handoff(worker(model, kv=Dtype.FP8), worker(model), raw, 4000, prefill=1.0)
        assert cost.wire_bytes == wire_bytes(model, 4000, Dtype.FP8)
        assert cost.decode_conversion >= 0.33e-3
        assert cost.delay == pytest.approx(float(transfer_seconds(WIRE, cost.wire_bytes) + cost.decode_conversion))
        same = handoff(worker(model, kv=Dtype.FP8), worker(model, kv=Dtype.FP8), raw, 4000, prefill=1.0)
        assert same.decode_conversion == 0


class TestPriceRanking:
    """By throughput the order is one, by USD per million output tokens another."""

    # run: tokens/s per GPU, GPUs and price per GPU of prefill and of decode
    RUNS = {
        "B200": (1969, (32, B200_USD), (0, 0.0), 0.78),
        "B200→H200": (1492, (16, B200_USD), (16, H200_USD), 0.84),
        "H200→B200": (1144, (24, H200_USD), (8, B200_USD), 0.97),
        "H100→H200": (884, (20, H100_USD), (12, H200_USD), 0.90),
        "H200": (858, (32, H200_USD), (0, 0.0), 1.13),
        "H100": (741, (32, H100_USD), (0, 0.0), 0.94),
    }

    def usd_per_million(self, run: str) -> float:
        throughput, (prefill, prefill_usd), (decode, decode_usd), _ = self.RUNS[run]
        gpus = prefill + decode
        pair = StageWorker(throughput * gpus / OSL, gpus, prefill * prefill_usd + decode * decode_usd)
        return pair.usd_per_hour / (pair.capacity * OSL * 3600) * 1e6

    @pytest.mark.parametrize("run", RUNS)
    def test_usd_per_million_output_tokens(self, compare, run: str) -> None:
        compare(
            f"USD per million tokens of {run}",
            self.RUNS[run][3],
            round(self.usd_per_million(run), 2),
            0.02,
            in_sample=True,
        )

    def test_their_order_changes(self) -> None:
        by_throughput = sorted(self.RUNS, key=lambda run: -self.RUNS[run][0])
        by_price = sorted(self.RUNS, key=self.usd_per_million)
        assert by_throughput == ["B200", "B200→H200", "H200→B200", "H100→H200", "H200", "H100"]
        assert by_price == ["B200", "B200→H200", "H100→H200", "H100", "H200→B200", "H200"]

    def test_at_the_exact_optimum_h200_wins_by_throughput_and_the_pair_by_price(self) -> None:
        alone, pair = best_rate([H200_P], [H200_D], GPUS), best_rate([H100_P], [H200_D], GPUS)
        assert alone is not None
        assert pair is not None
        assert alone.rate > pair.rate
        assert pair.usd_per_million(OSL) < 0.85 * alone.usd_per_million(OSL)
