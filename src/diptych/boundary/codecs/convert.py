"""One stored format rewritten as another: copied, cast, re-scaled, or read and written anew under scales."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.boundary.codecs import quantise
from diptych.boundary.codecs.casting import cast
from diptych.boundary.codecs.refusals import NotRepresentable, WrongLength
from diptych.boundary.codecs.rescale import RESCALES, copy_bytes
from diptych.boundary.codecs.stored import DTYPES, Floats, StoredKV, scale_dims
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource
from diptych.boundary.format import Format
from diptych.errors import Finding, InvalidInput


class Method(StrEnum):
    """How one format becomes another."""

    RAW = "raw"  # the same bytes
    CAST = "cast"  # another float, or fp8 under a scale of one
    RESCALE = "rescale"  # the same bytes, three codes apart, under twice or half the scale
    QUANTISE = "quantise"  # codes under scales, from values
    DEQUANTISE = "dequantise"  # values, from codes under scales
    REQUANTISE = "requantise"  # codes under other scales


INTEGERS = (Element.INT8, Element.INT4)
_UNSCALED = (ScaleSource.NONE, ScaleSource.UNIT)
_FREE = (ScaleSource.INLINE, ScaleSource.DYNAMIC)
_FINER = (ScaleGranularity.TENSOR, ScaleGranularity.HEAD, ScaleGranularity.TOKEN)


def method(origin: Format, wanted: Format) -> Method:
    """How `wanted` is made from `origin`: the register of codecs, by element from, element to and granularity.

    It speaks of the formats alone. Where the target's scales are given (a checkpoint's), QUANTISE and REQUANTISE store under
    those, and REQUANTISE keeps the bytes if they turn out to be the origin's, or twice or half of them between e4m3fn and
    e4m3fnuz.
    """
    if _factor(origin, wanted) == 1 and (origin == wanted or _inherits(origin, wanted)):
        return Method.RAW
    if _factor(origin, wanted) and _inherits(origin, wanted):
        return Method.RESCALE
    if _is_unscaled(origin) and _is_unscaled(wanted):
        return Method.CAST
    if origin.element.is_float:
        return Method.QUANTISE
    return Method.DEQUANTISE if wanted.element.is_float else Method.REQUANTISE


def convert(kv: StoredKV, wanted: Format, scales: Floats | None = None, out: StoredKV | None = None) -> StoredKV:
    """The tensor in the `wanted` format.

    `scales`: the factors to store under, float32 broadcasting to `scale_dims`. A checkpoint's must be given; inline and dynamic
    ones are taken over from the origin where its bytes can be kept, and measured where not. `out`: room for the result.

    Raises:
        NotRepresentable: NaN or inf in a format without a code for it, or scales that are not positive normal numbers.
        WrongLength: `out` is room for another tensor.
        InvalidInput: scales missing, or given where none are stored.
    """
    target = _room(kv, wanted, out)
    measured = _store_scales(kv, target, scales)
    factor = _factor(kv.form, wanted)
    if factor and _same_scales(kv, target, factor):
        copy_bytes(kv.codes, target.codes, kv.form.element, wanted.element)
    elif _is_unscaled(kv.form) and _is_unscaled(wanted):
        _cast(kv, target)
    else:
        _rewrite(kv, target, measured)
    return target


def _is_unscaled(form: Format) -> bool:
    return form.scaling.source in _UNSCALED and form.element not in (*INTEGERS, Element.NVFP4)


def _factor(origin: Format, wanted: Format) -> float:
    """What the scale is multiplied by where the bytes are kept; 0 where they cannot be."""
    if origin.element is wanted.element:
        return 1.0 if origin.element is not Element.NVFP4 or origin == wanted else 0.0
    factor, _ = RESCALES.get((origin.element, wanted.element), (0.0, None))
    return factor


def _inherits(origin: Format, wanted: Format) -> bool:
    """Whether the target's scales may be the origin's, each written for every one that it covers.

    Not those of a tensor, head or token as those of groups: a group's has fewer bits.
    """
    have, want = origin.scaling, wanted.scaling
    if want.source not in _FREE:
        return False
    if have.source is ScaleSource.UNIT or (have.granularity, have.group) == (want.granularity, want.group):
        return True
    if not {have.granularity, want.granularity} <= set(_FINER):
        return False
    return _FINER.index(have.granularity) < _FINER.index(want.granularity)


def _room(kv: StoredKV, wanted: Format, out: StoredKV | None) -> StoredKV:
    if out is None:
        return StoredKV.empty(kv.shape, wanted)
    if (out.shape, out.form) != (kv.shape, wanted):
        raise WrongLength(Finding("out", f"room for {out.form} {out.shape.dims}", f"{wanted} {kv.shape.dims}"))
    return out


def _store_scales(kv: StoredKV, target: StoredKV, given: Floats | None) -> bool:
    """Put the target's scales in place: given, taken over, or measured, which is told."""
    form = target.form
    if given is not None:
        quantise.write_scales(target, _checked(given, target))
    elif form.scaling.source in _UNSCALED:
        return False
    elif form == kv.form:
        np.copyto(target.scales, kv.scales)
    elif form.scaling.source is ScaleSource.CHECKPOINT:
        raise InvalidInput(Finding("scales", f"{form} without its scales", "the checkpoint's, in float32"))
    elif (factor := _factor(kv.form, form)) and _inherits(kv.form, form):
        quantise.write_scales(target, quantise.scale_values(kv) * np.float32(factor))
    else:
        quantise.measure_scales(kv, target)
        return True
    return False


