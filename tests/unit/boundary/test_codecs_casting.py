"""Casts: every code of every small format, and every rounding boundary of float32, against ml_dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from diptych.boundary.codecs import casting, vector
from diptych.boundary.codecs.bits import bits
from diptych.boundary.codecs.casting import cast, cast_slice, rounded_to_odd
from diptych.boundary.codecs.stored import DTYPES
from diptych.boundary.conversion import GRIDS
from diptych.boundary.element import Element as E

FORMATS = (E.FP32, E.BF16, E.FP16, E.E4M3FN, E.E4M3FNUZ, E.E5M2)
HAS_INF = (E.FP32, E.BF16, E.FP16, E.E5M2)
PAIRS = [(origin, wanted) for origin in FORMATS for wanted in FORMATS]


def every_code(element: E) -> NDArray[Any]:
    """All codes; of float32 all upper halves with lower ones on both sides of every boundary of rounding, and random ones."""
    if element is not E.FP32:
        return np.concatenate(vector.trials(element))
    random = np.random.default_rng(7).integers(0, 2**32, 200_000, np.uint32).view(np.float32)
    return np.concatenate([*vector.trials(element), random])


def expected(values: NDArray[Any], wanted: E) -> NDArray[Any]:
    """The library's cast, and what this project says where that overflows."""
    wide, limit = values.astype(np.float32), np.float32(GRIDS[wanted].largest)
    with np.errstate(all="ignore"):
        cut = np.where(np.abs(wide) > limit, np.copysign(limit, wide), wide).astype(DTYPES[wanted])
        if wanted in HAS_INF:
            cut[np.isinf(wide)] = wide[np.isinf(wide)].astype(DTYPES[wanted])
    return cut


def same(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """The same code, or NaN both."""
    with np.errstate(invalid="ignore"):
        return np.asarray((bits(one) == bits(other)) | (np.isnan(one) & np.isnan(other)))


@pytest.mark.parametrize(("origin", "wanted"), PAIRS, ids=lambda element: str(element))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_code_casts_as_the_library_says(origin: E, wanted: E) -> None:
    values = every_code(origin)
    made = np.zeros(values.size, DTYPES[wanted])
    cast(values, origin, made, wanted)
    good = same(made, expected(values, wanted))
    assert good.all(), f"{values[~good][:5]} became {made[~good][:5]}"


@pytest.mark.parametrize(
    ("element", "codes"),
    [
        # OFP8 specification 1.0, table 1; e4m3fnuz: bias 8, one NaN, no minus zero.
        (E.E4M3FN, {0x7E: 448, 0x08: 2**-6, 0x01: 2**-9, 0x38: 1, 0xFE: -448}),
        (E.E4M3FNUZ, {0x7F: 240, 0x08: 2**-7, 0x01: 2**-10, 0x38: 0.5, 0xFF: -240}),
        (E.E5M2, {0x7B: 57344, 0x04: 2**-14, 0x01: 2**-16, 0x3C: 1, 0x7C: np.inf}),
    ],
    ids=str,
)
def test_published_codes_of_fp8(element: E, codes: dict[int, float]) -> None:
    stored = np.array(list(codes), np.uint8).view(DTYPES[element])
    values = np.zeros(len(codes), np.float32)
    cast(stored, element, values, E.FP32)
    assert values.tolist() == list(codes.values())


@pytest.mark.parametrize("wanted", FORMATS[1:], ids=str)
def test_overflow_stays_finite_and_nan_stays_nan(wanted: E) -> None:
    top = float(GRIDS[wanted].largest)
    values = np.array([top * 1.0001, -3.4e38, np.inf, -np.inf, np.nan], np.float32)
    made = np.zeros(5, DTYPES[wanted])
    cast(values, E.FP32, made, wanted)
    beyond = np.inf if wanted in HAS_INF else top
    np.testing.assert_array_equal(made.astype(np.float64), [top, -top, beyond, -beyond, np.nan])


@pytest.mark.parametrize("size", [0, 1, 3, casting.TABLE_CHUNK - 1, casting.TABLE_CHUNK + 1, 2 * casting.CHUNK + 7])
@pytest.mark.parametrize(
    ("origin", "wanted"), [(E.BF16, E.E4M3FN), (E.E4M3FN, E.BF16), (E.FP32, E.FP16), (E.E5M2, E.FP32)]
)
def test_slices_of_any_length_join(origin: E, wanted: E, size: int) -> None:
    values = np.random.default_rng(size).standard_normal(size).astype(DTYPES[origin])
    made, room = np.zeros(size, DTYPES[wanted]), np.zeros(size + 8, DTYPES[wanted])
    cast(values, origin, made, wanted)
    np.testing.assert_array_equal(made, expected(values, wanted))
    cast(values, origin, room[:size], wanted)
    assert not room[size:].any(), "written beyond its end"


def test_rounding_to_odd_keeps_what_a_second_rounding_needs() -> None:
    tie = np.float32(1 + 2**-4)  # half way between two e4m3fn values
    values = np.array([tie, np.nextafter(tie, np.float32(2)), np.nextafter(tie, np.float32(0))], np.float32)
    assert (bits(rounded_to_odd(values)) & 1).tolist() == [0, 1, 1]
    made = np.zeros(3, DTYPES[E.E4M3FN])
    cast(values, E.FP32, made, E.E4M3FN)
    assert made.astype(np.float32).tolist() == [1.0, 1.125, 1.0]


@pytest.mark.skipif(not vector.is_installed(), reason="numkong is not installed")
@pytest.mark.parametrize(("origin", "wanted"), [pair for pair in PAIRS if vector.caster(*pair)], ids=str)
def test_vector_casts_are_used_and_say_what_the_tables_say(origin: E, wanted: E) -> None:
    assert casting._trusted(origin, wanted) is not None
    values = np.random.default_rng(3).standard_normal(4 * casting.CHUNK).astype(DTYPES[origin])
    values[5], values[-5] = np.nan, 3e4
    tables, vectors = np.zeros(values.size, DTYPES[wanted]), np.zeros(values.size, DTYPES[wanted])
    with np.errstate(all="ignore"):
        cast_slice(values, origin, tables, wanted)
    cast(values, origin, vectors, wanted)
    assert same(tables, vectors).all()


def test_a_vector_cast_that_is_wrong_anywhere_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_one(source: NDArray[Any], target: NDArray[Any]) -> bool:
        with np.errstate(all="ignore"):
            cast_slice(source, E.BF16, target, E.FP16)
        bits(target)[bits(source) == 0x3F81] += 1
        return True

    monkeypatch.setattr(vector, "caster", lambda origin, wanted: off_by_one)
    assert casting._trusted.__wrapped__(E.BF16, E.FP16) is None
