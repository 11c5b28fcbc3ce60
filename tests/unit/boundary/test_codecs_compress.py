"""Lossless compression: what comes back, what is refused, and that nothing is allocated by the sender's number."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import zstandard

from diptych.boundary.codecs.compress import HEAD, STORED, ZSTD, compress, compressed_bytes, decompress, plane_sizes
from diptych.boundary.codecs.convert import convert
from diptych.boundary.codecs.refusals import WrongLength
from diptych.boundary.codecs.stored import StoredKV, wire_bytes
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format

BF16 = Format(Element.BF16)
INT4 = Format(Element.INT4, Scaling(ScaleSource.INLINE, ScaleGranularity.GROUP, group=64))


def gaussian(tokens: int = 64) -> StoredKV:
    values = np.random.default_rng(2).standard_normal((2, 2, tokens, 4, 64)).astype(np.float32)
    return convert(StoredKV.of(values), BF16)


def test_exponents_shrink_and_mantissas_are_stored() -> None:
    kv = gaussian()
    payload = compress(kv)
    low, high = plane_sizes(kv.shape, BF16)
    assert HEAD.unpack_from(payload) == (STORED, low)
    kind, length = HEAD.unpack_from(payload, HEAD.size + low)
    # The exponent of a Gaussian has 2.55 bits of entropy; a Huffman code of bytes comes close.
    assert kind == ZSTD
    assert 2.5 / 8 * high < length < 3 / 8 * high
    assert len(payload) < 0.7 * wire_bytes(kv.shape, BF16)


@pytest.mark.parametrize("form", [BF16, Format(Element.FP32), Format(Element.FP16), INT4], ids=str)
def test_all_bytes_come_back(form: Format) -> None:
    kv = convert(gaussian(), form)
    back = decompress(kv.shape, form, compress(kv))
    assert back.codes.tobytes() == kv.codes.tobytes()
    assert back.scales.tobytes() == kv.scales.tobytes()


def test_what_cannot_shrink_grows_by_its_heads_alone() -> None:
    kv = gaussian()
    noise = np.random.default_rng(3).integers(0, 256, kv.codes.size, np.uint8)
    payload = compress(StoredKV(kv.shape, BF16, noise))
    assert len(payload) == compressed_bytes(kv.shape, BF16) == kv.codes.size + 2 * HEAD.size


def test_scales_that_do_not_travel_are_the_receivers() -> None:
    form = Format(Element.INT8, Scaling(ScaleSource.CHECKPOINT, ScaleGranularity.TENSOR, "aa"))
    kv = convert(gaussian(), form, np.float32(0.05))
    back = decompress(kv.shape, form, compress(kv), kv.scales)
    assert back.scales.tobytes() == kv.scales.tobytes()


def _claiming(size: int) -> bytes:
    """A frame that says it holds `size` zeros, and does."""
    return zstandard.ZstdCompressor().compress(bytes(size))


UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10))


@pytest.mark.parametrize("body", [_claiming(1 << 28), b"no frame at all", b"", _claiming(100)[:-3], UNSIZED])
def test_a_plane_that_says_another_size_is_refused_before_it_is_unpacked(body: bytes) -> None:
    kv = gaussian(16)
    low, _ = plane_sizes(kv.shape, BF16)
    payload = HEAD.pack(STORED, low) + bytes(low) + HEAD.pack(ZSTD, len(body)) + body
    tracemalloc.start()
    with pytest.raises(WrongLength, match="plane 1"):
        decompress(kv.shape, BF16, payload)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_a_payload_cut_anywhere_is_refused(at: int) -> None:
    kv = gaussian(16)
    payload = compress(kv)
    for cut in (payload[:at], payload[: len(payload) - 1 - at], payload + bytes(at + 1)):
        with pytest.raises(WrongLength):
            decompress(kv.shape, BF16, cut)


@pytest.mark.parametrize("kind", [2, 255])
def test_a_plane_of_an_unknown_kind_is_refused(kind: int) -> None:
    kv = gaussian(16)
    low, high = plane_sizes(kv.shape, BF16)
    payload = HEAD.pack(kind, low) + bytes(low) + HEAD.pack(STORED, high) + bytes(high)
    with pytest.raises(WrongLength, match=f"kind {kind}"):
        decompress(kv.shape, BF16, payload)
