"""Random and adversarial KV tensors, and every format a codec knows."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from diptych.boundary.codecs.stored import DTYPES, KvShape
from diptych.boundary.element import Element, ScaleGranularity, ScaleSource, Scaling
from diptych.boundary.format import Format

FLOATS = (Element.FP32, Element.BF16, Element.FP16)
FP8 = (Element.E4M3FN, Element.E4M3FNUZ, Element.E5M2)
CODED = (*FP8, Element.INT8, Element.INT4)
GROUP = 16


def inline(granularity: ScaleGranularity) -> Scaling:
    group = GROUP if granularity is ScaleGranularity.GROUP else 0
    return Scaling(ScaleSource.INLINE, granularity, group=group)


SCALINGS = [inline(each) for each in ScaleGranularity if each is not ScaleGranularity.NONE]
FLOAT_FORMATS = [Format(element) for element in FLOATS]
UNIT_FORMATS = [Format(element, Scaling(ScaleSource.UNIT)) for element in FP8]
SCALED_FORMATS = [Format(element, scaling) for element in CODED for scaling in SCALINGS]
NVFP4 = Format(Element.NVFP4, inline(ScaleGranularity.GROUP))
FORMATS = [*FLOAT_FORMATS, *UNIT_FORMATS, *SCALED_FORMATS, NVFP4]


def shapes() -> st.SearchStrategy[KvShape]:
    """Small ones, of odd tokens and heads too, in whole groups."""
    return st.builds(
        KvShape,
        layers=st.integers(1, 3),
        parts=st.integers(1, 2),
        tokens=st.integers(1, 37),
        heads=st.integers(1, 3),
        dim=st.sampled_from([16, 32, 64]),
    )


KINDS = (
    "gaussian",
    "outlier channels",
    "subnormal",
    "zero groups",
    "largest",
    "tiny beside huge",
    "minus zero",
    "bits",
)


@st.composite
def finite_values(draw: st.DrawFn, element: Element, shape: KvShape) -> NDArray[Any]:
    """A tensor without NaN and inf, of one of the kinds that break codecs."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(KINDS))
    wide = random.standard_normal(shape.dims) * 10.0 ** draw(st.integers(-3, 3))
    match kind:
        case "outlier channels":
            wide[..., random.integers(0, shape.dim, 3)] *= 1000
        case "subnormal":
            wide *= float(np.finfo(np.float32).tiny) if element is not Element.FP16 else 1e-6
        case "zero groups":
            wide[..., :GROUP] = 0
            wide[:, :, random.integers(0, shape.tokens)] = 0
        case "largest":
            wide = np.sign(wide) * 3e38
        case "tiny beside huge":
            wide *= 10.0 ** random.integers(-30, 30, shape.dims)
        case "minus zero":
            wide = np.where(wide < 0, -0.0, wide)
        case _:
            pass
    with np.errstate(all="ignore"):
        values = wide.astype(np.float32)
        limit = 65504.0 if element is Element.FP16 else 3.38e38
        values = np.clip(values, -limit, limit).astype(DTYPES[element])
    if kind == "bits":
        width = DTYPES[element].itemsize
        values = random.integers(0, 256, shape.elements * width, np.uint8).view(DTYPES[element]).reshape(shape.dims)
        with np.errstate(invalid="ignore"):
            values = np.where(np.isfinite(values), values, np.zeros((), DTYPES[element]))
    return values


@st.composite
def tensors(draw: st.DrawFn, element: Element | None = None) -> NDArray[Any]:
    """A finite tensor of a drawn element and shape."""
    chosen = element or draw(st.sampled_from(FLOATS))
    return draw(finite_values(chosen, draw(shapes())))
