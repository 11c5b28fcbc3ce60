"""Transfers that others measured: NIXL's backends, EXO's two desktops, Splitwise's layer-wise streaming."""

from __future__ import annotations

import numpy as np
import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.design.boundary import Boundary, Codec, Overlap, Placement, Representation
from diptych.perf.handoff import handoff
from diptych.perf.roofline import default_perf
from diptych.perf.transfer import exposed_seconds, transfer_seconds, wire_bytes

CATALOG = Catalog.load()


@pytest.mark.parametrize(
    ("link", "low", "high"),
    # GB/s at 8 GB, nixlbench on llm-d's blog of 2026-06-23
    [
        ("roce-100g", 12.0, 12.2),
        ("ib-400g", 49.5, 49.5),
        ("ib-400g-mooncake", 38, 42),
        ("tcp-100g", 4.7, 4.9),
        ("tcp-100g-ucx", 0.55, 0.56),
    ],
)
def test_backends_at_large_sizes(compare, link: str, low: float, high: float) -> None:
    """In sample: the catalog's rows come from this page."""
    ours = 8e9 / float(transfer_seconds(CATALOG.link(link), 8e9)) / 1e9
    compare(f"NIXL over {link}, GB/s", (low + high) / 2, ours, (high - low) / (high + low) + 0.01, in_sample=True)


@pytest.mark.parametrize(
    ("link", "size", "published"), [("tcp-100g", 1e9, 0.211), ("tcp-100g-ucx", 1e9, 1.8), ("tcp-100g-ucx", 8e9, 14.4)]
)
def test_backend_times(compare, link: str, size: float, published: float) -> None:
    ours = float(transfer_seconds(CATALOG.link(link), size))
    compare(f"NIXL {size / 1e9:g} GB over {link}, s", published, ours, 0.02, in_sample=True)


class TestExo:
    """Llama-3.1-8B FP16, 8192-token prompt: DGX Spark prefills in 1.47 s, Mac Studio M3 Ultra decodes in 0.85 s, 10 GbE."""

    SPARK_PREFILL, SPARK_DECODE, MAC_PREFILL, MAC_DECODE = 1.47, 2.87, 5.57, 0.85

    def workers(self) -> tuple[Worker, Worker]:
        precision, model = Precision(Dtype.FP16, Dtype.FP16, Dtype.FP16), CATALOG.model("Llama-3.1-8B")
        spark, mac = (CATALOG.accelerator(name) for name in ("DGX-Spark-GB10", "M3-Ultra"))
        return Worker(model, spark, precision, Parallelism()), Worker(model, mac, precision, Parallelism())

    def delay(self, overlap: Overlap, placement: Placement = Placement.DISAGGREGATED) -> float:
        raw = Representation(Codec.RAW, Dtype.FP16)
        boundary = Boundary(placement, CATALOG.link("tcp-10g"), raw, overlap=overlap)
        return float(handoff(*self.workers(), boundary, 8192, self.SPARK_PREFILL).delay)

    def test_hybrid(self, compare) -> None:
        hybrid = self.SPARK_PREFILL + self.delay(Overlap.LAYERWISE) + self.MAC_DECODE
        compare("EXO hybrid, s", 2.32, hybrid, 0.05)
        compare("EXO gain over the Mac", 2.8, (self.MAC_PREFILL + self.MAC_DECODE) / hybrid, 0.05)
        compare("EXO gain over the Spark", 1.9, (self.SPARK_PREFILL + self.SPARK_DECODE) / hybrid, 0.05)

    def test_alone(self, compare) -> None:
        nothing = self.delay(Overlap.SERIAL, Placement.COLOCATED)
        compare("EXO Spark alone, s", 4.34, self.SPARK_PREFILL + nothing + self.SPARK_DECODE, 0.05, in_sample=True)
        compare("EXO Mac alone, s", 6.42, self.MAC_PREFILL + nothing + self.MAC_DECODE, 0.05, in_sample=True)

    def test_its_stages_are_above_our_physical_floor(self) -> None:
        """Prefill of 8192 tokens and 32 decode steps (the count is recalled, not published)."""
        perf = default_perf()
        measured = ((self.SPARK_PREFILL, self.SPARK_DECODE), (self.MAC_PREFILL, self.MAC_DECODE))
        for worker, (prefill, decode) in zip(self.workers(), measured, strict=True):
            assert perf.prefill(worker, 8192).floor <= prefill
            assert 32 * perf.decode(worker, 1, 8192).floor <= decode

    def test_without_overlap_the_whole_transfer_would_show(self) -> None:
        serial, layerwise = self.delay(Overlap.SERIAL), self.delay(Overlap.LAYERWISE)
        assert serial == pytest.approx(131_072 * 8192 / 1.25e9, rel=0.01)
        assert serial > 30 * layerwise


class TestSplitwise:
    """Llama-2-70B on DGX pairs over one InfiniBand port; prefill times are its own TP8 medians (MIT)."""

    TOKENS = np.array([512, 1024, 2048, 4096, 8192])
    SYSTEMS = {
        "A100": ("ib-200g", 0.008, np.array([93, 155, 274, 661, 1550]) / 1e3),
        "H100": ("ib-400g", 0.005, np.array([54, 78, 137, 390, 845]) / 1e3),
    }

    def transfer(self, system: str, tokens: np.ndarray) -> np.ndarray:
        size = wire_bytes(CATALOG.model("Llama-2-70B"), tokens, Dtype.FP16, 8, 8)
        return transfer_seconds(CATALOG.link(self.SYSTEMS[system][0]), size)

    @pytest.mark.parametrize("system", SYSTEMS)
    def test_layerwise_is_flat_and_serial_grows_with_size(self, system: str) -> None:
        _, sync, prefill = self.SYSTEMS[system]
        transfer = self.transfer(system, self.TOKENS)
        serial = exposed_seconds(transfer, prefill, 80)
        shown = exposed_seconds(transfer, prefill, 80, Overlap.LAYERWISE, sync=sync)
        long = self.TOKENS >= 1024
        assert np.all(np.abs(shown[long] - sync) < 0.002)
        assert serial[-1] / serial[0] > 10
        assert np.all(serial / prefill < 0.12)

    def test_short_prompts_are_better_sent_at_the_end(self) -> None:
        """Splitwise switches below about 512 tokens on H100; ours crosses between 256 and 1024."""
        tokens = np.arange(64, 4096)
        transfer = self.transfer("H100", tokens)
        shown = exposed_seconds(transfer, 0.05, 80, Overlap.LAYERWISE, sync=0.005)
        assert 256 <= tokens[np.argmax(shown < transfer)] <= 1024
