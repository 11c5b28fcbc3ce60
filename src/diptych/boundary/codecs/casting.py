"""Element formats into each other without scales, round to nearest even, a slice of the cache at a time.

A finite value never becomes inf or NaN: beyond the largest finite value of the target it becomes that. Inf stays inf where the
target has it (fp32, bf16, fp16, e5m2) and becomes the largest finite value where it has not (e4m3), as in the GPUs' saturating
conversions; NaN stays NaN.

Exact by construction: what ml_dtypes and numpy say of every code of a 16-bit format, or of every pair of 8-bit codes, is a
table. fp32 reaches eight bits through bf16 rounded to odd, which keeps enough that rounding again is rounding once. Where
numkong is installed, `vector` does the same two to five times as fast.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from diptych.boundary.codecs import vector
from diptych.boundary.codecs.bits import INF, UNSIGNED, Array, bits, largest
from diptych.boundary.codecs.stored import DTYPES
from diptych.boundary.conversion import GRIDS
from diptych.boundary.element import Element

CHUNK, TABLE_CHUNK = 131072, 32768
"""Elements at a time, by vectors and by tables: source, target and temporaries (for a table, indices of eight bytes) stay in a
core's second-level cache."""


def cast(source: Array, origin: Element, target: Array, wanted: Element) -> None:
    """Write `source`, of format `origin`, into `target`, of format `wanted`: one-dimensional, contiguous, of equal length."""
    assert source.size == target.size, f"{source.size} elements into {target.size}"
    narrowed = origin is Element.FP32 and wanted.bits == 8
    kind = Element.BF16 if narrowed else origin
    fast = _trusted(kind, wanted)
    step = CHUNK if fast else TABLE_CHUNK
    with np.errstate(all="ignore"):
        for start in range(0, source.size, step):
            values, room = source[start : start + step], target[start : start + step]
            values = rounded_to_odd(values) if narrowed else values
            if fast is None or not fast(values, room):
                cast_slice(values, kind, room, wanted)


def cast_slice(source: Array, origin: Element, target: Array, wanted: Element) -> None:
    """The same for a slice that fits the cache, by numpy and ml_dtypes alone; not from fp32 to eight bits."""
    if origin is wanted or (origin, wanted) == (Element.BF16, Element.FP32):
        np.copyto(target, source, casting="unsafe")
    elif origin is Element.FP32 and wanted.bits == 16:
        np.copyto(target, source, casting="unsafe")
        if largest(target) >= INF[wanted]:
            target[:] = rounded(source, wanted)
    elif origin.bits == 16:
        np.take(_table(origin, wanted), bits(source), out=bits(target), mode="clip")
    else:
        _cast_pairs(bits(source), origin, bits(target), wanted)


@cache
def _trusted(origin: Element, wanted: Element) -> vector.Caster | None:
    """The vector cast of a pair, if it says of every trial what the tables say."""
    found = vector.caster(origin, wanted)
    return found if found and all(_same(found, values, origin, wanted) for values in vector.trials(origin)) else None


def _same(found: vector.Caster, values: Array, origin: Element, wanted: Element) -> bool:
    ours, theirs = np.empty(values.size, DTYPES[wanted]), np.empty(values.size, DTYPES[wanted])
    with np.errstate(all="ignore"):
        if not found(values, theirs):
            return True
        cast_slice(values, origin, ours, wanted)
        return bool(np.all((bits(ours) == bits(theirs)) | (np.isnan(ours) & np.isnan(theirs))))


def rounded(values: Array, wanted: Element) -> Array:
    """Values in another format by the library, one by one, with the overflow of this module."""
    wide = values.astype(np.float32)
    limit = np.float32(GRIDS[wanted].largest)
    narrow = np.clip(wide, -limit, limit).astype(DTYPES[wanted])
    if wanted in INF:
        infinite = np.isinf(wide)
        narrow[infinite] = wide[infinite].astype(DTYPES[wanted])
    return narrow


def rounded_to_odd(values: Array) -> Array:
    """The bf16 above or below a float32 that is not one, whichever has an odd code: the upper half, its last bit set if any was
    cut off.

    Rounding that to fewer bits gives what rounding the float32 would: a value beside a tie stays beside it.
    S. Boldo, G. Melquiond, "Emulation of a FMA and correctly rounded sums", 2008.
    """
    codes = values.view(np.uint32)
    sticky = np.bitwise_and(codes, 0xFFFF)
    sticky += np.uint32(0xFFFF)  # carries into bit 16 unless the lower half was zero
    sticky |= codes
    sticky >>= 16
    return sticky.astype(np.uint16).view(DTYPES[Element.BF16])


@cache
def _table(origin: Element, wanted: Element) -> Array:
    """Every code of a 16-bit format in another."""
    with np.errstate(all="ignore"):
        return bits(rounded(np.arange(65536, dtype=np.uint16).view(DTYPES[origin]), wanted))


@cache
def _pair_table(origin: Element, wanted: Element) -> Array:
    """Every two codes of an 8-bit format, first in the low byte, as two of a wider one in the same order."""
    pairs = np.arange(65536, dtype=np.uint16).view(DTYPES[origin])
    with np.errstate(all="ignore"):
        both = bits(rounded(pairs, wanted))
    return both.view(UNSIGNED[2 * both.dtype.itemsize])


def _cast_pairs(source: Array, origin: Element, target: Array, wanted: Element) -> None:
    even = source.size // 2 * 2
    wide = target[:even].view(UNSIGNED[2 * target.dtype.itemsize])
    np.take(_pair_table(origin, wanted), source[:even].view(np.uint16), out=wide, mode="clip")
    if even < source.size:
        last = rounded(source[even:].view(DTYPES[origin]), wanted)
        target[even:] = bits(last)
