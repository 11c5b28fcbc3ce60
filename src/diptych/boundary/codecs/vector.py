"""Casts by numkong's vector instructions, where it is installed and gives what the tables give.

It rounds finite values in range as they do. Beside them it is wrong: NaN becomes inf, zero or the largest value in several pairs.
So each pair says what must be looked at, before or after, for a slice to be left to it. `casting` does not use a pair before
its answers to `trials` are those of the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from math import inf, isfinite
from typing import Any

import numpy as np

from diptych.boundary.codecs.bits import UNSIGNED, Array
from diptych.boundary.codecs.stored import DTYPES
from diptych.boundary.conversion import GRIDS
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
    slow = (origin, wanted) == (Element.BF16, Element.FP32) or (origin.bits != 16 and wanted.bits == 8)
    return None if slow else _caster(origin, wanted)


def _caster(origin: Element, wanted: Element) -> Caster:
    before = _BEFORE.get((origin, wanted), _always)
    after = _AFTER.get(wanted, _always) if GRIDS[origin].largest > GRIDS[wanted].largest else _always

    def cast(source: Array, target: Array) -> bool:
        given, room = _tensor(source, origin), _tensor(target, wanted)
        if not before(given, room):
            return False
        numkong.astype(given, _NAMES[wanted], out=room)
        return after(given, room)

    return cast


def _tensor(values: Array, element: Element) -> Any:
    address = values.__array_interface__["data"][0]
    return numkong.from_pointer(address, values.shape, _NAMES[element], owner=values)


def _always(source: Any, target: Any) -> bool:
    return True


def _finite_source(source: Any, target: Any) -> bool:
    return isfinite(numkong.sum(source))


def _finite_target(source: Any, target: Any) -> bool:
    return isfinite(numkong.sum(target))


def _no_nan_at_the_top(source: Any, target: Any) -> bool:
    """In e4m3fn NaN, inf and overflow all come out as 448; only NaN should not."""
    found = numkong.minmax(target)
    top = max(-found[0], found[2]) if found else inf
    return top < GRIDS[Element.E4M3FN].largest or isfinite(numkong.sum(source))


_BEFORE = {(origin, Element.BF16): _finite_source for origin in (Element.FP32, Element.FP16, Element.E5M2)}
_AFTER = {
    Element.BF16: _finite_target,
    Element.FP16: _finite_target,
    Element.E5M2: _finite_target,
    Element.E4M3FN: _no_nan_at_the_top,
}


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
