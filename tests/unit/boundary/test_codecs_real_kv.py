"""What codecs lose and save on the KV of a real model (tests/data/kv). The numbers are those of the page in benchmarks/."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import zstandard

from diptych.boundary.codecs.codec import Codec
from diptych.boundary.codecs.stored import StoredKV
from diptych.boundary.element import Element as E
from diptych.boundary.element import ScaleGranularity as G
from diptych.boundary.element import ScaleSource, Scaling
from diptych.boundary.format import Format

SAMPLE = Path(__file__).parents[2] / "data/kv/smollm2_135m_bf16.zst"
BF16 = Format(E.BF16)


@pytest.fixture(scope="module")
def real() -> StoredKV:
    raw = zstandard.ZstdDecompressor().decompress(SAMPLE.read_bytes(), max_output_size=1 << 20)
    return StoredKV.of(np.frombuffer(raw, np.uint16).view(ml_dtypes.bfloat16).reshape(3, 2, 256, 3, 64))


def inline(element: E, granularity: G, group: int = 0) -> Format:
    return Format(element, Scaling(ScaleSource.INLINE, granularity, group=group))


def loss(wire: Format, kv: StoredKV) -> float:
    codec = Codec(BF16, wire)
    values = kv.array.astype(np.float64)
    decoded = codec.decode(codec.encode(kv)).array.astype(np.float64)
    return float(np.sqrt(((decoded - values) ** 2).mean() / (values**2).mean()))


@pytest.mark.parametrize(
    ("wire", "lost"),
    [
        (inline(E.E4M3FN, G.HEAD), 0.0266),
        (inline(E.E5M2, G.HEAD), 0.0530),
        (inline(E.INT8, G.HEAD), 0.0146),
        (inline(E.INT8, G.TOKEN), 0.0100),
        (inline(E.INT4, G.TOKEN), 0.179),
        (inline(E.INT4, G.GROUP, 32), 0.141),
        (inline(E.NVFP4, G.GROUP, 16), 0.100),
    ],
    ids=str,
)
def test_the_loss_of_each_format(wire: Format, lost: float, real: StoredKV) -> None:
    assert loss(wire, real) == pytest.approx(lost, rel=0.01)


@pytest.mark.parametrize(
    ("wire", "fewer"),
    [
        (BF16, 1.45),
        (inline(E.E4M3FN, G.HEAD), 2.40),
        (inline(E.INT4, G.GROUP, 64), 5.25),
        (inline(E.INT4, G.GROUP, 32), 4.5),
    ],
    ids=str,
)
def test_times_fewer_bytes_compressed(wire: Format, fewer: float, real: StoredKV) -> None:
    codec = Codec(BF16, wire, compressed=True)
    encoded = codec.encode(real)
    size = sum(len(part) for part in codec.payload(encoded))
    assert real.codes.nbytes / size == pytest.approx(fewer, rel=0.03)


def test_int4_compressed_is_four_times_smaller_than_bf16_with_its_scales(real: StoredKV) -> None:
    for group in (32, 64):
        codec = Codec(BF16, inline(E.INT4, G.GROUP, group), compressed=True)
        assert 4 * sum(len(part) for part in codec.payload(codec.encode(real))) < real.codes.nbytes
