"""How large the numbers of a description may be: it may come from a peer, and nothing is allocated by its word."""

from __future__ import annotations

from collections.abc import Iterator

from diptych.errors import Finding

PARTS = 2**16
"""Layers, heads and ranks, which are counted one by one."""
SHAPES = 1024
"""Entries of a list of layers."""
WHOLE = 2**53
"""Any other number: the largest that every reader of JSON keeps."""


def within(where: str, value: float, least: int, most: int = WHOLE) -> Iterator[Finding]:
    """A finding when `value` is no number from `least` to `most`."""
    if not least <= value <= most:
        yield Finding(where, f"is {str(value)[:40]}", f"{least} or more" if value < least else f"{most} at most")
