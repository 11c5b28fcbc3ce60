"""Chance without state: a number in [0, 1) that follows from the seed and what it is about, in whatever order it is asked."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def chance(*about: int) -> float:
    """Even over [0, 1): SplitMix64 (Steele, Lea and Flood 2014) over the numbers, one after another.

    >>> chance(7, 1) == chance(7, 1), chance(7, 1) == chance(7, 2)
    (True, False)
    """
    state = 0
    for number in about:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return (state >> 11) * 2.0**-53
