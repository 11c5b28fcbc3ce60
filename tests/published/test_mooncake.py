"""Mooncake: when reusing KV pays (FAST'25, eq. 2) and how long it took to move (its benchmark pages, Apache-2.0)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diptych.catalog.catalog import Catalog
from diptych.catalog.dtype import Dtype
from diptych.catalog.interconnect import Link, LinkKind
from diptych.design.axes import Parallelism, Precision, Worker
from diptych.perf.transfer import path, reuse_bandwidth, transfer_seconds, wire_bytes
from diptych.units import MIB

CATALOG = Catalog.load()
TOKENS = np.array([128, 512, 1024, 2048, 4096, 8192, 16384, 32768])
LONG = TOKENS >= 1024
FITTED = np.isin(TOKENS, (1024, 4096, 16384))  # the others are predicted
SGLANG_KV = np.array([49, 197, 394, 789, 1580, 3150, 6310, 12620]) * 1e6
VLLM_KV = (
    np.array([20, 74, 146, 290, 578, 1.13 * 1024, 2.25 * 1024, 4.5 * 1024]) * MIB
)  # this page counts in binary units
TABLES = {
    # model, TP of both sides, reported bytes, seconds
    "vllm": ("Qwen3-8B", 8, VLLM_KV, np.array([0.54, 0.92, 1.50, 2.51, 4.75, 8.84, 16.43, 31.65]) / 1e3),
    "sglang": ("Qwen3-235B-A22B", 8, SGLANG_KV, np.array([2.07, 2.98, 3.96, 6.43, 10.95, 20.31, 39.14, 76.78]) / 1e3),
}


@pytest.mark.parametrize(("chip", "published"), [("A800-SXM4-80GB", 6), ("H800-SXM-80GB", 19)])
def test_reuse_pays_above_this_bandwidth(compare, chip: str, published: float) -> None:
    flops = 8 * CATALOG.accelerator(chip).peak_16bit
    ours = float(reuse_bandwidth(hidden=8192, gqa=8, element_bytes=2, prefix=8192, flops=flops)) / 1e9
    compare(f"Mooncake reuse bandwidth on 8x{chip}, GB/s", published, round(ours), 0)


@pytest.mark.parametrize("table", TABLES)
def test_bytes_on_the_wire(compare, table: str) -> None:
    """vLLM's table is the logical cache; SGLang's is twice that, since TP8 holds each of 4 KV heads twice."""
    name, tp, reported, _ = TABLES[table]
    model = CATALOG.model(name)
    ours = wire_bytes(model, TOKENS, Dtype.BF16, tp, tp)
    logical = model.kv_bytes(TOKENS, Dtype.BF16)
    assert ours / logical == pytest.approx(2.0 if table == "sglang" else 1.0)
    for tokens, published, size in zip(TOKENS[LONG], reported[LONG], ours[LONG], strict=True):
        compare(f"Mooncake {table} {name} TP{tp} bytes at {tokens}", published, size, 0.02)


@pytest.mark.parametrize("table", TABLES)
def test_transfer_times_out_of_sample(compare, table: str) -> None:
    """α and the slope from 1K, 4K and 16K predict 2K, 8K and 32K."""
    name, tp, _, seconds = TABLES[table]
    size = wire_bytes(CATALOG.model(name), TOKENS, Dtype.BF16, tp, tp)
    relative = 1 / seconds[FITTED]  # least squares of the relative error
    matrix = np.stack([relative, size[FITTED] * relative], axis=1)
    alpha, slope = np.linalg.lstsq(matrix, np.ones(int(FITTED.sum())), rcond=None)[0]
    link = Link("fitted", LinkKind.ROCE, bandwidth=1 / slope, alpha=alpha)
    for tokens, published, ours in zip(TOKENS, seconds, transfer_seconds(link, size), strict=True):
        if tokens >= 1024 and tokens not in TOKENS[FITTED]:
            compare(f"Mooncake {table} {name} transfer at {tokens}, s (fitted on others)", published, ours, 0.10)


@pytest.mark.parametrize(
    ("table", "link", "chip", "nic"), [("vllm", "rdma-200g", "H800", 25e9), ("sglang", "rdma-400g", "H20", 25e9)]
)
def test_transfer_times_over_the_catalog_s_link(compare, table: str, link: str, chip: str, nic: float) -> None:
    """In sample: the catalog's links were fitted on these tables. The path of eight ranks must compose to them."""
    name, tp, _, seconds = TABLES[table]
    model = CATALOG.model(name)
    precision = Precision(Dtype.BF16, Dtype.BF16, Dtype.BF16)
    worker = Worker(model, replace(CATALOG.accelerator(chip), nic_bandwidth=nic), precision, Parallelism(tp=tp))
    route = path(worker, worker, CATALOG.link(link))
    ours = transfer_seconds(route, wire_bytes(model, TOKENS, Dtype.BF16, tp, tp))
    for tokens, published, time in zip(TOKENS[LONG], seconds[LONG], ours[LONG], strict=True):
        compare(
            f"Mooncake {table} {name} transfer at {tokens}, s (catalog's {link})", published, time, 0.10, in_sample=True
        )


def test_without_replication_the_bytes_would_be_half(compare) -> None:
    model = CATALOG.model("Qwen3-235B-A22B")
    compare("Qwen3-235B logical KV at 32K, bytes", 6.31e9, float(model.kv_bytes(32768, Dtype.BF16)), 0.001)
