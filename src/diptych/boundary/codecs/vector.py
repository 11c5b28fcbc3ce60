"""Casts by numkong's vector instructions, where it is installed and gives what the tables give.

It rounds finite values in range as they do. Beside them it is wrong: NaN becomes inf, zero or the largest value in several pairs.
So each pair says what must be looked at, before or after, for a slice to be left to it. `casting` does not use a pair before
its answers to `trials` are those of the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from diptych.boundary.codecs.bits import INF, UNSIGNED, Array, largest
from diptych.boundary.codecs.stored import DTYPES
from diptych.boundary.element import Element

try:
    numkong: Any = import_module("numkong")
except ImportError:
    numkong = None

Caster = Callable[[Array, Array], bool]
"""Casts a slice, or says that it cannot."""

_NAMES = {
    Element.FP32: "float32",
    Element.BF16: "bfloat16",
    Element.FP16: "float16",
    Element.E4M3FN: "e4m3",
    Element.E5M2: "e5m2",
}


def is_installed() -> bool:
    return numkong is not None


@cache
def caster(origin: Element, wanted: Element) -> Caster | None:
    """The vector cast of a pair of formats; None where there is none, or it is no faster."""
    if numkong is None or origin is wanted or not {origin, wanted} <= _NAMES.keys():
        return None
    slow = {origin, wanted} == {Element.FP32, Element.BF16} or (origin.bits != 16 and wanted.bits == 8)
    return None if slow else _caster(origin, wanted)


def _caster(origin: Element, wanted: Element) -> Caster:
    before = _no_nan if (origin, wanted) == (Element.FP16, Element.BF16) else _always
    if (origin, wanted) == (Element.E5M2, Element.BF16):
        before = _finite_e5m2
    after = {Element.FP16: _below_inf, Element.E5M2: _below_inf, Element.E4M3FN: _no_nan_behind}.get(wanted, _always)
    if origin.bits == 8:
        after = _always

    def cast(source: Array, target: Array) -> bool:
        if not before(source, target, origin, wanted):
            return False
        numkong.astype(_tensor(source, origin), _NAMES[wanted], out=_tensor(target, wanted))
        return after(source, target, origin, wanted)

    return cast


def _tensor(values: Array, element: Element) -> Any:
    address = values.__array_interface__["data"][0]
    return numkong.from_pointer(address, values.shape, _NAMES[element], owner=values)


def _always(source: Array, target: Array, origin: Element, wanted: Element) -> bool:
    return True


def _no_nan(source: Array, target: Array, origin: Element, wanted: Element) -> bool:
    return largest(source) <= INF[origin]


def _finite_e5m2(source: Array, target: Array, origin: Element, wanted: Element) -> bool:
    return largest(source) < INF[Element.E5M2]


def _below_inf(source: Array, target: Array, origin: Element, wanted: Element) -> bool:
    return largest(target) < INF[wanted]


def _no_nan_behind(source: Array, target: Array, origin: Element, wanted: Element) -> bool:
    """e4m3fn: NaN, inf and overflow all come out as 448; only NaN should not have."""
    return largest(target) < 0x7E or largest(source) <= INF[origin]


def trials(origin: Element) -> list[Array]:
    """Every code of a format, for fp32 those around every rounding boundary, in slices of neighbours: what a cast leaves undone
    is then NaN, inf or overflow alone, and every other code is tried."""
    if origin is Element.FP32:
        upper = np.arange(65536, dtype=np.uint32)[:, None] << 16
        lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
        codes: Array = (upper | lower).reshape(-1)
    else:
        codes = np.arange(1 << origin.bits, dtype=UNSIGNED[origin.bits // 8])
    return np.split(codes.view(DTYPES[origin]), 128)
