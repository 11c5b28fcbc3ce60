"""What a conversion is said to lose, against every value of the formats, and against the codecs that carry it out."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest

from diptych.boundary.codecs.bounds import rounding
from diptych.boundary.codecs.convert import convert
from diptych.boundary.codecs.stored import DTYPES, StoredKV
from diptych.boundary.conversion import GRIDS, Loss, Op, conversion, keeps_bytes, operation, same_meaning
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import NO_SCALES, Format
from diptych.design.boundary import Side

FLOATS = list(GRIDS)


def unscaled(element: Element) -> Format:
    return Format(element, NO_SCALES if element.is_float else Scaling(ScaleSource.UNIT))


def finite_values(element: Element) -> np.ndarray:
    """Every finite value of the format, as float64; of fp32 every exponent with some mantissas, subnormals among them."""
    if element is Element.FP32:
        exponents, mantissas = (
            np.arange(255, dtype=np.uint32) << 23,
            np.uint32([0, 1, 2, 3, 0x400001, 0x7FFFFE, 0x7FFFFF]),
        )
        bits = (exponents[:, None] | mantissas).ravel()
    else:
        bits = np.arange(1 << element.bits, dtype=f"uint{element.bits}")
    with np.errstate(invalid="ignore"):  # NaN, which is dropped
        values = bits.view(DTYPES[element]).astype(np.float64)
    return values[np.isfinite(values)]


def stored_as(values: np.ndarray, element: Element) -> np.ndarray:
    largest = GRIDS[element].largest
    return np.clip(values, -largest, largest).astype(np.float32).astype(DTYPES[element]).astype(np.float64)


@pytest.mark.parametrize("element", FLOATS)
def test_a_grid_is_what_the_arithmetic_has(element: Element) -> None:
    limits, grid = ml_dtypes.finfo(DTYPES[element]), GRIDS[element]
    assert (limits.nmant, float(limits.max), float(limits.smallest_subnormal)) == (
        grid.mantissa,
        grid.largest,
        grid.smallest,
    )


@pytest.mark.parametrize(("source", "target"), [pair for pair in product(FLOATS, FLOATS) if pair[0] is not pair[1]])
def test_what_is_exact_keeps_every_value_and_what_is_bounded_clips_none(source: Element, target: Element) -> None:
    found = conversion(unscaled(source), unscaled(target))
    values, grid = finite_values(source), GRIDS[target]
    error = np.abs(stored_as(values, target) - values)
    if found.loss is Loss.LOSSY:
        assert np.abs(values).max() > grid.largest
        return
    assert np.abs(values).max() <= grid.largest
    assert (error.max() == 0) == (found.loss is Loss.EXACT)
    assert (error <= np.maximum(np.abs(values) * 2.0 ** -(grid.mantissa + 1), grid.smallest / 2)).all()


SCALINGS = [
    Scaling(source, granularity, "a" if source is ScaleSource.CHECKPOINT else "", 16 if grouped else 0)
    for source in (ScaleSource.CHECKPOINT, ScaleSource.INLINE, ScaleSource.DYNAMIC)
    for granularity in ScaleGranularity
    if granularity is not ScaleGranularity.NONE
    for grouped in [granularity is ScaleGranularity.GROUP]
]
NARROW = (Element.E4M3FN, Element.E4M3FNUZ, Element.E5M2, Element.INT8, Element.INT4)
FORMATS = [
    *(unscaled(element) for element in FLOATS),
    *(Format(element, scaling) for element in NARROW for scaling in SCALINGS),
    Format(Element.NVFP4, Scaling(ScaleSource.INLINE, ScaleGranularity.GROUP, group=16)),
]
RANDOM = np.random.default_rng(7).normal(size=(1, 2, 8, 4, 32)).astype(np.float32)
SIXTEEN_BIT = StoredKV.of(RANDOM.astype(ml_dtypes.bfloat16))


def rewritten(kv: StoredKV, wanted: Format) -> StoredKV:
    """By the codec. The one checkpoint scales everything by 1/32, which the fnuz side doubles."""
    if wanted.scaling.source is not ScaleSource.CHECKPOINT:
        return convert(kv, wanted)
    return convert(kv, wanted, np.float32(1 / 16 if wanted.element is Element.E4M3FNUZ else 1 / 32))


def values_of(kv: StoredKV) -> np.ndarray:
    return convert(kv, Format(Element.FP32)).array


@pytest.mark.parametrize("source", FORMATS, ids=str)
def test_every_step_offered_has_a_codec_and_its_loss(source: Format) -> None:
    """What is called exact comes through the codecs as it was; what the codecs' own bound calls exact is not called worse."""
    kv = rewritten(SIXTEEN_BIT, source)
    for target in FORMATS:
        if same_meaning(source, target) is not False:
            continue
        loss, made = conversion(source, target).loss, rewritten(kv, target)
        assert made.form == target
        if loss is Loss.EXACT:
            np.testing.assert_array_equal(values_of(made), values_of(kv), err_msg=f"{source} → {target}")
        else:
            assert not rounding(source, target).is_exact, f"{source} → {target}"


@pytest.mark.parametrize("granularity", [each for each in ScaleGranularity if each is not ScaleGranularity.NONE])
def test_fn_and_fnuz_change_places_under_twice_the_scale(granularity: ScaleGranularity) -> None:
    group = 16 if granularity is ScaleGranularity.GROUP else 0
    fn, fnuz = (
        Format(element, Scaling(ScaleSource.INLINE, granularity, group=group))
        for element in (Element.E4M3FN, Element.E4M3FNUZ)
    )
    assert (operation(fn, fnuz), keeps_bytes(fn, fnuz), conversion(fn, fnuz).loss) == (Op.RESCALE, True, Loss.EXACT)
    there = convert(convert(SIXTEEN_BIT, fn), fnuz)
    np.testing.assert_array_equal(values_of(there), values_of(convert(SIXTEEN_BIT, fn)))
    assert convert(there, fn).codes.tobytes() == convert(SIXTEEN_BIT, fn).codes.tobytes()


@pytest.mark.parametrize(
    ("source", "target", "sides"),
    [
        (ScaleSource.UNIT, ScaleSource.INLINE, tuple(Side)),
        (ScaleSource.CHECKPOINT, ScaleSource.INLINE, (Side.PREFILL,)),
        (ScaleSource.INLINE, ScaleSource.CHECKPOINT, (Side.DECODE,)),
        (ScaleSource.DYNAMIC, ScaleSource.UNIT, (Side.PREFILL,)),
        (ScaleSource.INLINE, ScaleSource.DYNAMIC, (Side.DECODE,)),
        (ScaleSource.DYNAMIC, ScaleSource.DYNAMIC, ()),
        (ScaleSource.DYNAMIC, ScaleSource.CHECKPOINT, ()),
    ],
)
def test_a_conversion_runs_where_its_scales_are(
    source: ScaleSource, target: ScaleSource, sides: tuple[Side, ...]
) -> None:
    made, wanted = (
        Format(element, Scaling(kind, ScaleGranularity.TENSOR))
        for element, kind in ((Element.E4M3FN, source), (Element.INT8, target))
    )
    found = conversion(made, wanted)
    assert found.sides == sides
    assert bool(found.obstacle) == (not sides)
