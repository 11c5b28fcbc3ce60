"""What a stored tensor is, how many bytes it takes, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from diptych.boundary.codecs.codec import Codec
from diptych.boundary.codecs.convert import Method, convert, method
from diptych.boundary.codecs.refusals import NotRepresentable, WrongLength
from diptych.boundary.codecs.stored import KvShape, StoredKV, code_bytes, scale_bytes, wire_bytes
from diptych.boundary.element import Element as E
from diptych.boundary.element import ScaleGranularity as G
from diptych.boundary.element import ScaleSource as S
from diptych.boundary.element import Scaling
from diptych.boundary.format import Format
from diptych.boundary.layers import LayerKind, Layers
from diptych.errors import InvalidInput

SHAPE = KvShape(layers=2, parts=2, tokens=16, heads=8, dim=128)
BF16 = Format(E.BF16)


def inline(element: E, granularity: G, group: int = 0) -> Format:
    return Format(element, Scaling(S.INLINE, granularity, group=group))


@pytest.mark.parametrize(
    ("form", "each"),  # bytes per token and layer: 8 heads of 128, keys and values, by hand
    [
        (BF16, 4096),
        (Format(E.FP32), 8192),
        (inline(E.E4M3FN, G.TENSOR), 2048 + 8 / 16),
        (inline(E.INT8, G.HEAD), 2048 + 8 * 8 / 16),
        (inline(E.INT8, G.TOKEN), 2048 + 64),
        (inline(E.INT4, G.GROUP, 128), 1024 + 32),
        (inline(E.INT4, G.GROUP, 32), 1024 + 128),
        (inline(E.NVFP4, G.GROUP, 16), 1024 + 128 + 8 / 16),
        (Format(E.E4M3FN, Scaling(S.CHECKPOINT, G.TENSOR, "aa")), 2048),
        (Format(E.E4M3FN, Scaling(S.UNIT)), 2048),
    ],
    ids=str,
)
def test_bytes_on_the_wire_by_hand_and_as_the_state_counts_them(form: Format, each: float) -> None:
    assert wire_bytes(SHAPE, form) == 2 * 16 * each
    layers = Layers(LayerKind.FULL, 1, kv_heads=8, head_dim=128, v_head_dim=128)
    counted = 16 * layers.elements_per_token * form.element.bits / 8 + form.scale_bytes(layers, 16)
    assert wire_bytes(SHAPE, form) == 2 * counted


def test_int4_against_bf16_counting_scales() -> None:
    """4 + 16/128 bits against 16: 3.88 times fewer. Four times is the limit that no scale at all would reach."""
    raw = wire_bytes(SHAPE, BF16)
    assert round(raw / wire_bytes(SHAPE, inline(E.INT4, G.GROUP, 128)), 2) == 3.88
    assert raw / wire_bytes(SHAPE, inline(E.INT4, G.TENSOR)) < 4


@pytest.mark.parametrize("change", [-1, 1])
def test_bytes_that_are_not_as_many_as_described_are_refused(change: int) -> None:
    form = inline(E.INT8, G.TOKEN)
    codes, scales = (np.zeros(count(SHAPE, form), np.uint8) for count in (code_bytes, scale_bytes))
    with pytest.raises(WrongLength, match="codes"):
        StoredKV(SHAPE, form, np.resize(codes, codes.size + change), scales)
    with pytest.raises(WrongLength, match="scales"):
        StoredKV(SHAPE, form, codes, np.resize(scales, scales.size + change))
    with pytest.raises(WrongLength, match="payload"):
        StoredKV.received(SHAPE, form, bytes(codes.size + scales.size + change))


def test_a_payload_of_the_same_length_but_another_description_is_refused() -> None:
    """bf16 blocks of 16 tokens are as long as fp8 blocks of 32: only the description tells them apart."""
    fp8 = Format(E.E4M3FN, Scaling(S.UNIT))
    longer = KvShape(2, 2, 32, 8, 128)
    assert wire_bytes(SHAPE, BF16) == wire_bytes(longer, fp8)
    with pytest.raises(InvalidInput, match="is stored as"):
        Codec(BF16, fp8).decode(StoredKV.empty(longer, BF16))


@pytest.mark.parametrize(
    ("form", "shape", "says"),
    [
        (inline(E.INT4, G.GROUP, 48), SHAPE, "48 does not divide"),
        (inline(E.INT4, G.TOKEN), KvShape(1, 1, 1, 1, 7), "an even number"),
        (inline(E.NVFP4, G.GROUP, 16), KvShape(1, 1, 1, 1, 24), "16 does not divide"),
    ],
    ids=str,
)
def test_shapes_that_a_format_cannot_hold_are_refused(form: Format, shape: KvShape, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        wire_bytes(shape, form)


def test_an_empty_or_impossible_shape_is_refused_with_every_finding() -> None:
    with pytest.raises(InvalidInput) as caught:
        KvShape(0, 2, -1, 8, 128)
    assert len(caught.value.findings) == 2


def test_values_that_are_no_kv_are_refused() -> None:
    for values in (np.zeros((2, 2, 4, 2, 16)), np.zeros((2, 4), np.float32), np.zeros((1,) * 5, np.int8)):
        with pytest.raises(InvalidInput, match="five"):
            StoredKV.of(values)


def test_values_that_lie_apart_are_stored_together() -> None:
    wide = np.arange(2 * 2 * 4 * 2 * 32, dtype=np.float32).reshape(2, 2, 4, 2, 32)[..., ::2]
    np.testing.assert_array_equal(StoredKV.of(wide).array, wide)


@pytest.mark.parametrize(
    ("origin", "wanted", "how"),
    [
        (BF16, BF16, Method.RAW),
        (BF16, Format(E.FP16), Method.CAST),
        (BF16, Format(E.E4M3FN, Scaling(S.UNIT)), Method.CAST),
        (BF16, inline(E.E4M3FN, G.HEAD), Method.QUANTISE),
        (BF16, Format(E.INT8, Scaling(S.UNIT)), Method.QUANTISE),
        (inline(E.INT8, G.HEAD), BF16, Method.DEQUANTISE),
        (inline(E.E4M3FN, G.HEAD), inline(E.E4M3FNUZ, G.HEAD), Method.RESCALE),
        (inline(E.E4M3FN, G.TENSOR), inline(E.E4M3FNUZ, G.HEAD), Method.RESCALE),
        (Format(E.E4M3FN, Scaling(S.UNIT)), inline(E.E4M3FNUZ, G.HEAD), Method.RESCALE),
        (inline(E.E4M3FN, G.TENSOR), inline(E.E4M3FN, G.TOKEN), Method.RAW),
        (inline(E.E4M3FN, G.TENSOR), inline(E.E4M3FN, G.GROUP, 32), Method.REQUANTISE),
        (inline(E.E4M3FN, G.TOKEN), inline(E.E4M3FN, G.HEAD), Method.REQUANTISE),
        (inline(E.E4M3FN, G.HEAD), inline(E.INT4, G.GROUP, 64), Method.REQUANTISE),
        (inline(E.NVFP4, G.GROUP, 16), inline(E.NVFP4, G.GROUP, 16), Method.RAW),
    ],
    ids=str,
)
def test_the_method_of_a_pair(origin: Format, wanted: Format, how: Method) -> None:
    assert method(origin, wanted) is how


def small(element: E = E.BF16) -> StoredKV:
    values = np.random.default_rng(1).standard_normal((1, 2, 5, 2, 32)).astype(np.float32)
    return convert(StoredKV.of(values), Format(element))


CHECKPOINT = Format(E.E4M3FN, Scaling(S.CHECKPOINT, G.TENSOR, "aa"))


def test_a_checkpoint_format_without_its_scales_is_refused() -> None:
    with pytest.raises(InvalidInput, match="without its scales"):
        convert(small(), CHECKPOINT)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, 1e-40])
def test_scales_that_scale_nothing_are_refused(bad: float) -> None:
    with pytest.raises(NotRepresentable, match="scales"):
        convert(small(), CHECKPOINT, np.full((1, 2, 1, 1, 1), bad, np.float32))


def test_scales_of_another_shape_or_for_a_format_without_are_refused() -> None:
    with pytest.raises(InvalidInput, match="broadcasts"):
        convert(small(), CHECKPOINT, np.ones((3, 2, 1, 1, 1), np.float32))
    for form in (BF16, Format(E.E5M2, Scaling(S.UNIT)), inline(E.NVFP4, G.GROUP, 16)):
        with pytest.raises(InvalidInput, match="scales"):
            convert(small(), form, np.ones(1, np.float32))


@pytest.mark.parametrize("element", [E.INT8, E.INT4], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_integers_under_given_scales_refuse_nan_and_inf(element: E, bad: float) -> None:
    values = small(E.FP32).array.copy()
    values[0, 1, 3, 1, 7] = bad
    form = Format(element, Scaling(S.CHECKPOINT, G.HEAD, "aa"))
    with pytest.raises(NotRepresentable, match="1 of 640"):
        convert(StoredKV.of(values), form, np.float32(0.1))
    with pytest.raises(NotRepresentable, match="1 of 640"):
        convert(StoredKV.of(values), Format(element, Scaling(S.UNIT)))


def test_fp8_under_given_scales_clips_inf_and_keeps_nan() -> None:
    values = small(E.FP32).array.copy()
    values[0, 0, 0, 0, :4] = [np.nan, np.inf, -1e9, 2.0]
    made = convert(StoredKV.of(values), CHECKPOINT, np.float32(0.5)).array[0, 0, 0, 0, :4].astype(np.float32)
    np.testing.assert_array_equal(made, [np.nan, 448, -448, 4])


@pytest.mark.parametrize(("element", "top"), [(E.INT8, 127), (E.INT4, 7)], ids=str)
def test_integers_under_given_scales_clip(element: E, top: int) -> None:
    values = small(E.FP32).array.copy()
    values[0, 0, 0, 0, :4] = [1e9, -3e38, top + 0.4, -top - 0.6]
    form = Format(element, Scaling(S.CHECKPOINT, G.HEAD, "aa"))
    back = convert(convert(StoredKV.of(values), form, np.float32(1)), Format(E.FP32))
    assert back.array[0, 0, 0, 0, :4].tolist() == [top, -top, top, -top]


def test_room_for_another_tensor_is_refused_and_right_room_is_used() -> None:
    kv, form = small(), inline(E.INT8, G.HEAD)
    with pytest.raises(WrongLength, match="room for"):
        convert(kv, form, out=StoredKV.empty(SHAPE, form))
    room = StoredKV.empty(kv.shape, form)
    assert convert(kv, form, out=room) is room
    assert room.codes.tobytes() == convert(kv, form).codes.tobytes()


def test_other_scales_of_the_same_bytes_change_the_bytes() -> None:
    """A consumer with another checkpoint's scales would read the producer's bytes as other values: they are made anew."""
    kv = convert(small(), CHECKPOINT, np.float32(0.01))
    other = Format(E.E4M3FN, Scaling(S.CHECKPOINT, G.TENSOR, "bb"))
    moved = convert(kv, other, np.float32(0.02))
    have, made = (convert(each, Format(E.FP32)).array for each in (kv, moved))
    assert moved.codes.tobytes() != kv.codes.tobytes()
    assert np.abs(made - have).max() <= np.abs(have).max() * 2.0**-4
    same = convert(kv, other, np.float32(0.01))
    assert same.codes.tobytes() == kv.codes.tobytes()


def test_the_same_checkpoint_on_fnuz_is_its_scales_doubled_and_the_same_bytes() -> None:
    values = np.abs(small(E.FP32).array) + 0.1
    kv = convert(StoredKV.of(values), CHECKPOINT, np.float32(0.01))
    fnuz = Format(E.E4M3FNUZ, Scaling(S.CHECKPOINT, G.TENSOR, "aa"))
    assert convert(kv, fnuz, np.float32(0.02)).codes.tobytes() == kv.codes.tobytes()
    assert convert(kv, fnuz, np.float32(0.01)).codes.tobytes() != kv.codes.tobytes()


@pytest.mark.parametrize("code", range(256))
def test_every_byte_of_fn_and_fnuz_under_its_scale(code: int) -> None:
    shape = KvShape(1, 1, 1, 1, 1)
    fn, fnuz = inline(E.E4M3FN, G.HEAD), inline(E.E4M3FNUZ, G.HEAD)
    for origin, wanted in ((fn, fnuz), (fnuz, fn)):
        kv = StoredKV(shape, origin, np.uint8([code]), np.float32([1.5]).view(np.uint8))
        moved = convert(kv, wanted)
        before, after = (float(convert(each, Format(E.FP32)).array[0, 0, 0, 0, 0]) for each in (kv, moved))
        if origin is fnuz and code in (0x7F, 0xFF):
            assert after == before * 224 / 240
        else:
            assert after == before or (np.isnan(after) and np.isnan(before))
            if code not in (0x7F, 0x80, 0xFF):
                assert int(moved.codes[0]) == code