def _checked(scales: Floats, target: StoredKV) -> Floats:
    dims = scale_dims(target.shape, target.form)
    if target.form.scaling.source in _UNSCALED or target.form.element is Element.NVFP4:
        raise InvalidInput(Finding("scales", f"given for {target.form}", "no scales: it has none, or measures its own"))
    try:
        found = np.broadcast_to(np.asarray(scales, np.float32), dims)
    except ValueError:
        raise InvalidInput(
            Finding("scales", f"of shape {np.shape(scales)}", f"one that broadcasts to {dims}")
        ) from None
    if not (np.isfinite(found).all() and (found >= quantise.SMALLEST).all()):
        raise NotRepresentable(
            Finding("scales", f"from {found.min()} to {found.max()}", f"finite, and {quantise.SMALLEST:g} or more")
        )
    return found


def _same_scales(kv: StoredKV, target: StoredKV, factor: float) -> bool:
    have, want = quantise.scale_values(kv), quantise.scale_values(target)
    if any(fine > coarse for fine, coarse in zip(have.shape, want.shape, strict=True)):
        return False
    return bool((have * np.float32(factor) == want).all())


def _cast(kv: StoredKV, target: StoredKV) -> None:
    elements = kv.form.element, target.form.element
    source, room = (side.codes.view(DTYPES[element]) for side, element in zip((kv, target), elements, strict=True))
    cast(source, elements[0], room, elements[1])


def _rewrite(kv: StoredKV, target: StoredKV, measured: bool) -> None:
    """Through float32, a slab at a time. Measuring has refused NaN and inf; integers under other scales have no code for them."""
    if not measured and target.form.element in INTEGERS and kv.form.element not in INTEGERS:
        quantise.peaks(kv, target.form)
    have, want = quantise.scale_values(kv), quantise.scale_values(target)
    room: NDArray[Any] = np.empty(max(quantise.SLAB, kv.shape.heads * kv.shape.dim), np.float32)
    for slab in quantise.slabs(kv.shape):
        size = (slab[2].stop - slab[2].start) * kv.shape.heads * kv.shape.dim
        quantise.write(target, slab, want, quantise.read(kv, slab, have, room[:size]), measured)
