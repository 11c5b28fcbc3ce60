"""Units at the edge. Inside, everything is seconds, bytes, tokens, FLOP and USD.

`parse_*` read what people write and raise `ValueError` with a sentence; callers turn it into a `Finding` with its place.
Decimal prefixes are powers of 1000 (GB, TFLOPS), binary ones of 1024 (GiB); a bandwidth in bit/s is lower-case b.
"""

from __future__ import annotations

import math
import re

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KIB, MIB, GIB, TIB = 2.0**10, 2.0**20, 2.0**30, 2.0**40
TFLOPS = 1e12
MS, US = 1e-3, 1e-6
HOUR = 3600.0

_NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
_QUANTITY = re.compile(rf"^\s*{_NUMBER}\s*([^\d\s].*?)?\s*$")

_TIME = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": HOUR,
    "d": 86400.0,
}
_SIZE = {"B": 1.0, "kB": KB, "KB": KB, "MB": MB, "GB": GB, "TB": TB, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_RATE = {
    **{f"{unit}/s": scale for unit, scale in _SIZE.items()},
    "Mb/s": MB / 8,
    "Gb/s": GB / 8,
    "Tb/s": TB / 8,
    "Mbit/s": MB / 8,
    "Gbit/s": GB / 8,
    "Tbit/s": TB / 8,
    "Mbps": MB / 8,
    "Gbps": GB / 8,
}
_COUNT = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
_MONEY = {"": 1.0, "/h": 1.0, "/hour": 1.0, "USD/h": 1.0, "$/h": 1.0, "/d": 1 / 24, "/day": 1 / 24, "/month": 1 / 730}


def _quantity(text: str, units: dict[str, float], default: str | None, what: str) -> float:
    match = _QUANTITY.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a {what}")
    number, unit = float(match.group(1)), (match.group(2) or "").strip()
    if not unit and default is not None:
        unit = default
    if unit not in units:
        problem = f"unknown unit {unit!r} in {text!r}" if unit else f"{text!r} has no unit"
        raise ValueError(f"{problem}; a {what} takes {', '.join(u for u in units if u)}")
    value = number * units[unit]
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not finite")
    return value


def parse_seconds(text: str) -> float:
    """Seconds from '2s', '50ms', '1h'; the unit must be written.

    >>> parse_seconds("50ms"), parse_seconds("2s")
    (0.05, 2.0)
    """
    return _quantity(text, _TIME, None, "duration")


def parse_bytes(text: str) -> float:
    """Bytes from '2GiB', '80 GB'.

    >>> parse_bytes("80GB")
    80000000000.0
    """
    return _quantity(text, _SIZE, None, "size")


def parse_bandwidth(text: str) -> float:
    """Bytes per second from '50GB/s' or '400Gb/s'.

    >>> parse_bandwidth("400Gb/s")
    50000000000.0
    """
    return _quantity(text, _RATE, None, "bandwidth")


def parse_count(text: str) -> float:
    """A count from '32k', '1.5M' or a plain number.

    >>> parse_count("32k")
    32000.0
    """
    return _quantity(text, _COUNT, "", "count")


def parse_usd_per_hour(text: str) -> float:
    """USD per hour from '60/h', '$60/h', '1440/day' or '60'.

    >>> parse_usd_per_hour("60/h"), parse_usd_per_hour("$48/day")
    (60.0, 2.0)
    """
    return _quantity(text.strip().removeprefix("$"), _MONEY, "", "price per hour")


def format_seconds(value: float) -> str:
    """A short duration: '412 ms', '1.84 s', '2.1 h'."""
    if not math.isfinite(value):
        return "∞"
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if abs(value) < limit:
            return f"{value * scale:.3g} {unit}"
    return f"{value / HOUR:.3g} h"


def format_bytes(value: float) -> str:
    """A short decimal size: '671 MB', '1.07 GB'."""
    for scale, unit in ((TB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "kB")):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def format_bandwidth(value: float) -> str:
    """A short bandwidth: '50 GB/s'."""
    return f"{format_bytes(value)}/s"


def format_usd(value: float) -> str:
    """A price with as many digits as it deserves: '0.0182', '13.90', '1,204'."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 0.1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.3g}"
