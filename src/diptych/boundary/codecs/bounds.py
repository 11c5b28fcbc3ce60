"""How far a decoded value may be from the one encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.boundary.codecs.convert import Method, method
from diptych.boundary.conversion import GRIDS, LEVELS
from diptych.boundary.element import Element
from diptych.boundary.format import Format


@dataclass(frozen=True, slots=True)
class Bound:
    """|decoded − value| ≤ `relative` · |value| + `steps` · scale + `absolute`, for |value| ≤ `limit` · scale.

    What lies beyond the limit becomes the limit. The scale is one where the wire has none. NaN and inf are told apart in
    docs/codecs.md.
    """

    relative: float = 0.0
    steps: float = 0.0
    absolute: float = 0.0
    limit: float = np.inf

    @property
    def is_exact(self) -> bool:
        """Whether every value comes back as it was."""
        return self == Bound()

    def error(self, values: NDArray[Any], scales: NDArray[Any] | float = 1.0) -> NDArray[np.float64]:
        """The largest allowed |decoded − value|, for each value under its scale."""
        size, unit = np.abs(np.asarray(values, np.float64)), np.asarray(scales, np.float64)
        clipped = np.maximum(size - self.limit * unit, 0) if self.limit < np.inf else 0.0
        return np.asarray(self.relative * size + self.steps * unit + self.absolute + clipped)

    def then(self, other: Bound) -> Bound:
        """This loss, and another on its result."""
        return Bound(
            self.relative + other.relative * (1 + self.relative),
            self.steps * (1 + other.relative) + other.steps,
            self.absolute * (1 + other.relative) + other.absolute,
            min(self.limit, other.limit),
        )


PRECISION = {
    **{element: (2.0 ** -(grid.mantissa + 1), grid.smallest / 2, grid.largest) for element, grid in GRIDS.items()},
    **{element: (0.0, 0.5, float(level)) for element, level in LEVELS.items()},
    Element.NVFP4: (0.25, 0.25, 6.0),
}
"""Half a unit in the last place, half the smallest subnormal, and the largest finite value, the last two times the scale. Between
e2m1's 4 and 6 the half step is 1, a quarter of the lower."""
FLOAT32 = Bound(2.0**-22)
"""A product with a scale and one with its reciprocal, each rounded to float32, and the reciprocal itself."""
_EXACT_IN = {
    Element.BF16: (Element.FP32,),
    Element.FP16: (Element.FP32,),
    Element.E4M3FN: (Element.FP32, Element.BF16, Element.FP16),
    Element.E4M3FNUZ: (Element.FP32, Element.BF16, Element.FP16),
    Element.E5M2: (Element.FP32, Element.BF16, Element.FP16),
}


def rounding(origin: Format, wanted: Format) -> Bound:
    """What rewriting `origin` as `wanted` loses; `steps` are in the scales of `wanted`."""
    how = method(origin, wanted)
    if how is Method.RAW or (how is Method.CAST and wanted.element in _EXACT_IN.get(origin.element, ())):
        return Bound()
    relative, least, limit = PRECISION[wanted.element]
    if how is Method.RESCALE:
        return Bound(limit=limit) if wanted.element is Element.E4M3FN else Bound()
    if how is Method.DEQUANTISE:
        return FLOAT32.then(Bound(relative, absolute=least, limit=limit))
    if how is Method.CAST:
        return Bound(relative, absolute=least, limit=limit)
    return FLOAT32.then(Bound(relative, steps=least, limit=limit))
