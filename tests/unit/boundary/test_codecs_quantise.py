"""Codes under scales, against numbers done by hand and against a reference that works one value at a time."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from diptych.boundary.codecs import quantise
from diptych.boundary.codecs.codec import Codec
from diptych.boundary.codecs.convert import convert
from diptych.boundary.codecs.quantise import pack, scale_values
from diptych.boundary.codecs.stored import StoredKV
from diptych.boundary.element import Element as E
from diptych.boundary.element import ScaleGranularity as G
from diptych.boundary.element import ScaleSource, Scaling
from diptych.boundary.format import Format


def inline(element: E, granularity: G, group: int = 0) -> Format:
    return Format(element, Scaling(ScaleSource.INLINE, granularity, group=group))


def row(*values: float) -> NDArray[Any]:
    """One head of one token."""
    return np.array(values, np.float32).reshape(1, 1, 1, 1, -1)


def test_int8_by_hand() -> None:
    kv = convert(StoredKV.of(row(127, -127, 63.5, 0.49, 0.5, 1.5, -2.5, 0)), inline(E.INT8, G.TENSOR))
    assert scale_values(kv).reshape(-1).tolist() == [1.0]
    assert kv.array.reshape(-1).tolist() == [127, -127, 64, 0, 0, 2, -2, 0]  # ties to even


def test_int4_by_hand() -> None:
    kv = convert(StoredKV.of(row(14, -14, 2, 3, -6, 0, 1, 13)), inline(E.INT4, G.GROUP, 8))
    assert scale_values(kv).reshape(-1).tolist() == [2.0]
    # 7, -7, 1, 2 (1.5, to even), -3, 0, 0 (0.5, to even), 6 (6.5); the even index in the low half
    assert [hex(byte) for byte in kv.codes] == ["0x97", "0x21", "0xd", "0x60"]
    assert convert(kv, Format(E.FP32)).array.reshape(-1).tolist() == [14, -14, 2, 4, -6, 0, 0, 12]


def test_nvfp4_by_hand() -> None:
    values = row(*([6, -6, 4, 3, 2, 1.5, 1, 0.5] * 2))
    kv = convert(StoredKV.of(values), inline(E.NVFP4, G.GROUP, 16))
    # One float32 above all: 6 / (6 · 448); the group's e4m3 scale is then 448, and their product 1.
    assert kv.scales[:4].view(np.float32)[0] == np.float32(6 / 6 / 448)
    assert kv.scales[4] == 0x7E
    assert [hex(byte) for byte in kv.codes[:4]] == ["0xf7", "0x56", "0x34", "0x12"]
    np.testing.assert_allclose(convert(kv, Format(E.FP32)).array, values, rtol=1e-7)


def test_nvfp4_scales_are_rounded_up() -> None:
    """Rounded to nearest, half of them would clip their largest value."""
    values = np.random.default_rng(9).standard_normal((2, 2, 8, 2, 64)).astype(np.float32)
    kv = convert(StoredKV.of(values), inline(E.NVFP4, G.GROUP, 16))
    held = np.abs(values.reshape(2, 2, 8, 2, 4, 16)) / scale_values(kv)[..., None]
    assert held.max() <= 6 * (1 + 2.0**-22)
    assert held.max(axis=-1).min() > 6 * 8 / 9 * (1 - 2.0**-22)  # one step of e4m3 at most


def test_pack_puts_the_even_index_low() -> None:
    assert pack(np.uint8([0x1, 0x2, 0xF, 0x0])).tolist() == [0x21, 0x0F]


def test_an_all_zero_group_beside_others_stays_zero() -> None:
    values = np.zeros((1, 1, 2, 1, 32), np.float32)
    values[0, 0, 1] = 5
    for form in (
        inline(E.INT8, G.TOKEN),
        inline(E.INT4, G.GROUP, 16),
        inline(E.E4M3FN, G.TOKEN),
        inline(E.NVFP4, G.GROUP, 16),
    ):
        decoded = Codec(Format(E.FP32), form).decode(Codec(Format(E.FP32), form).encode(values)).array
        assert not decoded[0, 0, 0].any()
        np.testing.assert_allclose(decoded[0, 0, 1], 5, rtol=0.01)


def test_scales_follow_what_shares_them() -> None:
    """One large value moves the scale of its tensor, head, token or group, and no other."""
    values = np.ones((2, 2, 3, 2, 32), np.float32)
    values[1, 0, 2, 1, 20] = 127
    moved = {
        G.TENSOR: [(1, 0, 0, 0, 0)],
        G.HEAD: [(1, 0, 0, 1, 0)],
        G.TOKEN: [(1, 0, 2, 1, 0)],
        G.GROUP: [(1, 0, 2, 1, 1)],
    }
    for granularity, places in moved.items():
        form = inline(E.INT8, granularity, 16 if granularity is G.GROUP else 0)
        scales = scale_values(convert(StoredKV.of(values), form))
        assert [tuple(place) for place in np.argwhere(scales > 0.5)] == places


def reference(values: NDArray[Any], scales: NDArray[Any], element: E) -> NDArray[Any]:
    """What the codec's arithmetic says, by the libraries and all at once."""
    scaled = values.astype(np.float32) * (np.float32(1) / scales)
    if element is E.INT8:
        return np.clip(np.rint(scaled), -127, 127).astype(np.int8).view(np.uint8)
    kinds = {E.E4M3FN: ml_dtypes.float8_e4m3fn, E.E4M3FNUZ: ml_dtypes.float8_e4m3fnuz, E.E5M2: ml_dtypes.float8_e5m2}
    top = quantise.TOP[element]
    return np.clip(scaled, -top, top).astype(kinds[element]).view(np.uint8)


@pytest.mark.parametrize("element", [E.INT8, E.E4M3FN, E.E4M3FNUZ, E.E5M2], ids=str)
@pytest.mark.parametrize("granularity", [G.TENSOR, G.HEAD, G.TOKEN], ids=str)
def test_slabs_say_what_the_whole_says(element: E, granularity: G, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantise, "SLAB", 700)  # slabs of a few tokens, the last one short
    values = np.random.default_rng(5).standard_normal((2, 2, 37, 3, 64)).astype(ml_dtypes.bfloat16)
    kv = convert(StoredKV.of(values), inline(element, granularity))
    wanted = reference(values, scale_values(kv), element)
    np.testing.assert_array_equal(kv.codes, wanted.reshape(-1))
