"""Workers that share a machine, and slow each other down while they compute: memory's bandwidth, caches, a core too few.

A step that begins while others compute takes longer by what was measured. A prompt's step is not looked at again until it ends;
a run of decode steps ends at its next boundary when others begin or stop, and goes on from there at its new pace.
"""

from __future__ import annotations

from typing import Any, Final

WHOLE: Final = 1 << 16
"""Parts in which a factor is kept."""


class Crowd:
    """The workers of one machine, and how many of them compute."""

    __slots__ = ("computing", "workers")

    def __init__(self) -> None:
        self.workers: list[Any] = []
        self.computing = 0

    def add(self, worker: Any, factor: float) -> None:
        """One more, whose steps take `factor` times as long while others compute."""
        worker.crowd, worker.slow = self, round(factor * WHOLE)
        self.workers.append(worker)

    def others(self, worker: Any) -> bool:
        """Whether somebody else computes now."""
        return self.computing > (1 if worker.counted else 0)

    def tell(self, worker: Any, now: int) -> None:
        """A worker may have begun or stopped: those whose pace that changes go on at it from their next boundary."""
        if worker.active == worker.counted:
            return
        worker.counted = worker.active
        self.computing += 1 if worker.active else -1
        for other in self.workers:
            if other is not worker and other.active and not other.chunks and other.stretch:
                other.cut(now)
