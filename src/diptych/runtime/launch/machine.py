"""What this machine has for a fleet: cores and memory, shared out among its workers."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

LEAST_BLOCKS, MOST_KV = 64, 1 << 30
KV_SHARE = 0.25
"""Of the memory that is free, for the KV of all workers together."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores that this process may use, and bytes of memory that are free."""

    cores: int
    memory: int

    @classmethod
    def here(cls) -> Machine:
        return cls(len(os.sched_getaffinity(0)), int(psutil.virtual_memory().available))

    def threads(self, workers: int) -> int:
        """Threads of one worker's computation, so that all together have no more than there are cores.

        >>> Machine(2, 0).threads(3), Machine(16, 0).threads(3)
        (1, 5)
        """
        return max(1, self.cores // max(workers, 1))

    def blocks(self, block_bytes: int, workers: int) -> int:
        """KV blocks of one worker, by default."""
        return max(LEAST_BLOCKS, min(MOST_KV, int(self.memory * KV_SHARE) // max(workers, 1)) // block_bytes)
