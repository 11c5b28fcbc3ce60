"""Laws of the codecs over random and adversarial tensors: what is exact, how far the rest is off, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_tensors import FLOAT_FORMATS, FORMATS, FP8, NVFP4, SCALED_FORMATS, inline, tensors
from numpy.typing import NDArray

from diptych.boundary.codecs.bounds import rounding
from diptych.boundary.codecs.codec import Codec
from diptych.boundary.codecs.convert import convert
from diptych.boundary.codecs.quantise import scale_values
from diptych.boundary.codecs.refusals import NotRepresentable, WrongLength
from diptych.boundary.codecs.stored import StoredKV, scale_dims, wire_bytes
from diptych.boundary.conversion import Loss, conversion
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format

E = Element


def spread(kv: StoredKV) -> NDArray[np.float64]:
    """The scale of every element."""
    scales = scale_values(kv).astype(np.float64)
    if scales.shape[-1] > 1:
        scales = np.repeat(scales, kv.shape.dim // scales.shape[-1], axis=-1)
    return np.broadcast_to(scales, kv.shape.dims)


def as_float64(kv: StoredKV) -> NDArray[np.float64]:
    return convert(kv, Format(E.FP32)).array.astype(np.float64)


@given(values=tensors(), wire=st.sampled_from(FORMATS))
def test_a_decoded_value_is_within_the_bound(values: NDArray[Any], wire: Format) -> None:
    kv = StoredKV.of(values)
    codec = Codec(kv.form, wire)
    encoded = codec.encode(kv)
    decoded = codec.decode(encoded).array.astype(np.float64)
    given_values = values.astype(np.float64)
    assert np.isfinite(decoded).all()
    excess = np.abs(decoded - given_values) - codec.bound.error(given_values, spread(encoded))
    assert excess.max() <= 0, f"{excess.max()} beyond {codec.bound}"
    if codec.bound.is_exact:
        assert codec.decode(encoded).codes.tobytes() == kv.codes.tobytes()


@given(values=tensors(), wire=st.sampled_from(FORMATS), compressed=st.booleans())
def test_the_bytes_on_the_wire_are_as_many_as_was_said_and_come_back(
    values: NDArray[Any], wire: Format, compressed: bool
) -> None:
    kv = StoredKV.of(values)
    codec = Codec(kv.form, wire, compressed)
    encoded = codec.encode(kv)
    payload = b"".join(bytes(part) for part in codec.payload(encoded))
    said = codec.wire_bytes(kv.shape)
    assert len(payload) <= said if compressed else len(payload) == said
    received = codec.received(kv.shape, payload)
    assert received.codes.tobytes() == encoded.codes.tobytes()
    assert received.scales.tobytes() == encoded.scales.tobytes()


@given(
    values=tensors(), wire=st.sampled_from(FORMATS), compressed=st.booleans(), cut=st.integers(1, 40), data=st.data()
)
def test_a_payload_of_another_length_is_refused(
    values: NDArray[Any], wire: Format, compressed: bool, cut: int, data: st.DataObject
) -> None:
    kv = StoredKV.of(values)
    codec = Codec(kv.form, wire, compressed)
    payload = b"".join(bytes(part) for part in codec.payload(codec.encode(kv)))
    other = data.draw(st.sampled_from([payload[:-cut], payload + bytes(cut), payload[cut:] + bytes(2 * cut), b""]))
    with pytest.raises(WrongLength):
        codec.received(kv.shape, other)


@given(values=tensors(), wire=st.sampled_from([*SCALED_FORMATS, NVFP4]))
def test_the_largest_value_under_a_scale_is_at_the_top_and_none_is_clipped(values: NDArray[Any], wire: Format) -> None:
    kv = StoredKV.of(values)
    encoded = Codec(kv.form, wire).encode(kv)
    tops = {E.E4M3FN: 448, E.E4M3FNUZ: 240, E.E5M2: 57344, E.INT8: 127, E.INT4: 7, E.NVFP4: 6}
    bfloat16 = wire.scaling.granularity is ScaleGranularity.GROUP and wire != NVFP4
    slack = 1 + (2.0**-8 if bfloat16 else 2.0**-22)
    excess = np.abs(values.astype(np.float64)) - tops[wire.element] * slack * spread(encoded)
    assert excess.max() <= 0


@given(
    values=tensors(),
    wire=st.sampled_from([*SCALED_FORMATS, NVFP4]),
    bad=st.sampled_from([np.nan, np.inf, -np.inf]),
    data=st.data(),
)
def test_nan_and_inf_leave_no_scale_for_their_neighbours(
    values: NDArray[Any], wire: Format, bad: float, data: st.DataObject
) -> None:
    poisoned = values.copy()
    poisoned.reshape(-1)[data.draw(st.integers(0, values.size - 1))] = bad
    with pytest.raises(NotRepresentable, match="1 of"):
        Codec(StoredKV.of(values).form, wire).encode(poisoned)


@given(values=tensors(), scaling=st.sampled_from(SCALED_FORMATS), twice=st.booleans())
def test_fn_and_fnuz_keep_their_bytes_and_their_values(values: NDArray[Any], scaling: Format, twice: bool) -> None:
    origin, other = (E.E4M3FN, E.E4M3FNUZ) if twice else (E.E4M3FNUZ, E.E4M3FN)
    stored = convert(StoredKV.of(values), Format(origin, scaling.scaling))
    moved = convert(stored, Format(other, scaling.scaling))
    kept = np.isin(stored.codes, (0x7F, 0x80, 0xFF), invert=True)
    np.testing.assert_array_equal(moved.codes[kept], stored.codes[kept])
    np.testing.assert_array_equal(as_float64(moved).reshape(-1)[kept], as_float64(stored).reshape(-1)[kept])
    back = convert(moved, Format(origin, scaling.scaling))
    np.testing.assert_array_equal(back.codes[kept], stored.codes[kept])
    np.testing.assert_array_equal(back.scales, stored.scales)


@given(values=tensors(), element=st.sampled_from(FP8))
def test_a_coarser_scale_written_out_finer_keeps_the_bytes(values: NDArray[Any], element: Element) -> None:
    whole = convert(StoredKV.of(values), Format(element, inline(ScaleGranularity.TENSOR)))
    finer = convert(whole, Format(element, inline(ScaleGranularity.TOKEN)))
    np.testing.assert_array_equal(finer.codes, whole.codes)
    np.testing.assert_array_equal(as_float64(finer), as_float64(whole))


@given(values=tensors(), wire=st.sampled_from(FORMATS))
def test_encoding_twice_is_encoding_once(values: NDArray[Any], wire: Format) -> None:
    """What a codec made, read and made again with the same scales, is what it was."""
    encoded = Codec(StoredKV.of(values).form, wire).encode(values)
    if wire == NVFP4 or wire.scaling.source is ScaleSource.NONE:
        return
    scales = None if wire.scaling.source is ScaleSource.UNIT else scale_values(encoded)
    again = convert(convert(encoded, Format(E.FP32)), wire, scales)
    signless = np.where(encoded.codes == 0x80, 0, encoded.codes) if wire.element in FP8 else encoded.codes
    repeated = np.where(again.codes == 0x80, 0, again.codes) if wire.element in FP8 else again.codes
    np.testing.assert_array_equal(repeated, signless)


@given(values=tensors(), wire=st.sampled_from(SCALED_FORMATS))
def test_given_scales_are_used_and_do_not_travel(values: NDArray[Any], wire: Format) -> None:
    kv = StoredKV.of(values)
    measured = Codec(kv.form, wire).encode(kv)
    fixed = Format(wire.element, Scaling(ScaleSource.CHECKPOINT, *_shared(wire)))
    encoded = convert(kv, fixed, scale_values(measured))
    np.testing.assert_array_equal(encoded.codes, measured.codes)
    assert wire_bytes(kv.shape, fixed) == measured.codes.nbytes
    assert encoded.payload[0].nbytes == measured.codes.nbytes
    assert len(encoded.payload) == 1


def _shared(wire: Format) -> tuple[ScaleGranularity, str, int]:
    return wire.scaling.granularity, "", wire.scaling.group


@given(values=tensors(), wire=st.sampled_from(FORMATS))
def test_a_token_alone_is_coded_as_among_others(values: NDArray[Any], wire: Format) -> None:
    """Scales per token and per group do not look at other tokens: blocks may be sent one by one."""
    if wire.scaling.granularity not in (ScaleGranularity.TOKEN, ScaleGranularity.GROUP) or wire == NVFP4:
        return
    codec = Codec(StoredKV.of(values).form, wire)
    whole = codec.encode(values).array
    for token in {0, values.shape[2] // 2, values.shape[2] - 1}:
        np.testing.assert_array_equal(
            codec.encode(values[:, :, token : token + 1]).array, whole[:, :, token : token + 1]
        )


@given(values=tensors(), source=st.sampled_from(FORMATS), wire=st.sampled_from(FORMATS))
def test_any_format_becomes_any_other(values: NDArray[Any], source: Format, wire: Format) -> None:
    """Through every pair, the second loss is within its own bound of what the first left."""
    first = convert(StoredKV.of(values), source)
    codec = Codec(source, wire)
    second = codec.encode(first)
    assert second.form == wire
    assert scale_values(second).shape == scale_dims(first.shape, wire)
    have, made = as_float64(first), as_float64(second)
    if not source.element.is_float:
        allowed = codec.bound.error(have, spread(second)) + 2.0**-22 * np.abs(have)
        assert (np.abs(made - have) - allowed).max() <= 0


@pytest.mark.parametrize("form", FLOAT_FORMATS, ids=str)
@given(data=st.data())
def test_nan_and_inf_cross_between_floats(form: Format, data: st.DataObject) -> None:
    values = data.draw(tensors(form.element)).copy()
    flat = values.reshape(-1)
    flat[0], flat[-1] = np.nan, -np.inf
    for wire in FLOAT_FORMATS:
        decoded = Codec(form, wire).encode(values).array.reshape(-1)
        finite = slice(1, -1)
        assert np.isnan(decoded[0])
        assert decoded[-1] == -np.inf
        assert np.isfinite(decoded[finite]).all()


def test_the_contract_calls_exact_what_the_codecs_keep() -> None:
    """`conversion` says in words what a pair loses, without numpy; both speak of the same arithmetic."""
    for source in FORMATS:
        for wire in FORMATS:
            if source != wire:
                assert (conversion(source, wire).loss is Loss.EXACT) == rounding(source, wire).is_exact, (
                    f"{source} to {wire}"
                )
