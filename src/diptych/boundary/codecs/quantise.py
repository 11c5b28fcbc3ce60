"""Values and their codes under a scale: a slab at a time, read as float32, written as any format.

A slab is some tokens of one layer and part: (tokens, heads, dim). Its scales broadcast against (tokens, heads, groups, 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from diptych.boundary.codecs.bits import Array, bits, magnitudes
from diptych.boundary.codecs.casting import cast, rounded_to_odd
from diptych.boundary.codecs.refusals import NotRepresentable
from diptych.boundary.codecs.stored import Bytes, Floats, KvShape, StoredKV, scale_dims
from diptych.boundary.conversion import GRIDS, LEVELS
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource
from diptych.boundary.format import Format
from diptych.errors import Finding

SLAB = 131072
"""Elements at a time: a float32 slab and its codes stay in a core's second-level cache."""
TOP = {
    **{element: GRIDS[element].largest for element in (Element.E4M3FN, Element.E4M3FNUZ, Element.E5M2)},
    **{element: float(level) for element, level in LEVELS.items()},
    Element.NVFP4: 6.0,
}
"""What the largest magnitude under a scale is stored as. Integers are symmetric: −128 and −8 are not used, so that a value and
its negative lose the same."""
SMALLEST = 2.0**-125
"""No scale is smaller: twice the smallest normal float32, so that its half is one too, and its reciprocal is finite."""
_SHORT = 32

Slab = tuple[int, int, slice]


