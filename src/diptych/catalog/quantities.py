"""The numbers people write in catalog files: text with a unit, or a plain number in the unit given here.

| quantity | text | a plain number is |
|---|---|---|
| size | 80GB, 94GiB | GB |
| bandwidth | 3.35TB/s, 400Gb/s | GB/s |
| compute | 989TFLOPS, 1.98PFLOPS, 330TOPS | TFLOPS, dense |
| duration | 5us, 1.7ms | refused: write the unit |
| power | 700W, 1.2kW | W |

Every reader takes what YAML or CSV gave and raises `ValueError` with a sentence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from diptych.units import GB, TFLOPS, parse_bandwidth, parse_bytes, parse_seconds

_NUMBER = re.compile(r"^\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*$")
_SCALED = re.compile(r"^\s*([-+]?[0-9.]+(?:[eE][-+]?\d+)?)\s*([A-Za-z/]+)\s*$")
_FLOPS = {"G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_FLOPS_NAMES = ("FLOPS", "FLOP/s", "OPS", "OP/s")
_WATTS = {"W": 1.0, "kW": 1e3}


def plain(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a number")
    if isinstance(value, str) and not (_NUMBER.match(value) or value.strip().lower() in ("nan", "inf", "-inf")):
        raise ValueError(f"{value!r} is not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def _is_plain(value: Any) -> bool:
    return not isinstance(value, str) or bool(_NUMBER.match(value)) or value.strip().lower() in ("nan", "inf", "-inf")


def _positive(number: float, shown: Any) -> float:
    if not number > 0:
        raise ValueError(f"{shown!r} is not above zero")
    if not math.isfinite(number):
        raise ValueError(f"{shown!r} is not a finite number")
    return number


def _quantity(parse: Callable[[str], float], unit: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        return _positive(plain(value) * unit if _is_plain(value) else parse(str(value)), value)

    return read


def _parse_scaled(text: str, scales: dict[str, float], what: str) -> float:
    match = _SCALED.match(text)
    if not match or match.group(2) not in scales:
        raise ValueError(f"{text!r} is not {what}; units are {', '.join(scales)}")
    return float(match.group(1)) * scales[match.group(2)]


_FLOPS_UNITS = {prefix + name: scale for name in _FLOPS_NAMES for prefix, scale in _FLOPS.items()}


def parse_flops(text: str) -> float:
    """FLOP/s from '989TFLOPS' or '1.98 PFLOPS'.

    >>> parse_flops("989TFLOPS")
    989000000000000.0
    """
    return _parse_scaled(text, _FLOPS_UNITS, "a compute rate")


def parse_watts(text: str) -> float:
    """Watts from '700W' or '1.2kW'.

    >>> parse_watts("1.2kW")
    1200.0
    """
    return _parse_scaled(text, _WATTS, "a power")


size = _quantity(parse_bytes, GB)
bandwidth = _quantity(parse_bandwidth, GB)
compute = _quantity(parse_flops, TFLOPS)
watts = _quantity(parse_watts, 1.0)


def duration(value: Any) -> float:
    """Seconds, zero allowed; the unit must be written, except for 0."""
    if _is_plain(value):
        if plain(value) == 0:
            return 0.0
        raise ValueError(f"{value!r} has no unit")
    seconds = parse_seconds(str(value))
    if seconds < 0:
        raise ValueError(f"{value!r} is negative")
    return seconds


def byte_count(value: Any) -> float:
    """Bytes, zero allowed; the unit must be written, except for 0."""
    if _is_plain(value) and plain(value) == 0:
        return 0.0
    if _is_plain(value):
        raise ValueError(f"{value!r} has no unit")
    return _positive(parse_bytes(str(value)), value)


def share(value: Any) -> float:
    """A share above 0 and at most 1."""
    number = plain(value)
    if not 0 < number <= 1:
        raise ValueError(f"{value!r} is not in (0, 1]")
    return number


def price(value: Any) -> float:
    """USD, above zero."""
    return _positive(plain(value), value)


def amount(value: Any) -> float:
    """A number from zero."""
    number = plain(value)
    if number < 0:
        raise ValueError(f"{value!r} is negative")
    return number


def count(value: Any) -> int:
    """A whole number from 1 to 100,000."""
    number = plain(value)
    if number != int(number) or not 1 <= number <= 100_000:
        raise ValueError(f"{value!r} is not a whole number from 1")
    return int(number)


def text(value: Any) -> str:
    """Text of at most 1,000 characters; a number or date is taken as it is written."""
    if isinstance(value, (dict, list)) or value is None:
        raise ValueError(f"{type(value).__name__} is not text")
    shown = str(value)
    if len(shown) > 1000:
        raise ValueError(f"{len(shown)} characters are too many")
    return shown


def flag(value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value
