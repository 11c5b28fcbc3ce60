"""Floats as the integers their bits are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.boundary.element import Element

Array = NDArray[Any]

UNSIGNED: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}
"""The integer type of so many bytes."""
INF = {Element.FP32: 0x7F800000, Element.BF16: 0x7F80, Element.FP16: 0x7C00, Element.E5M2: 0x7C}
"""The code of inf in the formats that have it; behind it come those of NaN."""
_BUT_FOR_SIGN = {1: 0x7F, 2: 0x7FFF, 4: 0x7FFFFFFF}


def bits(values: Array) -> Array:
    """The codes of floats, not copied."""
    found: Array = values.view(UNSIGNED[values.dtype.itemsize])
    return found


def magnitudes(values: Array) -> Array:
    """The codes without their sign, which are ordered as the magnitudes are: subnormal, normal, inf, NaN."""
    found: Array = np.bitwise_and(bits(values), _BUT_FOR_SIGN[values.dtype.itemsize])
    return found


def largest(values: Array) -> int:
    """The largest code without its sign."""
    return int(magnitudes(values).max(initial=0))