def slabs(shape: KvShape) -> Iterator[Slab]:
    """Layer, part and tokens of each slab, in the order of memory."""
    step = max(1, SLAB // (shape.heads * shape.dim))
    for layer in range(shape.layers):
        for part in range(shape.parts):
            for start in range(0, shape.tokens, step):
                yield layer, part, slice(start, min(start + step, shape.tokens))


def scale_values(kv: StoredKV) -> Floats:
    """The scales as float32, in `scale_dims`: ones where there are none."""
    dims = scale_dims(kv.shape, kv.form)
    if not kv.scales.size:
        return np.ones(dims, np.float32)
    if kv.form.element is Element.NVFP4:
        tensors = 4 * kv.shape.layers * kv.shape.parts
        shared = kv.scales[:tensors].view(np.float32).reshape(*dims[:2], 1, 1, 1)
        groups = kv.scales[tensors:].view(ml_dtypes.float8_e4m3fn).reshape(dims)
        return np.asarray(groups.astype(np.float32) * shared)
    return np.asarray(kv.scales.view(_scale_dtype(kv.form)).reshape(dims), np.float32)


def write_scales(kv: StoredKV, scales: Floats) -> None:
    """Store `scales` (float32, broadcasting to `scale_dims`); what is stored may be rounded, and is what counts."""
    if kv.scales.size:
        dims = scale_dims(kv.shape, kv.form)
        kv.scales.view(_scale_dtype(kv.form)).reshape(dims)[...] = scales.astype(_scale_dtype(kv.form))


def _scale_dtype(form: Format) -> np.dtype[Any]:
    wide = form.scaling.granularity is not ScaleGranularity.GROUP
    return np.dtype(np.float32) if wide else np.dtype(ml_dtypes.bfloat16)


def measure_scales(kv: StoredKV, target: StoredKV) -> None:
    """Store the scales that put the largest magnitude they cover at the top of the target's range; one for what is all zeros.

    Raises:
        NotRepresentable: NaN or inf among the values, which would leave no scale for their neighbours.
    """
    peak = peaks(kv, target.form)
    if target.form.element is Element.NVFP4:
        _write_nvfp4_scales(peak, target)
    else:
        write_scales(target, _to_top(peak, TOP[target.form.element], SMALLEST))


def _to_top(peak: Floats, top: float, floor: float) -> Floats:
    return np.where(peak > 0, np.maximum(peak / np.float32(top), np.float32(floor)), np.float32(1))


def peaks(kv: StoredKV, form: Format) -> Floats:
    """The largest magnitude under each scale of `form`, in its `scale_dims`.

    Magnitudes of floats are ordered as their bits are, and NaN and inf come last.
    """
    dims = scale_dims(kv.shape, form)
    by_token = form.scaling.granularity in (ScaleGranularity.TOKEN, ScaleGranularity.GROUP)
    found = np.zeros(dims, np.float32)
    room = np.empty(0, np.float32)
    scales = None if kv.form.element.is_float else scale_values(kv)
    for slab in slabs(kv.shape):
        if scales is None:
            values = kv.array[slab]
        else:
            room = _room(room, kv.array[slab].size if kv.form.element.bits == 8 else 2 * kv.array[slab].size)
            values = read(kv, slab, scales, room)
        layer, part, tokens = slab
        here = found[layer, part, tokens if by_token else slice(None)]
        np.maximum(here, _reduced(values, dims[3], dims[4], by_token), out=here)
    if not np.isfinite(found).all():
        raise _not_finite(kv, form)
    return found


def _room(room: Floats, size: int) -> Floats:
    return room[:size] if room.size >= size else np.empty(size, np.float32)


def _reduced(values: Array, heads: int, groups: int, by_token: bool) -> Floats:
    """The largest magnitudes of (tokens, heads, dim), as (tokens or 1, heads or 1, groups or 1)."""
    codes = magnitudes(values)
    if by_token:
        most = _largest_of_rows(codes.reshape(*codes.shape[:2], groups, -1))
    else:
        most = codes.max(axis=0).max(axis=-1)[None, :, None]
        most = most if heads > 1 else most.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.asarray(most.view(values.dtype), np.float32)


def _largest_of_rows(codes: Array) -> Array:
    """The maximum along the last dimension; numpy takes short rows one by one, so they are turned over first."""
    width = codes.shape[-1]
    if width > _SHORT:
        return np.asarray(codes.max(axis=-1))
    return np.asarray(np.ascontiguousarray(codes.reshape(-1, width).T).max(axis=0).reshape(codes.shape[:-1]))


def _not_finite(kv: StoredKV, form: Format) -> NotRepresentable:
    values = kv.array.astype(np.float32) if kv.form.element.bits >= 8 else np.zeros(0, np.float32)
    count = values.size - np.count_nonzero(np.isfinite(values))
    return NotRepresentable(
        Finding(
            "values",
            f"{count} of {kv.shape.elements} are NaN or inf",
            f"finite values: {form} has no code or scale for them",
        )
    )


def read(kv: StoredKV, slab: Slab, scales: Floats, room: Floats) -> Floats:
    """The values of a slab: (tokens, heads, dim), in `room`."""
    element = kv.form.element
    codes = kv.array[slab]
    tokens, heads = codes.shape[:2]
    if element.bits == 4:
        np.take(_nibble_values(element), codes.reshape(-1), out=room.view(np.uint64), mode="clip")
    elif element is Element.INT8:
        np.copyto(room, codes.reshape(-1))
    else:
        cast(codes.reshape(-1), element, room, Element.FP32)
    if not element.is_float and kv.form.scaling.source is not ScaleSource.UNIT:
        factor = _of_slab(scales, slab)
        grouped = room.reshape(tokens, heads, factor.shape[2], -1)
        grouped *= factor
    values: Floats = room.reshape(tokens, heads, -1)
    return values


def write(kv: StoredKV, slab: Slab, scales: Floats, values: Floats, measured: bool) -> None:
    """Store (tokens, heads, dim) values, which are overwritten on the way. Under `measured` scales no integer needs clipping."""
    element = kv.form.element
    tokens, heads = values.shape[:2]
    if not element.is_float and kv.form.scaling.source is not ScaleSource.UNIT:
        factor = _of_slab(scales, slab)
        with np.errstate(divide="ignore", over="ignore"):
            grouped = values.reshape(tokens, heads, factor.shape[2], -1)
            grouped *= np.where(factor > 0, 1 / factor, 0).astype(np.float32)
    flat = values.reshape(-1)
    codes = kv.array[slab].reshape(-1)
    if element in (Element.INT8, Element.INT4):
        top = np.float32(TOP[element])
        np.rint(flat, out=flat)
        if not measured:
            np.clip(flat, -top, top, out=flat)
        if element is Element.INT8:
            np.copyto(codes, flat, casting="unsafe")
        else:
            codes[:] = pack(flat.astype(np.int8).view(np.uint8))
    elif element is Element.NVFP4:
        codes[:] = pack(np.take(_e2m1_table(), bits(rounded_to_odd(flat))))
    else:
        cast(flat, Element.FP32, codes, element)


def _of_slab(scales: Floats, slab: Slab) -> Floats:
    layer, part, tokens = slab
    here = scales[layer, part]
    of_slab: Floats = (here[tokens] if here.shape[0] > 1 else here)[..., None]
    return of_slab


def pack(codes: Bytes) -> Bytes:
    """Two four-bit codes to a byte, the even one in the low half."""
    pairs = codes.view(np.uint16)
    high = np.right_shift(pairs, 4)
    high &= 0xF0
    low = np.bitwise_and(pairs, 0x0F)
    low |= high
    return np.asarray(low, np.uint8)


@cache
def _e2m1_table() -> Bytes:
    """The e2m1 code of every bf16 value; a finite one beyond 6 is 6."""
    values = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    with np.errstate(all="ignore"):
        clipped = np.nan_to_num(np.clip(values, -6, 6))
        codes: Bytes = clipped.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return np.bitwise_and(codes, 0x0F)


@cache
def _nibble_values(element: Element) -> NDArray[np.uint64]:
    """The two float32 values in every byte."""
    codes = np.arange(16, dtype=np.uint8)
    one = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    if element is Element.INT4:
        one = ((codes ^ 8).astype(np.int8) - 8).astype(np.float32)
    both = np.arange(256)
    return np.stack([one[both & 15], one[both >> 4]], axis=1).reshape(-1).view(np.uint64)


def _write_nvfp4_scales(peak: Floats, target: StoredKV) -> None:
    """Store the two levels of nvfp4's scales: one float32 per layer and part, and above it one e4m3fn per 16 elements.

    The group's scale is rounded up, so that no value lies beyond the top code.
    """
    top, most = np.float32(TOP[Element.NVFP4]), np.float32(GRIDS[Element.E4M3FN].largest)
    floor = SMALLEST / GRIDS[Element.E4M3FN].smallest  # times the smallest group's scale, it is still a normal number
    shared = _to_top(peak.max(axis=(2, 3, 4), keepdims=True), float(top * most), floor)
    wanted = np.minimum(peak / top / shared, most)
    codes = wanted.astype(ml_dtypes.float8_e4m3fn)
    codes = (codes.view(np.uint8) + (codes.astype(np.float32) < wanted)).astype(np.uint8)
    tensors = shared.nbytes
    target.scales[:tensors] = shared.reshape(-1).view(np.uint8)
    target.scales[tensors:] = codes.reshape(-1)
