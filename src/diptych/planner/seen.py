"""What has been seen of two pools: sizes and rates that kept the promises or did not, and what follows for others.

More workers and fewer requests never break a promise, so one look answers for a whole corner. A search asked again at other
prices, for another budget or rate, then sizes little anew.
"""

from __future__ import annotations

Point = tuple[float, float, float]
"""(prefill workers, decode workers, requests/s)"""


class Seen:
    """The corners known of one pair of pools and its boundary."""

    def __init__(self) -> None:
        self._kept: list[Point] = []
        self._broken: list[Point] = []

    def says(self, point: Point) -> bool | None:
        """Whether a fleet keeps its promises, as far as it follows from what was seen."""
        if any(_no_easier(seen, point) for seen in self._kept):
            return True
        return False if any(_no_easier(point, seen) for seen in self._broken) else None

    def note(self, point: Point, keeps: bool) -> None:
        """Remember a look; what it makes needless is forgotten."""
        if keeps:
            self._kept = [*(seen for seen in self._kept if not _no_easier(point, seen)), point]
        else:
            self._broken = [*(seen for seen in self._broken if not _no_easier(seen, point)), point]


def _no_easier(one: Point, other: Point) -> bool:
    """Whether a fleet has no more workers than another and carries no less."""
    return one[0] <= other[0] and one[1] <= other[1] and one[2] >= other[2]
